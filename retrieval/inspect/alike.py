"""Look-alikes: pairs of items that share a photo or are hard to tell apart, and how much the search loses by each.

The cost of a pair is the TPIR that would be gained if its items were one item, at the same target FPIR. It is measured
with the own draws of the gallery: those of the pair's photos are made again with both items in one group.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from index.groups import group_number, group_of
from index.location import AnyGallery
from index.photos import ItemFacts, Photos
from index.search.distance import accepts
from retrieval.bundle.bundle import Bundle
from retrieval.galleries.kept import Kept, read_parts
from retrieval.galleries.measured import draw_gallery, kept_draws
from retrieval.galleries.points import GalleryPoint
from retrieval.measuring.drawing import Drawing, PartVectors
from retrieval.measuring.draws import OWN, AllDraws, Draws, Rows
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.point import Point
from retrieval.measuring.rates import Mated
from retrieval.metrics.identification import identification_rates

from .audit import audit
from .duplicates import SAME_FILE, SAME_PICTURE, same_files

MEASURED = 40  # pairs whose cost is measured
MOST_AUDITED = 100  # of an audit
CLOSE = "close"


@dataclass(frozen=True)
class Pair:
    """Two items, in alphabetical order, by a photo of each."""

    item_id: str
    other_item_id: str
    photo_id: str
    other_photo_id: str
    why: str = CLOSE
    cost: float | None = None  # TPIR, None where it was not measured


class OneGroup:
    """The photos of a version, in which two items have one group. Everything else is as in the version."""

    def __init__(self, photos: Photos, items: Rows) -> None:
        self._photos, self._items = photos, items

    def __getattr__(self, name: str) -> object:
        return getattr(self._photos, name)

    def facts_of(self, items: Rows) -> ItemFacts:
        """Return the mean photos and the groups of items."""
        means, groups = self._photos.facts_of(items)
        return ItemFacts(means, np.where(np.isin(items, self._items), group_number("a pair"), groups))


def look_alikes(bundle: Bundle, gallery: AnyGallery) -> list[Pair]:
    """Return pairs of items that are still apart: first those that share a photo, then those that cost most.

    Where the model was fitted on items, or there are no draws, they are those of an audit, and their cost is not known.
    """
    photos, draws = kept_draws(bundle, gallery) or draw_gallery(bundle, gallery)
    point, own = GalleryPoint(bundle, gallery).point, draws.get(OWN)
    costs, pairs = _Costs(bundle, gallery, photos, draws, point), dict[tuple[str, str], Pair]()
    found = _audited(bundle, gallery) if draws.fitted or not len(own) else (*_copies(gallery, own), *_close(own, point))
    for pair in found:
        pairs.setdefault((pair.item_id, pair.other_item_id), pair)
    apart = [replace(pair, cost=costs.of(pair)) for pair in pairs.values() if _is_apart(gallery, pair)]
    kept = [pair for pair in apart if pair.why != CLOSE or pair.cost != 0]
    return sorted(kept, key=lambda pair: (pair.why == CLOSE, -(pair.cost or 0.0)))


def _audited(bundle: Bundle, gallery: AnyGallery) -> Iterator[Pair]:
    report = audit(bundle, gallery)
    for pair in (*report.duplicates, *report.collisions[:MOST_AUDITED]):
        why = pair.kind if pair.kind in (SAME_FILE, SAME_PICTURE) else CLOSE
        yield _pair((pair.item_id, pair.photo_id), (pair.other_item_id, pair.other_photo_id), why)


def _is_apart(gallery: AnyGallery, pair: Pair) -> bool:
    """Return whether both items are in the gallery and not of one group."""
    first, second = (gallery.photos(item)[:1] for item in (pair.item_id, pair.other_item_id))
    if not first or not second:
        return False
    groups = [group_of(item, metadata) for _, item, metadata in (*first, *second)]
    return groups[0] != groups[1] or not groups[0]


def _copies(gallery: AnyGallery, own: Draws) -> Iterator[Pair]:
    for items, photos in same_files(gallery).items():
        yield Pair(*items, *photos, SAME_FILE)
    copied = own.where(own.is_copied)
    for item, photo_id, copy in zip(
        copied.items.tolist(), copied.ids.tolist(), copied.duplicates.tolist(), strict=True
    ):
        stored = gallery.photo(copy)
        if stored is not None and stored[1] != item:
            yield _pair((item, photo_id), (stored[1], copy), SAME_PICTURE)


def _close(own: Draws, point: Point) -> Iterator[Pair]:
    """Yield the pairs that have most draws in which one item comes close to a photo of the other, or before its own."""
    within = point.perhaps.within if point.perhaps is not None else point.threshold
    harmed = (accepts(own.distances, within) | np.isfinite(own.wrong)) & (own.nearest != "") & ~own.is_copied
    hits = own.where(harmed)
    order = np.argsort(hits.distances, kind="stable")
    columns = (hits.items, hits.ids, hits.nearest_items, hits.nearest)
    rows = zip(*(column[order].tolist() for column in columns), strict=True)
    found = [_pair((item, photo_id), (other, nearest)) for item, photo_id, other, nearest in rows]
    counts = Counter((pair.item_id, pair.other_item_id) for pair in found)
    closest: Mapping[tuple[str, str], Pair] = {
        (pair.item_id, pair.other_item_id): pair for pair in reversed(found)
    }  # of several draws, the closest
    for names, _ in counts.most_common(MEASURED):
        yield closest[names]


def _pair(one: tuple[str, str], other: tuple[str, str], why: str = CLOSE) -> Pair:
    """Return a pair, given item and photo of each side."""
    (item, photo_id), (second, second_photo) = sorted((one, other))
    return Pair(item, second, photo_id, second_photo, why)


class _Costs:
    """Measures what pairs cost."""

    def __init__(self, bundle: Bundle, gallery: AnyGallery, photos: Photos, draws: AllDraws, point: Point) -> None:
        self._bundle, self._photos, self._draws, self._point = bundle, photos, draws, point
        self._looks: PartVectors | None = read_parts(gallery, Kept.LOOKS) if draws.looks else None
        self._now = self._tpir(draws.get(OWN)) if point.decides and not draws.fitted else None

    def of(self, pair: Pair) -> float | None:
        """Return the TPIR that would be gained if the pair were one item, None if it is not known.

        That is so without a threshold, and where the model was fitted on items of the gallery.
        """
        own, both = self._draws.get(OWN), (pair.item_id, pair.other_item_id)
        rows = np.flatnonzero(np.isin(own.items, both))
        positions = self._photos.positions(own.ids[rows].tolist())
        if self._now is None or not len(rows) or (positions < 0).any():
            return None
        numbers = np.array(list(self._photos.item_numbers(both).values()))
        one = cast("Photos", OneGroup(self._photos, numbers))
        again = Drawing(one, self._bundle.item_distance, self._bundle.verifier).own_at(positions, self._looks)
        nearest = np.minimum(again.own, again.wrong)
        is_found = np.isfinite(again.wrong) & np.isin(own.nearest_items[rows], both) & (nearest < again.distances)
        again = replace(
            again,
            groups=np.full(len(rows), min(both)),
            own=np.where(is_found, nearest, again.own),
            wrong=np.where(is_found, np.inf, again.wrong),
        )
        others = np.ones(len(own), bool)
        others[rows] = False
        merged = self._tpir(Draws.joined([own.where(others), again]))
        return None if merged is None else max(0.0, merged - self._now)

    def _tpir(self, own: Draws) -> float | None:
        """Return the share of own draws that find their item at the threshold that keeps the target."""
        sources = {**self._draws.sources, OWN: own}
        limit = DrawnDistances.of(sources, shift=self._point.shift).limit(self._point.target_fpir, certified=False)
        mated = Mated.of({OWN: own}, gallery_items=self._photos.item_count)
        return None if limit is None or mated is None else identification_rates(mated.scores, limit).tpir
