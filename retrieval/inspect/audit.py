"""Gallery audit: photos and items that cause wrong or missing search results.

- collisions: items closer to each other than the threshold, whose photos also return the other item;
- twins: pairs of items that look like one item under two ids (`suspected_twins`);
- strays: photos farther than the threshold from all other photos of their own item;
- duplicates: photos of different items that are the same file, copies of one photo, or nearly the same;
- damaged: photos whose JPEG has lost or noisy blocks, as they were indexed.

Each photo searches the gallery with its own item left out (`index.search.left_out`). If the bundle verifies
matches, which takes long, a sample of the photos does.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from index.database import POINT
from index.location import AnyGallery
from index.photos import NONE, Photos
from index.search.distance import accepts
from index.search.left_out import CLOSE
from retrieval.bundle.bundle import Bundle, require_match
from retrieval.errors import CalibrationError, command, counted, photos_of_items
from retrieval.galleries.points import served_point
from retrieval.indexing.worker import LOST
from retrieval.measuring.drawing import MOST_VERIFIED, Drawing
from retrieval.measuring.draws import Draws
from retrieval.measuring.twins import suspected_twins
from retrieval.reports.sheet import Card, Section, Sheet

from .duplicates import NEAR, SAME_FILE, SAME_PICTURE, is_copy, same_files

NEAR_DUPLICATE = 0.02  # plain distance of photos that are nearly the same
PICTURED = 24  # entries of a kind on a sheet
FEW_STRAYS = 0.3  # share of the photos up to which they are looked at one by one
COLLIDING = 100  # items that one photo can collide with
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
class Audit:
    """The results of an audit. Every list is sorted worst first."""

    photos: int
    items: int
    threshold: float
    collisions: list[Pair]  # one per pair of items, by their nearest photos
    duplicates: list[Pair]  # one per pair of items, by the plain distance, copies first
    strays: list[Stray]
    single_photo_items: int  # not checked for strays
    twins: list[tuple[str, str]] = field(default_factory=list)  # pairs of items that look like one under two ids
    damaged: list[tuple[str, str]] = field(default_factory=list)  # item and photo of JPEGs with lost or noisy blocks
    sampled: int | None = None  # number of photos that were searched with; None for all


def audit(bundle: Bundle, gallery: AnyGallery) -> Audit:
    """Search a gallery with its own photos, by the bundle's distance and the serving threshold.

    Raises CalibrationError if there is no threshold yet.
    """
    require_match(bundle, gallery)
    threshold, photos = _threshold(bundle, gallery), len(gallery)
    searched = photos if bundle.verifier is None else min(photos, MOST_VERIFIED)
    now = gallery.snapshot()
    draws = Drawing(now, bundle.item_distance, bundle.verifier, find_copies=False).own(most=searched)
    counts = np.unique(now.items[now.live], return_counts=True)[1]
    strays = np.flatnonzero(~accepts(draws.own, threshold) & np.isfinite(draws.own)).tolist()
    lost = [Stray(str(draws.items[row]), str(draws.ids[row]), float(draws.own[row])) for row in strays]
    return Audit(
        photos=photos,
        items=len(counts),
        threshold=threshold,
        collisions=_collisions(draws, threshold),
        duplicates=_duplicates(gallery, _close(now, draws)),
        twins=suspected_twins(draws),
        strays=sorted(lost, key=lambda stray: -stray.distance),
        single_photo_items=int((counts == 1).sum()),
        damaged=sorted((item, photo_id) for photo_id, item, lost in gallery.values(LOST) if lost),
        sampled=None if bundle.verifier is None else searched,
    )


def _collisions(draws: Draws, threshold: float) -> list[Pair]:
    """Return the pairs of items of which one matches photos of the other, nearest first."""
    hits = draws.where(accepts(draws.distances, threshold) & (draws.nearest != ""))
    columns = (hits.items, hits.ids, hits.nearest_items, hits.nearest, hits.distances)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return _nearest_pairs(((item, photo), (other, nearest), apart) for item, photo, other, nearest, apart in rows)


def _close(photos: Photos, draws: Draws) -> list[Pair]:
    """Return the pairs of items with photos that may be copies of each other, nearest first."""
    own = draws.where(accepts(draws.plain, CLOSE))
    nearest, distances = photos.nearest(photos.vectors(photos.positions(own.ids.tolist())), COLLIDING)
    of, columns = (accepts(distances, CLOSE) & (nearest != NONE)).nonzero()
    stored = photos.photos_at(nearest[of, columns])
    pairs = zip(of.tolist(), stored, distances[of, columns].tolist(), strict=True)
    return _nearest_pairs(
        ((str(own.items[row]), str(own.ids[row])), (item_id, photo_id), apart)
        for row, (photo_id, item_id, _), apart in pairs
    )


def _nearest_pairs(pairs: Iterable[tuple[tuple[str, str], tuple[str, str], float]]) -> list[Pair]:
    """Return the nearest pair of photos of each pair of items, given both items with a photo, and a distance."""
    best: dict[frozenset[str], Pair] = {}
    for own, found, distance in pairs:
        one, other = sorted((own, found))
        items = frozenset((one[0], other[0]))
        if len(items) == 2 and (items not in best or distance < best[items].distance):
            best[items] = Pair(one[0], other[0], one[1], other[1], distance)
    return sorted(best.values(), key=lambda pair: pair.distance)


def _threshold(bundle: Bundle, gallery: AnyGallery) -> float:
    """Return the threshold that serves; raise CalibrationError if there is none."""
    point = served_point(gallery.kept(POINT), bundle, gallery)
    if not point.decides:
        raise CalibrationError(
            "an audit compares photos with the threshold, and neither the gallery nor the bundle has one",
            remedy=f"Add items, then set one: `{command('calibrate', bundle.path, gallery.path)}`",
        )
    return point.threshold


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
        f"item: {counted(report.sampled, 'photo')}."
    )
    return (
        f"{photos_of_items(report.photos, report.items)}, threshold {report.threshold:.4f}: "
        f"{counted(len(report.collisions), 'pair of items collides', 'pairs of items collide')}, "
        f"{counted(len(report.strays), 'photo does not find its item', 'photos do not find their item')}, "
        f"{counted(len(report.duplicates), 'pair of items shares a duplicate', 'pairs of items share a duplicate')}, "
        f"{counted(len(report.twins), 'pair looks', 'pairs look')} like one item under two ids; "
        f"{counted(report.single_photo_items, 'item has', 'items have')} one photo.{sample}"
    )


@dataclass(frozen=True)
class Finding:
    """Entries of one kind, worst first: a line about each, with its photos; and what to do about them."""

    title: str
    to_do: str  # "" for nothing
    entries: Sequence[tuple[str, tuple[str, ...]]]


def findings(report: Audit, bundle: Path, gallery: AnyGallery) -> list[Finding]:
    """Return what an audit found, with the commands that help; kinds without entries are left out."""
    place = gallery.path
    manage = f"on the page /manage (`{command('serve', bundle, place)}`)"
    remove = f"`{command('gallery', 'remove', place, '--photo', 'PHOTO_ID')}`"
    train = f"`{command('train', 'PHOTOS', '--all-items', '--precompute', '8', '-o', 'RUN')}`"
    again = f"`{command('index', bundle, 'PHOTOS', '-o', place)}`"
    lost = f"The model does not tell these items well: train on them with {train}, or add photos of each"
    if len(report.strays) <= FEW_STRAYS * report.photos:
        lost = f"Remove photos of something else with {remove}, and add photos to items that have few"
    found = [
        Finding(
            "pairs of items that look like one under two ids",
            f"Merge a pair that is one item, or keep it apart, {manage}; until then neither is found",
            [
                (f"{one} = {other}", tuple(gallery.photos(item)[0][0] for item in (one, other)))
                for one, other in report.twins
            ],
        ),
        Finding(
            "pairs of items with a duplicate",
            f"Merge them {manage}, or remove the photo from the item that it does not show: {remove}",
            [(f"{_told(pair)}, {pair.kind}", (pair.photo_id, pair.other_photo_id)) for pair in report.duplicates],
        ),
        Finding(
            "damaged photos (blocks of the JPEG are lost or noisy)",
            f"Replace the files, and index again: {again}",
            [(f"{item} ({photo_id})", (photo_id,)) for item, photo_id in report.damaged],
        ),
        Finding(
            "photos that do not find their own item",
            lost,
            [(f"{s.distance:.4f}  {s.item_id} ({s.photo_id})", (s.photo_id,)) for s in report.strays],
        ),
        Finding(
            "pairs of items closer than the threshold",
            f"Nothing, if they differ: they look alike, and training may tell them apart ({train})",
            [(_told(pair), (pair.photo_id, pair.other_photo_id)) for pair in report.collisions],
        ),
    ]
    return [finding for finding in found if finding.entries]


def _told(pair: Pair) -> str:
    one, other = f"{pair.item_id} ({pair.photo_id})", f"{pair.other_item_id} ({pair.other_photo_id})"
    return f"{pair.distance:.4f}  {one} = {other}"


def sheet(report: Audit, found: Sequence[Finding], gallery: AnyGallery) -> Sheet:
    """Return the sheet of an audit, with the pictures of the worst entries of each kind."""

    def card(text: str, photos: Sequence[str]) -> Card:
        pictures = [(photo_id, gallery.thumbnail(photo_id)) for photo_id in photos if photo_id]
        return Card([(photo_id, jpeg) for photo_id, jpeg in pictures if jpeg], text)

    sections = [
        Section(
            f"{finding.title[0].upper()}{finding.title[1:]}: {len(finding.entries)}",
            finding.to_do and f"{finding.to_do}.",
            [card(*entry) for entry in finding.entries[:PICTURED]],
        )
        for finding in found
    ]
    return Sheet("What to check in this catalogue", [summary(report)], sections)
