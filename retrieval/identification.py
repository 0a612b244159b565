"""What a search does with queries that have, and have not, a mate in the gallery.

Terms (ISO/IEC 19795): a query is *mated* when its item is in the gallery. FPIR is the share of non-mated
queries
that return anything; FNIR the share of mated queries whose own item is not first among the answers.
Shapes: n queries, m gallery photos, d = embedding size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.distance import accepts, plain_distance

from .errors import InvalidParameter

BLOCK = 2**22  # cosines held at a time
PAIRS = 2**14  # pairs measured exactly at a time
SLACK = 1e-5  # by which a float32 cosine may be wrong


@dataclass(frozen=True)
class SearchScores:
    """Of each query: how far its own item is, and how far the nearest other one.

    `impostor` is all that a non-mated search sees: the same query with its own item taken out of the gallery.
    """

    labels: NDArray[np.generic]  # (n,) item of each query
    own: NDArray[np.float64]  # (n,) distance to its own item, inf where it has no photo in the gallery
    impostor: NDArray[np.float64]  # (n,) distance to the nearest other item, inf where there is none
    gallery_items: int

    @property
    def mated(self) -> NDArray[np.bool_]:
        """(n,) whether the query's item is in the gallery."""
        return np.isfinite(self.own)


@dataclass(frozen=True)
class IdentificationRates:
    """The rates of one threshold; NaN where no query can show one."""

    threshold: float
    fpir: float  # share of non-mated searches that return anything
    tpir: float  # share of mated searches whose own item is first
    fnir: float  # 1 - tpir
    fnir_any_rank: float  # share of mated searches whose own item is not among the answers
    misidentification: float  # share of mated searches whose first answer is another item
    queries: int
    mated_queries: int


def search_scores(
    queries: NDArray[np.float32],
    query_labels: ArrayLike,
    gallery: NDArray[np.float32],
    gallery_labels: ArrayLike,
    *,
    query_ids: ArrayLike | None = None,
    gallery_ids: ArrayLike | None = None,
) -> SearchScores:
    """Return the two distances of every query.

    Parameters
    ----------
    queries, gallery:
        Unit vectors (n, d) and (m, d).
    query_labels, gallery_labels:
        Items (n,) and (m,).
    query_ids, gallery_ids:
        Photo identities (n,) and (m,): a gallery photo with the query's own id is left out, so that photos
        may be queries and gallery at once.

    Candidates come from blocked float32 products; the two distances are exact (`plain_distance`).
    """
    asked, kept = np.asarray(query_labels), np.asarray(gallery_labels)
    if queries.shape[0] != len(asked) or gallery.shape[0] != len(kept):
        raise InvalidParameter(
            "labels", "have one value a vector", (queries.shape, len(asked), gallery.shape, len(kept))
        )
    if not len(kept):
        raise InvalidParameter("gallery", "hold at least one photo", gallery.shape)
    if (query_ids is None) != (gallery_ids is None):
        raise InvalidParameter("query_ids and gallery_ids", "be given together", (query_ids, gallery_ids))
    ids = None if query_ids is None else (np.asarray(query_ids), np.asarray(gallery_ids))
    own, impostor = np.empty(len(asked)), np.empty(len(asked))
    rows = max(1, BLOCK // len(kept))
    for start in range(0, len(asked), rows):
        block = slice(start, start + rows)
        cosines = queries[block] @ gallery.T
        if ids is not None:
            cosines[ids[0][block, None] == ids[1][None, :]] = -np.inf
        same = asked[block, None] == kept[None, :]
        own[block] = _nearest(queries[block], gallery, np.where(same, cosines, -np.inf))
        impostor[block] = _nearest(queries[block], gallery, np.where(same, -np.inf, cosines))
    return SearchScores(asked, own, impostor, len(np.unique(kept)))


def _nearest(
    queries: NDArray[np.float32], gallery: NDArray[np.float32], cosines: NDArray[np.float32]
) -> NDArray[np.float64]:
    """Return the exact distance to the nearest of the photos whose cosine is not -inf, inf where there is none.

    Every photo whose float32 cosine might be the largest is measured: near-duplicates differ below float32.
    """
    nearest = np.full(len(queries), np.inf)
    top = cosines.max(axis=1, keepdims=True)
    rows, photos = np.nonzero((cosines >= top - SLACK) & np.isfinite(cosines))
    for start in range(0, len(rows), PAIRS):
        row, photo = rows[start : start + PAIRS], photos[start : start + PAIRS]
        np.minimum.at(nearest, row, plain_distance(queries[row], gallery[photo]))
    return nearest


def identification_rates(scores: SearchScores, threshold: float) -> IdentificationRates:
    """Return what a threshold does. A tie between the own item and another one counts as wrong."""
    returns_other = accepts(scores.impostor, threshold)
    mated = scores.mated
    found = accepts(scores.own, threshold)
    first = found & (scores.own < scores.impostor)
    wrong = returns_other & (scores.impostor <= scores.own)
    tpir = _share(first, mated)
    return IdentificationRates(
        threshold=threshold,
        fpir=_share(returns_other, np.ones_like(mated)),
        tpir=tpir,
        fnir=1 - tpir,
        fnir_any_rank=1 - _share(found, mated),
        misidentification=_share(wrong, mated),
        queries=len(mated),
        mated_queries=int(mated.sum()),
    )


def threshold_at_fpir(scores: SearchScores, fpir: float) -> float:
    """Return the largest threshold whose FPIR on these queries is at most `fpir`.

    It lies just below the distance of the first non-mated query too many; at most 2, the largest distance.
    """
    if not 0 <= fpir <= 1:
        raise InvalidParameter("fpir", "lie in [0, 1]", fpir)
    ordered = np.sort(scores.impostor)
    allowed = int(np.floor(fpir * len(ordered) + 1e-9))
    if allowed >= len(ordered) or not np.isfinite(ordered[allowed]):
        return 2.0
    return float(np.nextafter(ordered[allowed], -np.inf))


def _share(hits: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    return float(hits[among].mean()) if among.any() else float("nan")
