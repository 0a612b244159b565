"""Rank metrics: quality of the order of the gallery, independent of the values of the distances.

Shapes: n queries, m gallery photos, d = embedding size, b queries per block, k ranks evaluated.
Queries without a photo of their item in the gallery are left out of every mean. Ties keep the order of the gallery.
Every metric accepts `scores` to rank by another score than the cosine (research ranks by context).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import InvalidParameter

BLOCK = 2**22  # scores in memory at a time

Vectors = NDArray[np.float32]
Scores = NDArray[np.floating]
Scorer = Callable[[slice], Scores]  # returns the scores (b, m) of a slice of the queries; greater is nearer
Relevance = NDArray[np.bool_]  # (b, k): whether the photo at each rank shows the query's item
Counts = NDArray[np.int64]  # (b, 1): number of mates, the photos of the query's item in the gallery
Score = Callable[[Relevance, Counts], NDArray[np.float64]]


def recall_at_k(
    queries: Vectors,
    query_labels: ArrayLike,
    gallery: Vectors,
    gallery_labels: ArrayLike,
    *,
    ks: Sequence[int] = (1,),
    exclude_self: bool = False,
    scores: Scorer | None = None,
) -> dict[int, float]:
    """Return R@k: the share of queries with a photo of their item among the first k.

    `exclude_self` means that queries and gallery are the same list; each query's own photo is left out.
    """
    if not ks or min(ks) < 1:
        raise InvalidParameter("ks", "be ranks of at least 1", tuple(ks))

    def hits(relevant: Relevance, mates: Counts) -> NDArray[np.float64]:  # noqa: ARG001
        return np.stack([relevant[:, :k].any(axis=1) for k in ks], axis=1).astype(np.float64)

    pair = _Pair(queries, query_labels, gallery, gallery_labels, exclude_self, scores)
    return {k: float(value) for k, value in zip(ks, pair.mean(hits, depth=max(ks)), strict=True)}


def map_at_r(
    queries: Vectors,
    query_labels: ArrayLike,
    gallery: Vectors,
    gallery_labels: ArrayLike,
    *,
    exclude_self: bool = False,
    scores: Scorer | None = None,
) -> float:
    """Return MAP@R (Musgrave et al., ECCV 2020): average precision of the first R ranks, R = mates."""

    def score(relevant: Relevance, mates: Counts) -> NDArray[np.float64]:
        return _precisions(_first_r(relevant, mates)) / mates

    pair = _Pair(queries, query_labels, gallery, gallery_labels, exclude_self, scores)
    return float(pair.mean(score, depth=pair.most_mates())[0])


def r_precision(
    queries: Vectors,
    query_labels: ArrayLike,
    gallery: Vectors,
    gallery_labels: ArrayLike,
    *,
    exclude_self: bool = False,
    scores: Scorer | None = None,
) -> float:
    """Return R-precision: the share of mates among the first R ranks, R = mates in the gallery."""

    def score(relevant: Relevance, mates: Counts) -> NDArray[np.float64]:
        return np.asarray(_first_r(relevant, mates).sum(axis=1, keepdims=True) / mates)

    pair = _Pair(queries, query_labels, gallery, gallery_labels, exclude_self, scores)
    return float(pair.mean(score, depth=pair.most_mates())[0])


def mean_average_precision(
    queries: Vectors,
    query_labels: ArrayLike,
    gallery: Vectors,
    gallery_labels: ArrayLike,
    *,
    at: int | None = None,
    count_query: bool = False,
    exclude_self: bool = False,
    scores: Scorer | None = None,
) -> float:
    """Return mAP: average precision over the whole gallery, or over the first `at` ranks (mAP@1000).

    The sum of precisions at the ranks of mates is divided by the number of mates, at most `at`; a perfect order gives
    1. `count_query` adds the query itself to the divisor, as the released code behind the published mAP@1000 does (Roth
    et al., ICML 2020, and papers that build on it); a perfect order then gives R / (R + 1).
    """
    if at is not None and at < 1:
        raise InvalidParameter("at", "be a rank of at least 1", at)

    def score(relevant: Relevance, mates: Counts) -> NDArray[np.float64]:
        most = mates + 1 if count_query else mates if at is None else np.minimum(mates, at)
        return _precisions(relevant) / most

    return float(_Pair(queries, query_labels, gallery, gallery_labels, exclude_self, scores).mean(score, depth=at)[0])


class _Pair:
    """Queries and their gallery, with one label per photo."""

    def __init__(
        self,
        queries: Vectors,
        query_labels: ArrayLike,
        gallery: Vectors,
        gallery_labels: ArrayLike,
        exclude_self: bool,
        scores: Scorer | None,
    ) -> None:
        asked, kept = np.asarray(query_labels), np.asarray(gallery_labels)
        _check_lists(queries, asked, gallery, kept, exclude_self)
        self.scorer = scores or cosine_scorer(queries, gallery)
        self.exclude_self = exclude_self
        numbers = np.unique(np.concatenate([asked, kept]), return_inverse=True)[1]  # labels as integers 0, 1, …
        self.asked, self.kept = numbers[: len(asked)], numbers[len(asked) :]
        counts = np.bincount(self.kept, minlength=int(numbers.max(initial=0)) + 1)
        self.mates = counts[self.asked] - exclude_self  # (n,)

    def most_mates(self) -> int:
        """Return the largest number of mates R of any query."""
        return max(1, int(self.mates.max(initial=0)))

    def mean(self, score: Score, *, depth: int | None) -> NDArray[np.float64]:
        """Return the mean of score rows over all mated queries, evaluated on the first `depth` ranks."""
        return np.asarray(_mean_of([score(*block) for block in self._relevance(depth)], len(self.asked)))

    def _relevance(self, depth: int | None) -> Iterator[tuple[Relevance, Counts]]:
        for block, order in ranked(
            self.scorer, len(self.asked), len(self.kept), depth=depth, exclude_self=self.exclude_self
        ):
            mated = self.mates[block] > 0
            yield (self.asked[block, None] == self.kept[order])[mated], self.mates[block, None][mated]


def _check_lists(
    queries: Vectors, asked: NDArray[np.generic], gallery: Vectors, kept: NDArray[np.generic], exclude_self: bool
) -> None:
    """Raise InvalidParameter if vectors and labels do not match, or vectors are not finite."""
    if queries.shape[0] != len(asked) or gallery.shape[0] != len(kept):
        raise InvalidParameter("labels", "have one value per vector", (queries.shape, gallery.shape))
    check_finite(queries, gallery)
    if exclude_self and len(asked) != len(kept):
        raise InvalidParameter("exclude_self", "be used where queries and gallery are one list", exclude_self)


def check_finite(*vectors: NDArray[np.floating]) -> None:
    """Raise InvalidParameter if vectors hold NaN or infinity."""
    if not all(np.isfinite(each).all() for each in vectors):
        raise InvalidParameter("vectors", "be finite", "NaN or infinity")


def _mean_of(rows: Sequence[NDArray[np.float64]], queries: int) -> NDArray[np.float64]:
    if not sum(len(row) for row in rows):
        raise InvalidParameter("queries", "include one whose item is in the gallery", queries)
    return np.asarray(np.concatenate(rows).mean(axis=0))


def _first_r(relevant: Relevance, mates: Counts) -> Relevance:
    return np.asarray(relevant & (np.arange(relevant.shape[1]) < mates))


def _precisions(relevant: Relevance) -> NDArray[np.float64]:
    """Return the sum (b, 1) of the precisions at the ranks of mates."""
    precision = np.cumsum(relevant, axis=1) / np.arange(1, relevant.shape[1] + 1)
    return np.asarray((precision * relevant).sum(axis=1, keepdims=True))


def cosine_scorer(queries: Vectors, gallery: Vectors) -> Scorer:
    """Return a scorer equivalent to the plain distance: the cosines of unit vectors (n, d) and (m, d)."""

    def score(rows: slice) -> Scores:
        return np.asarray(queries[rows] @ gallery.T)

    return score


def blocks(queries: int, gallery: int) -> Iterator[slice]:
    """Yield slices of the queries with at most BLOCK scores each."""
    rows = max(1, BLOCK // max(1, gallery))
    for start in range(0, queries, rows):
        yield slice(start, min(start + rows, queries))


def ranked(
    scorer: Scorer, queries: int, gallery: int, *, depth: int | None = None, exclude_self: bool = False
) -> Iterator[tuple[slice, NDArray[np.int64]]]:
    """Yield each block of queries with its nearest gallery photos (b, depth), best first; all of them without `depth`.

    Ties keep the order of the gallery. `exclude_self` leaves out each query's own photo.
    """
    longest = gallery - 1 if exclude_self else gallery
    depth = longest if depth is None else min(depth, longest)
    for rows in blocks(queries, gallery):
        scores = scorer(rows)
        if exclude_self:
            scores = scores.copy()
            own = np.arange(len(scores))
            scores[own, own + rows.start] = -np.inf
        yield rows, first(scores, depth)


def first(scores: Scores, depth: int) -> NDArray[np.int64]:
    """Return the positions (b, depth) of the greatest scores (b, m); ties keep the order of the columns."""
    if not 0 < depth <= scores.shape[1] // 4:  # a partial sort would not be faster
        return _descending(scores)[:, :depth]
    found = np.sort(np.argpartition(-scores, depth - 1, axis=1)[:, :depth], axis=1)
    values = np.take_along_axis(scores, found, axis=1)
    tied = np.count_nonzero(scores >= values.min(axis=1, keepdims=True), axis=1) > depth  # ties at the last rank
    found = np.take_along_axis(found, _descending(values), axis=1)
    if tied.any():
        found[tied] = _descending(scores[tied])[:, :depth]
    return np.asarray(found)


def _descending(scores: Scores) -> NDArray[np.int64]:
    return np.asarray(np.argsort(-scores, axis=1, kind="stable"))
