"""Metrics of the papers that the product does not print: clustering, diversity and re-ranking."""

from __future__ import annotations

import warnings

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from retrieval.metrics.ranks import Scorer, Scores, Vectors, cosine_scorer

EXACT = 1000  # number of clusters up to which k-means++ is used until convergence
ROUNDS = 20  # iterations for more clusters, from random photos, as in the released code of Roth et al. (ICML 2020)
FLOOR = 1e-8  # relative to the largest singular value; smaller ones are 0 in float64


def nmi(vectors: Vectors, labels: NDArray[np.generic], *, seed: int) -> float:
    """Return 2 I(clusters; items) / (H(clusters) + H(items)) in [0, 1], with as many k-means clusters as items."""
    from sklearn.cluster import KMeans
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.metrics import normalized_mutual_info_score

    count = len(np.unique(labels))
    start, most = ("k-means++", 300) if count <= EXACT else ("random", ROUNDS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # fewer distinct vectors than items
        assigned = KMeans(count, init=start, n_init=1, max_iter=most, random_state=seed).fit_predict(vectors)
    return float(normalized_mutual_info_score(labels, assigned, average_method="arithmetic"))


def cluster_diversity(vectors: Vectors, labels: NDArray[np.generic]) -> float:
    """Return the variance of the distances within an item, averaged over items with two photos or more.

    The non-isotropic vMF paper (arXiv 2207.03784, Table 5) describes it and gives no formula.
    """
    variances = []
    for item in np.unique(labels):
        own = vectors[labels == item].astype(np.float64)
        own /= np.maximum(np.linalg.norm(own, axis=1, keepdims=True), 1e-12)
        first, second = np.triu_indices(len(own), 1)
        if len(first):
            variances.append(np.sqrt(np.maximum(2 - 2 * (own @ own.T)[first, second], 0)).var())
    return float(np.mean(variances)) if variances else float("nan")


def feature_diversity(vectors: Vectors) -> float:
    """Return exp(-ρ), the effective share of directions of vectors (n, d): 1 for a uniform spectrum.

    ρ = KL(uniform ‖ singular values, scaled to sum 1) is the spectral decay of Roth et al. (ICML 2020, Section 5).
    """
    exact = vectors.astype(np.float64)
    values = np.sqrt(np.maximum(np.linalg.eigvalsh(exact.T @ exact), 0))
    kept = np.maximum(values, FLOOR * values.max())
    return float(np.exp(np.log(len(kept) * kept / kept.sum()).mean()))


def contextual_scorer(
    queries: Vectors, gallery: Vectors, *, neighbours: int, weight: float = 0.1, exclude_self: bool = False
) -> Scorer:
    """Return a scorer by contextual similarity (arXiv 2210.01908, Appendix I.5 with Eq. 15 and 16).

    N(i) are the k nearest gallery photos of i. A photo of the gallery is its own first neighbour, and so is a query
    outside the gallery, which is no neighbour of others. The score is β |N(i) ∩ N(j)| / |N(i)|, where j is in N(i),
    plus (1 - β) exp(2 s_ij - 2).

    Parameters
    ----------
    neighbours, weight:
        k and β. The paper reports k = 16 and 32 on CUB and Cars, 4 on SOP, and β = 0.1.
    exclude_self:
        Whether queries and gallery are the same list.
    """
    everything = slice(0, len(gallery))
    of_gallery = _inside(cosine_scorer(gallery, gallery)(everything), neighbours, np.arange(len(gallery)))
    cosines = cosine_scorer(queries, gallery)

    def score(rows: slice) -> Scores:
        similarity = cosines(rows)
        own = np.arange(rows.start, rows.stop) if exclude_self else None
        inside = _inside(similarity, neighbours, own)
        sizes = inside.sum(axis=1)[:, None] + (own is None)  # with the query itself
        shared = (inside @ of_gallery.T).multiply(inside).toarray() / np.maximum(sizes, 1)
        return np.asarray(weight * shared + (1 - weight) * np.exp(2 * similarity.astype(np.float64) - 2))

    return score


def _inside(similarity: Scores, k: int, own: NDArray[np.int64] | None) -> csr_array:
    """Return which gallery photos are neighbours (b, m); `own` has the columns of the photos themselves."""
    squared = np.maximum(2 - 2 * similarity, 0)
    if own is not None:
        squared[np.arange(len(own)), own] = 0  # exact zeros rank first among the k
    rank = min(k if own is not None else k - 1, squared.shape[1])
    if not rank:
        return csr_array(squared.shape)
    edge = np.partition(squared, rank - 1, axis=1)[:, rank - 1 : rank]
    return csr_array((squared <= edge).astype(np.float64))
