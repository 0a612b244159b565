"""Normalised mutual information of items and k-means clusters, as metric-learning papers report it."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import InvalidParameter

CAREFUL = 1000  # clusters up to which k-means is seeded by k-means++ and runs until it settles
ROUNDS = 20  # of Lloyd's algorithm beyond, from random photos, as in the released evaluations (Roth et al., ICML 2020)


def nmi(vectors: NDArray[np.float32], labels: ArrayLike, *, seed: int) -> float:
    """Return 2 I(clusters; items) / (H(clusters) + H(items)) in [0, 1], with as many clusters as items.

    Parameters
    ----------
    vectors:
        Unit vectors (n, d).
    labels:
        (n,), the item of each photo.
    seed:
        Of k-means: the value moves by some tenths of a per cent with it.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import normalized_mutual_info_score

    labels = np.asarray(labels)
    if len(vectors) != len(labels) or not len(labels):
        raise InvalidParameter("labels", "have one value a vector", (vectors.shape, labels.shape))
    clusters = len(np.unique(labels))
    careful = clusters <= CAREFUL
    means = KMeans(
        clusters,
        init="k-means++" if careful else "random",
        n_init=1,
        max_iter=300 if careful else ROUNDS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors than items
        found = means.fit_predict(vectors)
    return float(normalized_mutual_info_score(labels, found, average_method="arithmetic"))
