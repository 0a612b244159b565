"""Who may see what: class-disjoint parts of a catalogue, and which photos ask and which are asked.

fit          the loss sees these items
validation   a class-disjoint fifth of the training items: checkpoints are chosen here
calibration  give the threshold, once, at export
test         for reporting
Where items carry a `group` (a product family), no group is in two parts.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from index.shell import command
from retrieval.errors import DataError

from .photos import Photo

PARTS = ("fit", "validation", "calibration", "test")
VALIDATION_SHARE = 0.2
TEST_SHARE = 0.2
CALIBRATION_SHARE = 0.2
LEAST_TRAINED = 8  # training items of which a fifth is two
LEAST_ITEMS = 14  # items that always leave so many for training


@dataclass(frozen=True)
class Splits:
    """item_ids of each part, sorted."""

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
    """Return class-disjoint parts: those of the catalogue's `partition` column, or made from the seed."""
    group_of = {photo.item_id: photo.group or photo.item_id for photo in photos}
    given = _given_parts(photos)
    generator = np.random.default_rng(seed)
    if given:
        train, calibration, test = given["train"], given["calibration"], given["test"]
    else:
        items = set(group_of)
        test = _take(items, group_of, TEST_SHARE * len(items), generator)
        calibration = _take(items - test, group_of, CALIBRATION_SHARE * len(items), generator)
        train = items - test - calibration
    validation = _take(train, group_of, VALIDATION_SHARE * len(train), generator)
    parts = [train - validation, validation, calibration, test]
    if len(parts[0]) < 2 or len(validation) < 2:
        raise _too_few(train, group_of, given=given is not None)
    return Splits(*(tuple(sorted(part)) for part in parts))


def _too_few(train: set[str], group_of: Mapping[str, str], *, given: bool) -> DataError:
    groups = {group_of[item] for item in train}
    enough = len(train) >= LEAST_TRAINED if given else len(group_of) >= LEAST_ITEMS
    if enough:
        remedy = (
            "A group is never divided: bring more groups, or ignore them with "
            f"`{command('data', 'table', 'CATALOGUE', '-o', 'photos.csv', '--no-groups')}`"
        )
    else:
        remedy = f"Bring at least {LEAST_TRAINED} training items" if given else f"Bring at least {LEAST_ITEMS} items"
    grouped = f" in {len(groups)} groups" if set(group_of.values()) != set(group_of) else ""
    return DataError(
        f"{len(train)} of the {len(group_of)} items{grouped} are for training, too few to hold out validation items",
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
            f"the partition column holds {unknown or 'no train item'}",
            remedy="Use train, calibration and test for every photo, or leave the column out",
        )
    for one, other in (("train", "calibration"), ("train", "test"), ("calibration", "test")):
        both = sorted(parts[one] & parts[other])
        if both:
            raise DataError(f"items stand in {one} and in {other}: {', '.join(both[:3])}")
    return parts


def _take(items: set[str], group_of: dict[str, str], wanted: float, generator: np.random.Generator) -> set[str]:
    """Return whole groups, in random order, while they come nearer to the wanted number of items."""
    members: dict[str, list[str]] = defaultdict(list)
    for item in sorted(items):
        members[group_of[item]].append(item)
    names = sorted(members)
    taken: set[str] = set()
    for position in generator.permutation(len(names)):
        group = members[names[position]]
        if abs(len(taken) + len(group) - wanted) <= abs(len(taken) - wanted):
            taken.update(group)
    return taken


@dataclass(frozen=True)
class Protocol:
    """Which photos form the gallery and which ask; equal sources mean each photo asks all the others."""

    gallery_source: str = ""
    query_source: str = ""

    @property
    def sources(self) -> frozenset[str]:
        """The sources that take part."""
        return frozenset((self.gallery_source, self.query_source))

    @property
    def leave_one_out(self) -> bool:
        """Whether every photo is query and gallery photo at once, itself left out."""
        return self.gallery_source == self.query_source

    def describe(self) -> str:
        """Say it in words."""
        if self.leave_one_out:
            return "every photo asks all the others"
        return f"photos of {self.query_source!r} ask, those of {self.gallery_source!r} form the gallery"


ROLE_GALLERY, ROLE_QUERY = "gallery", "query"


def side(photo: Photo) -> str:
    """Return what sorts a photo into gallery or queries: its role where it has one, else its source."""
    return photo.role or photo.source


def make_protocol(photos: Sequence[Photo], *, gallery_source: str = "", query_source: str = "") -> Protocol:
    """Choose gallery and query photos.

    As told; else by the `role` column; else by `source`: of the sources that photograph an item more than
    once (a clean catalogue picture an item does not), the first in alphabetical order is the gallery and the
    second asks; with fewer than two such sources every photo asks all the others.
    """
    counts: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
    for photo in photos:
        counts[side(photo)][photo.item_id] += 1
    for name, value in (("gallery_source", gallery_source), ("query_source", query_source)):
        if value and value not in counts:
            raise DataError(f"{name} {value!r} is not among the photos' sources: {', '.join(sorted(counts))}")
    if gallery_source or query_source:
        return Protocol(gallery_source or query_source, query_source or gallery_source)
    if {ROLE_GALLERY, ROLE_QUERY} <= set(counts):
        return Protocol(ROLE_GALLERY, ROLE_QUERY)
    several = sorted(s for s, by_item in counts.items() if sum(by_item.values()) > 1.5 * len(by_item))
    if len(several) >= 2:
        return Protocol(several[0], several[1])
    only = several[0] if several else next(iter(counts))
    return Protocol(only, only)


def protocol_photos(photos: Sequence[Photo], items: Sequence[str], protocol: Protocol) -> list[Photo]:
    """Return the photos of some items whose source takes part in the protocol: what the loss sees of its items."""
    wanted = set(items)
    return [p for p in photos if p.item_id in wanted and side(p) in protocol.sources]


def scene_sides(
    name: str, photos: Sequence[Photo], items: Sequence[str], protocol: Protocol
) -> tuple[list[int], list[int]]:
    """Return the positions of the photos of some items that ask, and of those that are asked; DataError for none."""
    wanted = set(items)
    inside = [i for i, photo in enumerate(photos) if photo.item_id in wanted]
    queries = [i for i in inside if side(photos[i]) == protocol.query_source]
    gallery = [i for i in inside if side(photos[i]) == protocol.gallery_source]
    if not queries or not gallery:
        raise DataError(
            f"the {name} items have {len(queries)} query and {len(gallery)} gallery photos ({protocol.describe()})",
            remedy="Name sources that the photos have with --gallery-source and --query-source",
        )
    return queries, gallery


def require_mates(name: str, photos: Sequence[Photo], items: Sequence[str], protocol: Protocol) -> None:
    """Raise DataError where no photo of these items can find another of its own item: nothing would be measured."""
    queries, gallery = scene_sides(name, photos, items, protocol)
    least = 2 if protocol.leave_one_out else 1
    mates = Counter(photos[i].item_id for i in gallery)
    if not any(mates[photos[i].item_id] >= least for i in queries):
        raise DataError(
            f"no photo of the {len(items)} {name} items has another photo of its item to find ({protocol.describe()})",
            remedy="Bring a second photo of more items",
        )
