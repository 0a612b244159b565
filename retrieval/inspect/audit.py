"""Gallery audit: photos and items that cause wrong or missing search results.

- collisions: items closer to each other than the threshold, whose photos also return the other item;
- strays: photos farther than the threshold from all other photos of their own item;
- duplicates: photos of different items that are the same file, copies of one photo, or nearly the same;
- crowds: items in the densest regions, closest to their nearest other items.

Shapes: n photos, d = embedding size.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from index.contents import POINT
from index.distance import accepts, plain_distance, squared_distance
from index.gallery import Gallery
from index.shell import command
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.served_point import served_point
from retrieval.compatibility import require_match
from retrieval.errors import CalibrationError
from retrieval.html import document, picture
from retrieval.metrics.item_distances import ItemDistances

from .duplicates import NEAR, SAME_FILE, SAME_PICTURE, is_copy, same_files

NEAR_DUPLICATE = 0.02  # plain distance of photos that are nearly the same
COPIES = 0.2  # plain distance up to which the pixels of two photos are compared
CROWD = 4  # nearest other items that measure the density around an item
ROUNDING = 1e-3  # more than the error of a distance from a float32 product; pairs within it are compared exactly
SHOWN = 30  # entries per section of the page
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


Floats = NDArray[np.float64]


def audit(bundle: Bundle, gallery: Gallery) -> Audit:
    """Compare all photos of a gallery with each other, by the bundle's distance and the threshold that serves.

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
    return Audit(
        photos=len(photos),
        items=len(names),
        threshold=threshold,
        collisions=sorted(collisions, key=lambda pair: pair.distance),
        duplicates=_duplicates(gallery, candidates),
        strays=sorted(
            (Stray(names[items[i]].item(), photos[i].item(), float(own[i])) for i in strays), key=lambda s: -s.distance
        ),
        single_photo_items=int(lonely.sum()),
        crowds=sorted(
            (Crowd(names[i].item(), photos[side.starts[i]].item(), float(middle[i])) for i in range(len(names))),
            key=lambda entry: entry.distance,
        )
        if len(names) > 1
        else [],
    )


def _threshold(bundle: Bundle, gallery: Gallery) -> float:
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
    other items; and the nearest photos of each pair of items within `limit`, and within `COPIES` by the plain distance.
    """
    items, others = side.labels, len(side.starts) - 1
    own, crowd = np.full(len(items), np.inf), np.empty(len(items))
    nearest, look_alikes = _Nearest(side, limit), _Nearest(side, COPIES)
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


def _duplicates(gallery: Gallery, candidates: Sequence[Pair]) -> list[Pair]:
    """Return the items that share a file, and the candidates that are copies or nearly the same."""
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


STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a202c; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
@media (prefers-color-scheme: dark) { body { color: #e8edf4; background: #0b1220; } }
h2 { font-size: 1.15rem; margin-top: 2rem; } .row { display: flex; flex-wrap: wrap; gap: .8rem; }
figure { margin: 0; width: 15rem; font-size: .85rem; } figure img { width: 7.3rem; height: 7.3rem; object-fit: cover; }
"""


def audit_page(report: Audit, thumbnail: Callable[[str], bytes | None]) -> str:
    """Render an audit as one HTML page with pictures."""

    def shown(photo_id: str) -> str:
        return picture(thumbnail(photo_id) or b"", alt=photo_id)

    def pair(entry: Pair) -> str:
        names = f"{html.escape(entry.item_id)} and {html.escape(entry.other_item_id)}"
        told = entry.kind or f"{entry.distance:.3f} apart"
        return _card(shown(entry.photo_id) + shown(entry.other_photo_id), f"{names}, {told}")

    def single(entry: Stray | Crowd) -> str:
        return _card(shown(entry.photo_id), f"{html.escape(entry.item_id)}, {entry.distance:.3f}")

    parts = [
        ("Items closer than the threshold", report.collisions, [pair(p) for p in report.collisions[:SHOWN]]),
        ("Duplicates in different items", report.duplicates, [pair(p) for p in report.duplicates[:SHOWN]]),
        ("Photos that do not find their own item", report.strays, [single(s) for s in report.strays[:SHOWN]]),
        ("The most crowded items, distance to the nearest others", (), [single(c) for c in report.crowds[:SHOWN]]),
    ]
    body = "".join(
        f"<h2>{title}{f': {len(entries)}' if isinstance(entries, list) else ''}</h2>"
        f'<div class="row">{"".join(cards) or "none"}</div>'
        for title, entries, cards in parts
    )
    head = f"<h1>Gallery audit</h1><p>{html.escape(summary(report))}</p>"
    return document("Gallery audit", style=STYLE, body=head + body)


def summary(report: Audit) -> str:
    """Return a one-line summary."""
    return (
        f"{report.photos} photos of {report.items} items, threshold {report.threshold:.4f}: "
        f"{len(report.collisions)} pairs of items collide, {len(report.strays)} photos do not find their own item, "
        f"{len(report.duplicates)} pairs of items share a duplicate; {report.single_photo_items} items have one "
        "photo."
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


def _card(pictures: str, caption: str) -> str:
    return f"<figure>{pictures}<figcaption>{caption}</figcaption></figure>"
