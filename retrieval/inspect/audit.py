"""Gallery audit: photos and items that cause wrong or missing search results.

- collisions: items closer to each other than the threshold, whose photos also return the other item;
- strays: photos farther than the threshold from all other photos of their own item;
- duplicates: photos of different items that are the same file, copies of one photo, or nearly the same;
- crowds: items in the densest regions, closest to their nearest other items.

Shapes: n photos, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from index.database import POINT
from index.location import AnyGallery
from index.search.distance import accepts, plain_distance, squared_distance
from index.search.leave_one_out import CLOSE, NOBODY, OWN, KeptDraws
from retrieval.bundle.bundle import Bundle, require_match
from retrieval.errors import CalibrationError, command
from retrieval.metrics.item_distances import ItemDistances
from retrieval.threshold.gallery_points import served_point

from .duplicates import NEAR, SAME_FILE, SAME_PICTURE, is_copy, same_files

NEAR_DUPLICATE = 0.02  # plain distance of photos that are nearly the same
CROWD = 4  # nearest other items that measure the density around an item
ROUNDING = 1e-3  # more than the error of a distance from a float32 product; pairs within it are compared exactly
KINDS = (SAME_FILE, SAME_PICTURE, NEAR)  # of duplicates, worst first


@dataclass(frozen=True)
class Pair:
    """Two photos of different items, and their distance."""

    item_id: str
    other_item_id: str
    photo_id: str
    other_photo_id: str
    distance: float
    kind: str = ""  # of duplicates: "same file", "same picture" or "nearly the same"


@dataclass(frozen=True)
class Stray:
    """A photo and its distance to the nearest other photo of its item."""

    item_id: str
    photo_id: str
    distance: float


@dataclass(frozen=True)
class Crowd:
    """An item and the mean distance of its photos to the nearest other items."""

    item_id: str
    photo_id: str
    distance: float


@dataclass(frozen=True)
class Audit:
    """The results of an audit. Every list is sorted worst first."""

    photos: int
    items: int
    threshold: float
    collisions: list[Pair]  # one per pair of items, by their nearest photos
    duplicates: list[Pair]  # one per pair of items, by the plain distance, copies first
    strays: list[Stray]
    single_photo_items: int  # not checked for strays
    crowds: list[Crowd]  # all items, the most crowded first
    sampled: int | None = None  # number of photos searched for collisions and strays; None for all


Floats = NDArray[np.float64]


def audit(bundle: Bundle, gallery: AnyGallery) -> Audit:
    """Compare all photos of a gallery with each other, by the bundle's distance and the serving threshold.

    If the bundle verifies matches, collisions and strays are those among the photos that the gallery's draws searched.
    Crowds are measured without verification.

    Raises CalibrationError if there is no threshold yet.
    """
    require_match(bundle, gallery)
    threshold = _threshold(bundle, gallery)
    photo_ids, item_ids, vectors = gallery.contents()
    names, item_numbers = np.unique(np.array(item_ids, dtype=str), return_inverse=True)
    if not len(names):
        return Audit(0, 0, threshold, [], [], [], 0, [])
    side = ItemDistances(
        vectors,
        item_numbers,
        densities=bundle.distance_form.densities(vectors),
        ids=np.arange(len(vectors)),
        distance_form=bundle.distance_form,
    )
    photos, items = np.array(photo_ids, dtype=str)[side.order], side.labels
    vectors, densities = side.vectors, side.densities

    def exactly(first: NDArray[np.int64], second: NDArray[np.int64]) -> NDArray[np.float64]:
        squared = squared_distance(vectors[first], vectors[second])
        return bundle.distance_form.transform(squared, densities[first], densities[second])

    own, crowd, nearest, look_alikes = _scan(side, threshold + ROUNDING)
    first, second = nearest.photos()
    close = exactly(first, second)
    counts = np.bincount(items)
    lonely = counts[items] == 1
    one, other = look_alikes.photos()
    strays = np.flatnonzero(~accepts(own, threshold) & ~lonely)
    middle = np.add.reduceat(crowd, side.starts) / counts

    def pairs(first: NDArray[np.int64], second: NDArray[np.int64], distances: Floats) -> list[Pair]:
        return [
            Pair(names[items[a]].item(), names[items[b]].item(), photos[a].item(), photos[b].item(), float(d))
            for a, b, d in zip(first, second, distances, strict=True)
        ]

    colliding = accepts(close, threshold)
    collisions = pairs(first[colliding], second[colliding], close[colliding])
    candidates = pairs(one, other, plain_distance(vectors[one], vectors[other]))
    crowds = [Crowd(names[i].item(), photos[side.starts[i]].item(), float(middle[i])) for i in range(len(names))]
    found = Audit(
        photos=len(photos),
        items=len(names),
        threshold=threshold,
        collisions=sorted(collisions, key=lambda pair: pair.distance),
        duplicates=_duplicates(gallery, candidates),
        strays=sorted(
            (Stray(names[items[i]].item(), photos[i].item(), float(own[i])) for i in strays), key=lambda s: -s.distance
        ),
        single_photo_items=int(lonely.sum()),
        crowds=sorted(crowds, key=lambda entry: entry.distance) if len(names) > 1 else [],
    )
    return found if bundle.verifier is None else _verified(found, bundle, gallery)


def _verified(found: Audit, bundle: Bundle, gallery: AnyGallery) -> Audit:
    """Return an audit with the collisions and strays among the draws, which have verified distances."""
    kept = KeptDraws.read(gallery)
    if kept is None or kept.model != bundle.draws_id or not kept.covers(gallery) or OWN not in kept.sources:
        return replace(found, collisions=[], strays=[], sampled=0)
    draws, snapshot = kept.sources[OWN], gallery.snapshot()
    near, far = accepts(draws.distances, found.threshold), ~accepts(draws.own, found.threshold)
    closest: dict[tuple[str, str], Pair] = {}
    for row in np.flatnonzero(near & (draws.nearest != NOBODY))[::-1].tolist():
        item, other = str(draws.items[row]), str(draws.nearest_items[row])
        other_photo = snapshot.photo(int(np.searchsorted(snapshot.seqs, draws.nearest[row])))[0]
        pair = Pair(item, other, str(draws.ids[row]), other_photo, float(draws.distances[row]))
        known = closest.setdefault((min(item, other), max(item, other)), pair)
        if pair.distance < known.distance:
            closest[min(item, other), max(item, other)] = pair
    strays = [
        Stray(str(draws.items[row]), str(draws.ids[row]), float(draws.own[row]))
        for row in np.flatnonzero(far & np.isfinite(draws.own)).tolist()
    ]
    return replace(
        found,
        collisions=sorted(closest.values(), key=lambda pair: pair.distance),
        strays=sorted(strays, key=lambda stray: -stray.distance),
        sampled=len(draws),
    )


def _threshold(bundle: Bundle, gallery: AnyGallery) -> float:
    """Return the threshold that serves; raise CalibrationError if there is none."""
    point = served_point(gallery.kept(POINT), bundle)
    if not point.decides:
        raise CalibrationError(
            "an audit compares photos with the threshold, and neither the gallery nor the bundle has one",
            remedy=f"Add items, then set one: `{command('calibrate', bundle.path, gallery.path)}`",
        )
    return point.threshold


class _Nearest:
    """The nearest photos of each pair of items within a limit."""

    def __init__(self, side: ItemDistances, limit: float) -> None:
        self._side, self._limit = side, limit
        self._found: dict[tuple[int, int], tuple[float, int, int]] = {}  # distance and photos, by two items

    def see(self, start: int, distances: Floats, by_item: Floats) -> None:
        """Compare photos from `start` on, by distances to photos (b, m) and items (b, T), inf to their own item."""
        for row, item in np.argwhere(by_item <= self._limit).tolist():
            inside = self._side.photos(item)
            place = inside.start + int(distances[row, inside].argmin())
            own = int(self._side.labels[start + row])
            pair = (min(own, item), max(own, item))
            distance = float(distances[row, place])
            if pair not in self._found or distance < self._found[pair][0]:
                self._found[pair] = (distance, start + row, place)

    def photos(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the photos of each pair of items."""
        both = np.array([photos for _, *photos in self._found.values()], dtype=np.int64).reshape(-1, 2)
        return both[:, 0], both[:, 1]


def _scan(side: ItemDistances, limit: float) -> tuple[Floats, Floats, _Nearest, _Nearest]:
    """Compare all photos with each other.

    Returns, for each photo, the distance to the nearest other photo of its item, and the mean distance to the nearest
    other items; and the nearest photos of each pair of items within `limit`, and within `CLOSE` by the plain distance.
    """
    items, others = side.labels, len(side.starts) - 1
    own, crowd = np.full(len(items), np.inf), np.empty(len(items))
    nearest, look_alikes = _Nearest(side, limit), _Nearest(side, CLOSE)
    for block in side.blocks(side.vectors, items, densities=side.densities, ids=side.ids):
        distances = side.distances(block.squared, block.densities)
        own[block.rows] = np.where(block.own, distances, np.inf).min(axis=1)
        distances[block.own] = np.inf
        by_item = side.to_items(distances)
        crowd[block.rows] = np.sort(by_item, axis=1)[:, : min(CROWD, max(1, others))].mean(axis=1)
        nearest.see(block.rows.start, distances, by_item)
        plain = np.where(block.own, np.inf, np.sqrt(block.squared))
        look_alikes.see(block.rows.start, plain, side.to_items(plain))
    return own, crowd, nearest, look_alikes


def _duplicates(gallery: AnyGallery, candidates: Sequence[Pair]) -> list[Pair]:
    """Return the items that share a file, and the candidates that are copies or near copies."""
    files = same_files(gallery)
    found = []
    for pair in candidates:
        if (pair.item_id, pair.other_item_id) in files or (pair.other_item_id, pair.item_id) in files:
            continue
        if is_copy(gallery.thumbnail, pair.photo_id, pair.other_photo_id):
            found.append(replace(pair, kind=SAME_PICTURE))
        elif pair.distance <= NEAR_DUPLICATE:
            found.append(replace(pair, kind=NEAR))
    found += [Pair(*items, *photos, 0.0, SAME_FILE) for items, photos in files.items()]
    return sorted(found, key=lambda pair: (KINDS.index(pair.kind), pair.distance, pair.item_id, pair.other_item_id))


def summary(report: Audit) -> str:
    """Return a one-line summary."""
    sample = (
        ""
        if report.sampled is None
        else " As matches are verified, only a sample was searched for colliding items and for photos that miss their "
        f"item: {report.sampled} photos."
    )
    return (
        f"{report.photos} photos of {report.items} items, threshold {report.threshold:.4f}: "
        f"{len(report.collisions)} pairs of items collide, {len(report.strays)} photos do not find their own item, "
        f"{len(report.duplicates)} pairs of items share a duplicate; {report.single_photo_items} items have one "
        f"photo.{sample}"
    )


def table(report: Audit, *, limit: int) -> Sequence[tuple[str, list[str]]]:
    """Return pairs of a title and its lines of text, at most `limit` lines per title."""

    def pairs(entries: Sequence[Pair]) -> list[str]:
        return [
            f"{p.distance:.4f}  {p.item_id} ({p.photo_id}) = {p.other_item_id} ({p.other_photo_id})" for p in entries
        ]

    return [
        ("pairs of items closer than the threshold", pairs(report.collisions[:limit])),
        (
            "pairs of items with a duplicate",
            [
                f"{line}, {p.kind}"
                for line, p in zip(pairs(report.duplicates[:limit]), report.duplicates[:limit], strict=True)
            ],
        ),
        (
            "photos that do not find their own item",
            [f"{s.distance:.4f}  {s.item_id} ({s.photo_id})" for s in report.strays[:limit]],
        ),
        ("most crowded items", [f"{c.distance:.4f}  {c.item_id}" for c in report.crowds[:limit]]),
    ]
