"""Open-set identification: error rates of searches for known and unknown items.

Terms (ISO/IEC 19795): a query is *mated* if its item is in the gallery. FPIR is the share of non-mated queries that
return anything; FNIR is the share of mated queries whose own item is not the first answer.
Shapes: n queries, m gallery photos, d = embedding size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.search.distance import PLAIN, DistanceForm, Floats, accepts, squared_distance
from retrieval.errors import InvalidParameter

from .item_distances import ItemDistances, QueryBlock

PAIRS = 2**14  # pairs compared exactly at a time
SLACK = 2e-5  # error bound of a squared distance computed from a float32 cosine


@dataclass(frozen=True)
class SearchScores:
    """Distances of each query to its own item and to the nearest other item.

    `impostor` equals the result of a non-mated search: the same query with its own item removed from the gallery.
    """

    labels: NDArray[np.generic]  # (n,) item of each query
    own: NDArray[np.float64]  # (n,) distance to its own item, inf if it is not in the gallery
    impostor: NDArray[np.float64]  # (n,) distance to the nearest other item, inf if there is none
    gallery_items: int

    @property
    def mated(self) -> NDArray[np.bool_]:
        """Return whether the item of each query is in the gallery (n,)."""
        return np.isfinite(self.own)

    def where(self, chosen: NDArray[np.bool_]) -> SearchScores:
        """Return the scores of the queries selected by a mask (n,)."""
        return SearchScores(self.labels[chosen], self.own[chosen], self.impostor[chosen], self.gallery_items)


@dataclass(frozen=True)
class IdentificationRates:
    """Error rates at one threshold; NaN if no query contributes to a rate."""

    threshold: float
    fpir: float  # share of non-mated searches that return anything
    tpir: float  # share of mated searches whose own item is first
    fnir: float  # 1 - tpir
    fnir_any_rank: float  # share of mated searches whose own item is not among the answers
    misidentification: float  # share of mated searches whose first answer is another item
    queries: int


def search_scores(
    queries: NDArray[np.float32],
    query_labels: ArrayLike,
    gallery: NDArray[np.float32],
    gallery_labels: ArrayLike,
    *,
    query_ids: ArrayLike | None = None,
    gallery_ids: ArrayLike | None = None,
    distance_form: DistanceForm = PLAIN,
) -> SearchScores:
    """Return the distances of every query to its own item and to the nearest other item.

    Candidates come from blocked float32 products; the two distances are exact (`squared_distance`).

    Parameters
    ----------
    queries, gallery:
        Unit vectors (n, d) and (m, d).
    query_labels, gallery_labels:
        Items (n,) and (m,).
    query_ids, gallery_ids:
        Photo ids (n,) and (m,). A gallery photo with the query's own id is left out, which allows photos to be
        queries and gallery at once.
    distance_form:
        Distance function.
    """
    labels, kept = np.asarray(query_labels), np.asarray(gallery_labels)
    if queries.shape[0] != len(labels) or gallery.shape[0] != len(kept):
        raise InvalidParameter(
            "labels", "have one value a vector", (queries.shape, len(labels), gallery.shape, len(kept))
        )
    if not len(kept):
        raise InvalidParameter("gallery", "hold at least one photo", gallery.shape)
    if (query_ids is None) != (gallery_ids is None):
        raise InvalidParameter("query_ids and gallery_ids", "be given together", (query_ids, gallery_ids))
    side = ItemDistances(
        gallery, kept, densities=distance_form.densities(gallery), ids=gallery_ids, distance_form=distance_form
    )
    own, impostor = np.empty(len(labels)), np.empty(len(labels))
    for block in side.blocks(queries, labels, densities=distance_form.densities(queries), ids=query_ids):
        own[block.rows] = _nearest(side, block, np.where(block.own, block.squared, np.inf))
        impostor[block.rows] = _nearest(side, block, np.where(block.own, np.inf, block.squared))
    return SearchScores(labels, own, impostor, len(side.items))


def _nearest(side: ItemDistances, block: QueryBlock, squared: Floats) -> Floats:
    """Return the exact distance of each query to the nearest of the photos (b, m) with a finite squared distance.

    All photos within the float32 error of the nearest are compared exactly, because near-duplicates differ by less.
    """
    nearest = np.full(len(squared), np.inf)
    least = side.distances(np.maximum(squared - SLACK, 0), block.densities)
    most = side.distances(squared + SLACK, block.densities).min(axis=1, keepdims=True)
    rows, photos = np.nonzero((least <= most) & np.isfinite(squared))
    for start in range(0, len(rows), PAIRS):
        row, photo = rows[start : start + PAIRS], photos[start : start + PAIRS]
        exact = squared_distance(block.queries[row], side.vectors[photo])
        distances = side.distance_form.transform(exact, block.densities[row], side.densities[photo])
        np.minimum.at(nearest, row, distances)
    return nearest


def identification_rates(scores: SearchScores, threshold: float) -> IdentificationRates:
    """Return the error rates at a threshold. A tie between the own item and another one counts as an error."""
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
    )


def threshold_at_fpir(scores: SearchScores, fpir: float) -> float:
    """Return the largest threshold whose FPIR on these queries is at most `fpir`.

    It lies just below the distance of the first non-mated query in excess, or is the largest distance if there is none.
    """
    if not 0 <= fpir <= 1:
        raise InvalidParameter("fpir", "lie in [0, 1]", fpir)
    ordered = np.sort(scores.impostor)
    allowed = int(np.floor(fpir * len(ordered) + 1e-9))
    if allowed >= len(ordered) or not np.isfinite(ordered[allowed]):
        return max(2.0, float(ordered[np.isfinite(ordered)].max(initial=0)))
    return float(np.nextafter(ordered[allowed], -np.inf))


@dataclass(frozen=True)
class DetCurve:
    """Detection error trade-off over every threshold (N,), ascending, that changes an error rate."""

    thresholds: NDArray[np.float64]
    fpir: NDArray[np.float64]  # increasing
    fnir: NDArray[np.float64]  # decreasing to the share of mated searches whose own item is never first


def det_curve(scores: SearchScores) -> DetCurve:
    """Return the detection error trade-off of searches."""
    correct = np.sort(scores.own[scores.mated & (scores.own < scores.impostor)])
    impostors = np.sort(scores.impostor[np.isfinite(scores.impostor)])
    thresholds = np.unique(np.concatenate([correct, impostors]))
    fpir = np.searchsorted(impostors, thresholds, side="right") / len(scores.impostor)
    mated = scores.mated.sum()
    found = np.searchsorted(correct, thresholds, side="right")
    fnir = 1 - found / mated if mated else np.full(len(thresholds), np.nan)
    return DetCurve(thresholds, fpir, fnir)


def _share(hits: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    return float(hits[among].mean()) if among.any() else float("nan")
