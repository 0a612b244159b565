"""Open-set identification: error rates of searches for known and unknown items.

Terms (ISO/IEC 19795): a query is *mated* if its item is in the gallery. FPIR is the share of non-mated queries that
return anything; FNIR is the share of mated queries whose own item is not the first answer.
Shapes: n queries, m gallery photos, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from index.photos import NONE
from index.photos.arrays import ArrayPhotos
from index.search.details import Verifier
from index.search.distance import accepts, exact_unit
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from index.search.item_search import ItemSearch
from index.search.left_out import Queries, search_without
from retrieval.errors import InvalidParameter
from retrieval.metrics.ranks import check_finite


@dataclass(frozen=True)
class SearchScores:
    """Distances of each query to its own item and to the nearest other item.

    `impostor` equals the result of a non-mated search: the same query with its own item removed from the gallery.
    """

    labels: NDArray[np.generic]  # (n,) item of each query
    own: NDArray[np.float64]  # (n,) distance to its own item, inf if it is not in the gallery
    impostor: NDArray[np.float64]  # (n,) distance to the nearest other item, inf if there is none
    gallery_items: int
    # (n,) distance of another item that comes first although the own one is there, inf if it does not. Without it, the
    # items are ordered by these distances.
    wrong: NDArray[np.float64] | None = None

    @property
    def misled(self) -> NDArray[np.float64]:
        """Return the distance of another item that comes before the own one, inf if the own one is first (n,)."""
        return np.where(self.own < self.impostor, np.inf, self.impostor) if self.wrong is None else self.wrong

    @property
    def correct(self) -> NDArray[np.float64]:
        """Return the distance of the own item where it comes first, else inf (n,)."""
        return np.where(np.isinf(self.misled), self.own, np.inf)

    @property
    def mated(self) -> NDArray[np.bool_]:
        """Return whether the item of each query is in the gallery (n,)."""
        return np.isfinite(self.own)

    @property
    def recall(self) -> float:
        """Return the share of mated searches whose own item comes first, at any distance; NaN if there are none."""
        return _share(np.isfinite(self.correct), self.mated)

    def where(self, chosen: NDArray[np.bool_]) -> SearchScores:
        """Return the scores of the queries selected by a mask (n,)."""
        wrong = None if self.wrong is None else self.wrong[chosen]
        return SearchScores(self.labels[chosen], self.own[chosen], self.impostor[chosen], self.gallery_items, wrong)


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
    gallery_groups: ArrayLike | None = None,
    item_distance: ItemDistance = NEAREST_PHOTO,
    verifier: Verifier | None = None,
    features: tuple[Sequence[bytes], Sequence[bytes]] = ((), ()),
) -> SearchScores:
    """Return the distances of every query to its own item and to the first other item.

    The photos are searched in memory, by the code that serves (`index.search.tables`).

    Parameters
    ----------
    queries, gallery:
        Vectors (n, d) and (m, d), which are scaled to length one.
    query_labels, gallery_labels:
        Items (n,) and (m,).
    query_ids, gallery_ids:
        Photo ids (n,) and (m,). A gallery photo with the query's own id is left out, so photos may be both.
    gallery_groups:
        Group of each gallery photo's item (m,), "" for none. Items of one group do not match each other.
    item_distance:
        Constants of the item distance; by default, the plain distance to the nearest photo.
    verifier, features:
        Compares local features, and those of the queries and of the gallery photos.
    """
    labels, kept = np.asarray(query_labels), np.asarray(gallery_labels)
    groups = None if gallery_groups is None else np.asarray(gallery_groups, dtype=str).tolist()
    if len(queries) != len(labels) or {len(kept), len(kept if groups is None else groups)} != {len(gallery)}:
        lengths = (queries.shape, len(labels), gallery.shape, len(kept), len(groups or ()))
        raise InvalidParameter("labels and gallery_groups", "have one value per vector", lengths)
    if not len(kept):
        raise InvalidParameter("gallery", "hold at least one photo", gallery.shape)
    check_finite(queries, gallery)
    if (query_ids is None) != (gallery_ids is None):
        raise InvalidParameter("query_ids and gallery_ids", "be given together", (query_ids, gallery_ids))
    items, codes = np.unique(kept, return_inverse=True)
    ids = [None] * len(labels) if query_ids is None else np.asarray(query_ids).tolist()
    rows = {} if gallery_ids is None else {photo: row for row, photo in enumerate(np.asarray(gallery_ids).tolist())}
    unit, vectors = (np.asarray(exact_unit(each), dtype=np.float32) for each in (queries, gallery))
    photos = ArrayPhotos(vectors, codes.astype(str), groups=groups, features=features[1])
    numbers = photos.item_numbers([str(code) for code in range(len(items))])
    known = np.array([numbers[str(code)] for code in range(len(items))], dtype=np.int64)
    places = np.searchsorted(items, labels) % len(items)
    asked = Queries(
        unit,
        np.where(items[places] == labels, known[places], NONE),
        np.array([[rows.get(photo, NONE)] for photo in ids], dtype=np.int64).reshape(-1, 1),
        features[0],
        find_copies=False,
    )
    searched = search_without(ItemSearch(photos, item_distance, verifier), asked)
    return SearchScores(labels, searched.own, searched.distances, len(items), searched.wrong)


def identification_rates(scores: SearchScores, threshold: float) -> IdentificationRates:
    """Return the error rates at a finite threshold. A tie between the own item and another one counts as an error."""
    mated = scores.mated
    tpir = _share(accepts(scores.correct, threshold), mated)
    return IdentificationRates(
        threshold=threshold,
        fpir=_share(accepts(scores.impostor, threshold), np.ones_like(mated)),
        tpir=tpir,
        fnir=1 - tpir,
        fnir_any_rank=1 - _share(accepts(scores.own, threshold), mated),
        misidentification=_share(accepts(scores.misled, threshold), mated),
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
    correct = np.sort(scores.correct[np.isfinite(scores.correct)])
    impostors = np.sort(scores.impostor[np.isfinite(scores.impostor)])
    thresholds = np.unique(np.concatenate([correct, impostors]))
    fpir = np.searchsorted(impostors, thresholds, side="right") / len(scores.impostor)
    mated = scores.mated.sum()
    found = np.searchsorted(correct, thresholds, side="right")
    return DetCurve(thresholds, fpir, 1 - found / mated if mated else np.full(len(thresholds), np.nan))


def _share(hits: NDArray[np.bool_], among: NDArray[np.bool_]) -> float:
    return float(hits[among].mean()) if among.any() else float("nan")
