"""Item-disjoint splits of a catalogue, and the evaluation protocol with its query and gallery photos.

fit          items that the loss is trained on
validation   a fifth of the training items, for choosing checkpoints, if the catalogue names none
calibration  items that set the threshold once, at export
test         items for reporting
If items have a `group` (a family of items), no group is in two splits.
"""

from __future__ import annotations

import hashlib
import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from retrieval.errors import DataError, command, counted, listed

from .photos import Photo, plain

PARTS = ("fit", "validation", "calibration", "test")
TRAIN = "train"
PARTITIONS = {TRAIN, *PARTS[1:]}  # values of the column
VALIDATION_SHARE = 0.2
TEST_SHARE = 0.2
CALIBRATION_SHARE = 0.2
LEAST_TRAINED = 8  # minimum training items; a fifth of them is two
LEAST_PHOTOS = 4  # of an item of which one is held out
FEWEST_ITEMS, MOST_ITEMS = 40, 200  # with a photo that is held out; in between, a fifth of the items
LEAST_ITEMS = 14  # minimum items of a catalogue, which leaves enough for training


@dataclass(frozen=True)
class Splits:
    """Sorted item_ids of each split."""

    fit: tuple[str, ...]
    validation: tuple[str, ...]
    calibration: tuple[str, ...]
    test: tuple[str, ...]

    def to_dict(self) -> dict[str, list[str]]:
        """Return plain JSON values."""
        return {part: list(getattr(self, part)) for part in PARTS}

    @classmethod
    def from_dict(cls, values: dict[str, list[str]]) -> Splits:
        """Build splits from `to_dict`."""
        return cls(**{part: tuple(map(plain, values[part])) for part in PARTS})


def make_splits(photos: Sequence[Photo], *, fitted: Collection[str] = ()) -> Splits:
    """Return item-disjoint splits: those that the catalogue's `partition` column names, and shares of the other items.

    The groups of items have a fixed order, by a hash of their names; an item without a group is one of its own. Test
    items come first, then calibration items, then validation items, until each part has its share; the rest is fitted.
    So a catalogue always has the same splits, whatever the order of its photos. If items are added or removed, only
    groups next to the end of a part move, to the part beside it; an earlier calibration or test item is practically
    never fitted. Items in `fitted`, on which an earlier model was fitted, are never held out, nor are their groups.

    Raises DataError for partitions that are unknown, divide an item or a group, or hold out an item in `fitted`, and
    for too few items.
    """
    group_of = {photo.item_id: photo.group or photo.item_id for photo in photos}
    named = _partitions(photos, fitted)
    rest = group_of.keys() - named.keys()
    kept = {group_of[item] for item in fitted}
    free = {item for item in rest if group_of[item] not in kept}
    drawn_test = take_groups(free, group_of, TEST_SHARE * len(rest))
    drawn_calibration = take_groups(free - drawn_test, group_of, CALIBRATION_SHARE * len(rest))
    test, calibration, validation = (
        {item for item, partition in named.items() if partition == part}
        for part in ("test", "calibration", "validation")
    )
    test, calibration = test | drawn_test, calibration | drawn_calibration
    train = group_of.keys() - test - calibration
    if not validation:
        unfitted = {item for item in train if group_of[item] not in kept}
        validation = take_groups(unfitted, group_of, VALIDATION_SHARE * len(train))
    parts = [train - validation, validation, calibration, test]
    if len(parts[0]) < 2 or (len(validation) < 2 and not fitted):
        raise _too_few(train, group_of, given=bool(named))
    return Splits(*(tuple(sorted(part)) for part in parts))


def _too_few(train: set[str], group_of: Mapping[str, str], *, given: bool) -> DataError:
    groups = {group_of[item] for item in train}
    enough = len(train) >= LEAST_TRAINED if given else len(group_of) >= LEAST_ITEMS
    if enough:
        remedy = (
            "No group is split between parts: add groups, or ignore them with "
            f"`{command('data', 'table', 'CATALOGUE', '-o', 'photos.csv', '--no-groups')}`"
        )
    else:
        remedy = f"Add items: at least {LEAST_TRAINED} for training" if given else f"Add items: at least {LEAST_ITEMS}"
    grouped = f" in {counted(len(groups), 'group')}" if set(group_of.values()) != set(group_of) else ""
    return DataError(
        f"{len(train)} of {counted(len(group_of), 'item')}{grouped} can be trained on, too few to hold "
        "out validation items",
        remedy=remedy,
    )


def _partitions(photos: Sequence[Photo], fitted: Collection[str]) -> dict[str, str]:
    """Return the partition of each item that has one of its own, or whose group has one."""
    of_item: dict[str, set[str]] = defaultdict(set)
    of_group: dict[str, set[str]] = defaultdict(set)
    for photo in photos:
        if photo.partition:
            of_item[photo.item_id].add(photo.partition)
            of_group[photo.group or photo.item_id].add(photo.partition)
    if unknown := sorted({partition for named in of_item.values() for partition in named} - PARTITIONS):
        raise DataError(
            f"the partition column has {unknown}",
            remedy="Use train, validation, calibration and test, or leave the column out",
        )
    for what, partitions, remedy in (
        ("items are", of_item, "Give all photos of an item one partition"),
        ("groups have items", of_group, "Give all items of a group one partition, or leave one of the two columns out"),
    ):
        if divided := sorted(name for name, named in partitions.items() if len(named) > 1):
            raise DataError(f"{what} in several partitions: {listed(divided)}", remedy=remedy)
    groups = {photo.item_id: photo.group or photo.item_id for photo in photos}
    named = {item: min(of_group[group]) for item, group in groups.items() if group in of_group}
    if wrong := sorted(item for item in fitted if named.get(item, TRAIN) != TRAIN):
        raise DataError(
            f"the earlier run was fitted on items that the partition column holds out now: {listed(wrong)}",
            remedy="Give them the partition train or none, or train without --from",
        )
    return named


def take_groups(items: Collection[str], group_of: Mapping[str, str], count: float) -> set[str]:
    """Return the items of whole groups, in the order of hashes, while each brings their number closer to `count`."""
    members: dict[str, list[str]] = defaultdict(list)
    for item in items:
        members[group_of[item]].append(item)
    taken: set[str] = set()
    for name in sorted(members, key=_digest):
        group = members[name]
        if abs(len(taken) + len(group) - count) <= abs(len(taken) - count):
            taken.update(group)
    return taken


def _digest(name: str) -> bytes:
    return hashlib.sha256(name.encode(errors="surrogatepass")).digest()


@dataclass(frozen=True)
class EvaluationProtocol:
    """Sources of gallery and query photos. With equal sources, each photo is searched among all others."""

    gallery_source: str = ""
    query_source: str = ""

    @property
    def sources(self) -> frozenset[str]:
        """Return the sources of gallery and queries."""
        return frozenset((self.gallery_source, self.query_source))

    @property
    def leave_one_out(self) -> bool:
        """Return whether every photo is searched among all others."""
        return self.gallery_source == self.query_source

    def describe(self) -> str:
        """Return a description."""
        if self.leave_one_out:
            return "every photo is searched among all others"
        return f"photos of {self.query_source!r} are the queries, those of {self.gallery_source!r} the gallery"


ROLE_GALLERY, ROLE_QUERY = "gallery", "query"


def side(photo: Photo) -> str:
    """Return the role of a photo if it has one, else its source."""
    return photo.role or photo.source


def make_evaluation_protocol(photos: Sequence[Photo]) -> EvaluationProtocol:
    """Choose the sources of gallery and query photos.

    The `role` column takes precedence over `source`: of the sources with more than one photo per
    item (which excludes catalogue pictures), the first in alphabetical order becomes the gallery and the second the
    queries. With fewer than two such sources, every photo is searched among all others.
    """
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for photo in photos:
        counts[side(photo)][photo.item_id] += 1
    if {ROLE_GALLERY, ROLE_QUERY} <= set(counts):
        return EvaluationProtocol(ROLE_GALLERY, ROLE_QUERY)
    several = sorted(s for s, by_item in counts.items() if sum(by_item.values()) > 1.5 * len(by_item))
    if len(several) >= 2:
        return EvaluationProtocol(several[0], several[1])
    only = several[0] if several else next(iter(counts))
    return EvaluationProtocol(only, only)


def photos_in_protocol(
    photos: Sequence[Photo], items: Sequence[str], protocol: EvaluationProtocol, *, left_out: Sequence[str] = ()
) -> list[Photo]:
    """Return the photos of some items whose source takes part in the evaluation protocol, without ids left out."""
    chosen, out = set(items), set(left_out)
    return [p for p in photos if p.item_id in chosen and side(p) in protocol.sources and p.photo_id not in out]


def photos_to_hold_out(
    photos: Sequence[Photo], items: Sequence[str], protocol: EvaluationProtocol, *, seen: Collection[str] = ()
) -> list[str]:
    """Return the ids of photos of items to fit that training leaves out, to search for them.

    They are one query photo of an item with four photos or more: of a fifth of the items, but of at least 40 if there
    are so many and of at most 200, chosen by a hash. Those that an earlier run has seen are not new.
    """
    by_item, held_out = photos_by_hash(photos_in_protocol(photos, items, protocol)), []
    for own in by_item.values():
        asked = (photo for photo in own if side(photo) == protocol.query_source and photo.photo_id not in seen)
        new = next(asked, None)
        rest = [photo for photo in own if photo is not new and side(photo) == protocol.gallery_source]
        if new is not None and rest and len(own) >= LEAST_PHOTOS:
            held_out.append(new.photo_id)
    return held_out[: min(MOST_ITEMS, max(FEWEST_ITEMS, len(by_item) // 5))]


def photos_by_hash(photos: Sequence[Photo]) -> dict[str, list[Photo]]:
    """Return the photos of each item, both in the order of hashes of their ids."""

    def place(name: str) -> tuple[int, str]:
        return zlib.crc32(name.encode(errors="surrogatepass")), name

    by_item: dict[str, list[Photo]] = defaultdict(list)
    for photo in sorted(photos, key=lambda photo: place(photo.photo_id)):
        by_item[photo.item_id].append(photo)
    return {item: by_item[item] for item in sorted(by_item, key=place)}


def query_and_gallery(
    name: str, photos: Sequence[Photo], items: Sequence[str], protocol: EvaluationProtocol
) -> tuple[list[int], list[int]]:
    """Return the positions of the query and of the gallery photos of some items; raise DataError if either is empty."""
    chosen = set(items)
    positions = [i for i, photo in enumerate(photos) if photo.item_id in chosen]
    queries = [i for i in positions if side(photos[i]) == protocol.query_source]
    gallery = [i for i in positions if side(photos[i]) == protocol.gallery_source]
    if not chosen:
        raise DataError(f"the run has no {name} items", remedy="Train a new run on a catalogue with more items")
    if not positions:
        raise DataError(
            f"the catalogue has no photo of the {len(chosen)} {name} items, apart from variants of fitted items",
            remedy="Restore them, or train a new run",
        )
    if not queries or not gallery:
        raise DataError(
            f"the {name} items have {len(queries)} query and {len(gallery)} gallery photos ({protocol.describe()})",
            remedy="Name the two kinds of photos in a column `role`: gallery and query",
        )
    return queries, gallery


def require_mates(name: str, photos: Sequence[Photo], items: Sequence[str], protocol: EvaluationProtocol) -> None:
    """Raise DataError if no query photo of these items has a gallery photo of its own item to match."""
    queries, gallery = query_and_gallery(name, photos, items, protocol)
    least = 2 if protocol.leave_one_out else 1
    mates = Counter(photos[i].item_id for i in gallery)
    if not any(mates[photos[i].item_id] >= least for i in queries):
        raise DataError(
            f"no photo of the {len(items)} {name} items has another photo of its item to match ({protocol.describe()})",
            remedy="Add a second photo to more items",
        )
