"""Splits of a catalogue with new items: known items keep their part, new ones are divided by the rules of `splits`.

An item that the model was fitted on never becomes a held-out item. The model is never fitted on a held-out item, unless
its group has fitted ones by now: then it is a variant of these.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence

import numpy as np

from retrieval.errors import DataError

from .photos import Photo
from .splits import CALIBRATION_SHARE, PARTS, TEST_SHARE, VALIDATION_SHARE, Splits, partitions_of_groups, take_groups

FIT, VALIDATION, CALIBRATION, TEST = PARTS
PARTITION = {FIT: "train", VALIDATION: "train", CALIBRATION: "calibration", TEST: "test"}  # by part
GIVEN = frozenset(("", "train", "validation", "calibration", "test"))


def extend_splits(
    splits: Splits, photos: Sequence[Photo], *, seed: int, is_fitted: Callable[[Photo], bool] = lambda _: False
) -> Splits:
    """Return the splits of a catalogue that contains items of earlier splits and new ones.

    An item joins the part of its group if the group has earlier items: the first one in the order of `PARTS`. It is
    fitted if `is_fitted` says so of a photo of its group: of a fitted item that is gone or has another name now. Other
    new items join the part that their `partition` names, or that of their group, or else a random part with the shares
    of `make_splits`. Items that the catalogue no longer has are left out.

    Raises DataError if the partition of an item contradicts its part, or is unknown, or if partitions divide a group.
    """
    part_of = {item: part for part in PARTS for item in getattr(splits, part)}
    given: dict[str, set[str]] = defaultdict(set)
    for photo in photos:
        given[photo.item_id].add(photo.partition)
    for item, partitions in given.items():
        _check_partition(item, partitions, part_of.get(item))
    partition_of_group = partitions_of_groups(photos)
    group_of = {photo.item_id: photo.group or photo.item_id for photo in photos}
    known = {item: part_of[item] for item in group_of if item in part_of}
    fitted = {group_of[photo.item_id] for photo in photos if is_fitted(photo)}
    part_of_group = _part_of_groups(known, group_of) | dict.fromkeys(fitted, FIT)
    found = {item: part_of_group[group] for item, group in group_of.items() if group in part_of_group}
    partition = {
        item: max(given[item]) or partition_of_group.get(group, "")
        for item, group in group_of.items()
        if item not in found
    }
    found |= _distribute(set(partition), partition, group_of, np.random.default_rng(seed))
    return Splits(*(tuple(sorted(item for item, place in found.items() if place == part)) for part in PARTS))


def _check_partition(item: str, partitions: set[str], part: str | None) -> None:
    named = partitions - {""}
    if unknown := sorted(named - GIVEN):
        raise DataError(
            f"the partition column has {unknown}", remedy="Use train, calibration or test, or leave the column out"
        )
    if len(named) > 1:
        raise DataError(f"the item {item} is in several partitions: {', '.join(sorted(named))}")
    wanted = next(iter(named), "")
    if part is not None and wanted and {"validation": "train"}.get(wanted, wanted) != PARTITION[part]:
        raise DataError(
            f"the item {item} has the partition {wanted}, but in the earlier run it was in {PARTITION[part]}",
            remedy="Give it its earlier partition or none, or train without --from",
        )


def _part_of_groups(part_of: Mapping[str, str], group_of: Mapping[str, str]) -> dict[str, str]:
    """Return the part of each group; for a divided group, the first of its parts in the order of PARTS."""
    parts: dict[str, str] = {}
    for item, part in part_of.items():
        group = group_of[item]
        parts[group] = min(part, parts.get(group, part), key=PARTS.index)
    return parts


def _distribute(
    items: set[str], partition: Mapping[str, str], group_of: dict[str, str], generator: np.random.Generator
) -> dict[str, str]:
    """Return the part of each new item: that of its partition, or a random one."""
    test = {item for item in items if partition[item] == "test"}
    calibration = {item for item in items if partition[item] == "calibration"}
    free = {item for item in items if not partition[item]}
    count = len(free)
    drawn = take_groups(free, group_of, TEST_SHARE * count, generator)
    test |= drawn
    calibration |= take_groups(free - drawn, group_of, CALIBRATION_SHARE * count, generator)
    train = items - test - calibration
    named = {item for item in items if partition[item] == "validation"}
    validation = named | take_groups(train - named, group_of, VALIDATION_SHARE * len(train) - len(named), generator)
    parts = {FIT: train - validation, VALIDATION: validation, CALIBRATION: calibration, TEST: test}
    return {item: part for part, members in parts.items() for item in members}
