"""Normalised mutual information (NMI) of items and k-means clusters."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import InvalidParameter

EXACT = 1000  # number of clusters up to which k-means++ is used until convergence
ROUNDS = 20  # iterations for more clusters, from random photos, as in the released code of Roth et al. (ICML 2020)


def nmi(vectors: NDArray[np.float32], labels: ArrayLike, *, seed: int) -> float:
    """Return 2 I(clusters; items) / (H(clusters) + H(items)) in [0, 1], with as many clusters as items.

    Parameters
    ----------
    vectors:
        Unit vectors (n, d).
    labels:
        Item of each photo (n,).
    seed:
        Seed of k-means, which moves the value by a few tenths of a per cent.
    """
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import normalized_mutual_info_score

    labels = np.asarray(labels)
    if len(vectors) != len(labels) or not len(labels):
        raise InvalidParameter("labels", "have one value per vector", (vectors.shape, labels.shape))
    clusters = len(np.unique(labels))
    exact = clusters <= EXACT
    means = KMeans(
        clusters,
        init="k-means++" if exact else "random",
        n_init=1,
        max_iter=300 if exact else ROUNDS,
        random_state=seed,
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors than items
        assigned = means.fit_predict(vectors)
    return float(normalized_mutual_info_score(labels, assigned, average_method="arithmetic"))
