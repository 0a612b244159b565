"""Rank metrics: how good an order of the gallery is, whatever the distances mean.

Shapes: n queries, m gallery photos, d = embedding size. Queries without a photo of their item in the gallery
are left out of every mean. Equal distances rank in the order of the gallery.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from .errors import InvalidParameter

BLOCK = 2**22  # cosines held at a time

Vectors = NDArray[np.float32]
Relevance = NDArray[np.bool_]  # (b, m): does the photo at each rank show the query's item


def recall_at_k(
    queries: Vectors,
    query_labels: ArrayLike,
    gallery: Vectors,
    gallery_labels: ArrayLike,
    *,
    ks: Sequence[int] = (1,),
    exclude_self: bool = False,
) -> dict[int, float]:
    """Return R@k: the share of queries with a photo of their item among the first k.

    `exclude_self` says that queries and gallery are the same list, and leaves each query's own photo out.
    """
    if not ks or min(ks) < 1:
        raise InvalidParameter("ks", "be ranks of at least 1", tuple(ks))

    def hits(relevant: Relevance) -> NDArray[np.float64]:
        return np.stack([relevant[:, :k].any(axis=1) for k in ks], axis=1).astype(np.float64)

    means = _mean(queries, query_labels, gallery, gallery_labels, exclude_self, hits)
    return {k: float(value) for k, value in zip(ks, means, strict=True)}


def map_at_r(
    queries: Vectors,
    query_labels: ArrayLike,
    gallery: Vectors,
    gallery_labels: ArrayLike,
    *,
    exclude_self: bool = False,
) -> float:
    """Return MAP@R (Musgrave et al., ECCV 2020): average precision of the first R ranks, R = mates."""

    def score(relevant: Relevance) -> NDArray[np.float64]:
        total, within = _first_r(relevant)
        precision = np.cumsum(within, axis=1) / np.arange(1, within.shape[1] + 1)
        return np.asarray((precision * within).sum(axis=1, keepdims=True) / total)

    return float(_mean(queries, query_labels, gallery, gallery_labels, exclude_self, score)[0])


def r_precision(
    queries: Vectors,
    query_labels: ArrayLike,
    gallery: Vectors,
    gallery_labels: ArrayLike,
    *,
    exclude_self: bool = False,
) -> float:
    """Return R-precision: the share of mates among the first R ranks, R = mates in the gallery."""

    def score(relevant: Relevance) -> NDArray[np.float64]:
        total, within = _first_r(relevant)
        return np.asarray(within.sum(axis=1, keepdims=True) / total)

    return float(_mean(queries, query_labels, gallery, gallery_labels, exclude_self, score)[0])


def mean_average_precision(
    queries: Vectors,
    query_labels: ArrayLike,
    gallery: Vectors,
    gallery_labels: ArrayLike,
    *,
    exclude_self: bool = False,
) -> float:
    """Return mAP: average precision over the whole gallery."""

    def score(relevant: Relevance) -> NDArray[np.float64]:
        precision = np.cumsum(relevant, axis=1) / np.arange(1, relevant.shape[1] + 1)
        return np.asarray((precision * relevant).sum(axis=1, keepdims=True) / relevant.sum(axis=1, keepdims=True))

    return float(_mean(queries, query_labels, gallery, gallery_labels, exclude_self, score)[0])


def _first_r(relevant: Relevance) -> tuple[NDArray[np.int64], Relevance]:
    total = relevant.sum(axis=1, keepdims=True)
    return total, relevant & (np.arange(relevant.shape[1]) < total)


def _mean(
    queries: Vectors,
    query_labels: ArrayLike,
    gallery: Vectors,
    gallery_labels: ArrayLike,
    exclude_self: bool,
    score: Callable[[Relevance], NDArray[np.float64]],
) -> NDArray[np.float64]:
    """Return the mean of score rows over all mated queries."""
    asked, kept = np.asarray(query_labels), np.asarray(gallery_labels)
    if queries.shape[0] != len(asked) or gallery.shape[0] != len(kept):
        raise InvalidParameter("labels", "have one value a vector", (queries.shape, gallery.shape))
    if exclude_self and len(asked) != len(kept):
        raise InvalidParameter("exclude_self", "be used where queries and gallery are one list", exclude_self)
    rows = [score(relevant) for relevant in _ranked(queries, asked, gallery, kept, exclude_self)]
    if not rows or not sum(len(row) for row in rows):
        raise InvalidParameter("queries", "include one whose item is in the gallery", len(asked))
    return np.asarray(np.concatenate(rows).mean(axis=0))


def _ranked(
    queries: Vectors,
    asked: NDArray[np.generic],
    gallery: Vectors,
    kept: NDArray[np.generic],
    exclude_self: bool,
) -> Iterator[Relevance]:
    """Yield relevance by rank, (b, m) or (b, m - 1), of the mated queries of each block."""
    rows = max(1, BLOCK // max(1, len(kept)))
    for start in range(0, len(asked), rows):
        block = slice(start, start + rows)
        cosines = queries[block] @ gallery.T
        if exclude_self:
            own = np.arange(len(cosines))
            cosines[own, own + start] = -np.inf
        order = np.argsort(-cosines, axis=1, kind="stable")
        relevant = asked[block, None] == kept[order]
        if exclude_self:  # the query's own photo stands last
            relevant = relevant[:, :-1]
        yield relevant[relevant.any(axis=1)]
