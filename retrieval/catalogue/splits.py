"""Item-disjoint splits of a catalogue, and the evaluation protocol with its query and gallery photos.

fit          items that the loss is trained on
validation   a fifth of the training items, for choosing checkpoints, if the catalogue names none
calibration  items that set the threshold once, at export
test         items for reporting
If items have a `group` (a family of items), no group is in two splits.
"""

from __future__ import annotations

import zlib
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from retrieval.errors import DataError, command, counted, listed

from .photos import Photo

PARTS = ("fit", "validation", "calibration", "test")
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
        return cls(**{part: tuple(values[part]) for part in PARTS})


def make_splits(photos: Sequence[Photo], *, seed: int) -> Splits:
    """Return item-disjoint splits: those of the catalogue's `partition` column, or random ones."""
    group_of = {photo.item_id: photo.group or photo.item_id for photo in photos}
    given = _given_parts(photos)
    generator = np.random.default_rng(seed)
    if given:
        train, calibration, test = given["train"] | given["validation"], given["calibration"], given["test"]
    else:
        items = set(group_of)
        test = take_groups(items, group_of, TEST_SHARE * len(items), generator)
        calibration = take_groups(items - test, group_of, CALIBRATION_SHARE * len(items), generator)
        train = items - test - calibration
    drawn = take_groups(train, group_of, VALIDATION_SHARE * len(train), generator)
    validation = given["validation"] if given and given["validation"] else drawn
    parts = [train - validation, validation, calibration, test]
    if len(parts[0]) < 2 or len(validation) < 2:
        raise _too_few(train, group_of, given=given is not None)
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


def _given_parts(photos: Sequence[Photo]) -> dict[str, set[str]] | None:
    parts: dict[str, set[str]] = defaultdict(set)
    for photo in photos:
        parts[photo.partition].add(photo.item_id)
    if set(parts) == {""}:
        return None
    unknown = sorted(set(parts) - {"train", "calibration", "test", "validation"})
    if unknown or not parts["train"]:
        raise DataError(
            f"the partition column has {unknown or 'no train item'}",
            remedy="Use train, calibration and test for every photo, or leave the column out",
        )
    for first, second in combinations(("train", "validation", "calibration", "test"), 2):
        both = sorted(parts[first] & parts[second])
        if both:
            raise DataError(f"items are in both {first} and {second}: {listed(both)}")
    partitions_of_groups(photos)
    return parts


def partitions_of_groups(photos: Sequence[Photo]) -> dict[str, str]:
    """Return the partition of each group for which one is named; raise DataError if a group has several."""
    named: dict[str, set[str]] = defaultdict(set)
    for photo in photos:
        if photo.group and photo.partition:
            named[photo.group].add(photo.partition)
    divided = sorted(group for group, partitions in named.items() if len(partitions) > 1)
    if divided:
        raise DataError(
            f"groups have items in several partitions: {listed(divided)}",
            remedy="Give all items of a group one partition, or leave one of the two columns out",
        )
    return {group: partition for group, (partition,) in named.items()}


def take_groups(items: set[str], group_of: dict[str, str], count: float, generator: np.random.Generator) -> set[str]:
    """Return the items of whole groups, in random order, while each brings the number of items closer to `count`."""
    members: dict[str, list[str]] = defaultdict(list)
    for item in sorted(items):
        members[group_of[item]].append(item)
    names = sorted(members)
    taken: set[str] = set()
    for position in generator.permutation(len(names)):
        group = members[names[position]]
        if abs(len(taken) + len(group) - count) <= abs(len(taken) - count):
            taken.update(group)
    return taken


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
