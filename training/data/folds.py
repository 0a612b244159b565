"""Class-disjoint folds of the training items: what is tuned or cross-validated never meets calibration or test items.

Where items carry a `group` (a product family), no group is in two folds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, InvalidParameter

from .splits import Splits, make_splits

Fold = tuple[tuple[str, ...], tuple[str, ...]]
LEAST = 2  # items of a part: with fewer there is no other item to be mistaken for


def class_folds(photos: Sequence[Photo], items: Sequence[str], *, folds: int, seed: int) -> list[Fold]:
    """Return (items to fit, items to validate on) of each fold, sorted.

    Every item is validated on once. Groups stay whole; the largest are dealt first, each to the fold with the
    fewest items, so that folds differ by one item at most where there are no groups.

    Raises
    ------
    InvalidParameter
        For fewer than two folds, or items that the photos do not have.
    DataError
        Where the items, or their groups, do not fill so many folds.
    """
    if folds < 2:
        raise InvalidParameter("folds", "be at least 2", folds)
    groups = _groups(photos, items)
    _check_enough(groups, folds)
    order = [list(groups.values())[i] for i in np.random.default_rng(seed).permutation(len(groups))]
    parts: list[list[str]] = [[] for _ in range(folds)]
    for members in sorted(order, key=len, reverse=True):
        min(parts, key=len).extend(members)
    if min(map(len, parts)) < LEAST:
        raise _too_few(groups, folds)
    everything = {item for part in parts for item in part}
    return [(tuple(sorted(everything.difference(part))), tuple(sorted(part))) for part in parts]


def share_of_items(photos: Sequence[Photo], items: Sequence[str], *, share: float, seed: int) -> tuple[str, ...]:
    """Return about this share of the items, sorted: whole groups in random order while they come nearer to it."""
    if not 0 < share <= 1:
        raise InvalidParameter("share", "lie in (0, 1]", share)
    groups = list(_groups(photos, items).values())
    wanted = share * sum(map(len, groups))
    taken: list[str] = []
    for position in np.random.default_rng(seed).permutation(len(groups)):
        members = groups[position]
        if abs(len(taken) + len(members) - wanted) <= abs(len(taken) - wanted):
            taken.extend(members)
    return tuple(sorted(taken))


def training_items(photos: Sequence[Photo], *, seed: int) -> tuple[str, ...]:
    """Return the items that training may see, sorted: those it fits and those it chooses checkpoints on."""
    splits = make_splits(photos, seed=seed)
    return tuple(sorted((*splits.fit, *splits.validation)))


def fold_splits(fold: Fold) -> Splits:
    """Return the parts of a run on one fold: nothing is left to calibrate or to test on."""
    fit, validation = fold
    return Splits(fit=fit, validation=validation, calibration=(), test=())


def _groups(photos: Sequence[Photo], items: Sequence[str]) -> dict[str, list[str]]:
    """Return the items of each group, both in alphabetical order; an item without a group is one of its own."""
    group_of = {photo.item_id: photo.group or photo.item_id for photo in photos}
    unknown = sorted(set(items).difference(group_of))
    if unknown:
        raise InvalidParameter("items", "be items of the photos", unknown[0])
    found: dict[str, list[str]] = defaultdict(list)
    for item in sorted(set(items)):
        found[group_of[item]].append(item)
    return dict(sorted(found.items()))


def _check_enough(groups: dict[str, list[str]], folds: int) -> None:
    if len(groups) < folds or sum(map(len, groups.values())) < LEAST * folds:
        raise _too_few(groups, folds)


def _too_few(groups: dict[str, list[str]], folds: int) -> DataError:
    return DataError(
        f"{sum(map(len, groups.values()))} items in {len(groups)} groups do not fill {folds} folds of at least "
        f"{LEAST} items with whole groups",
        remedy="Take fewer folds or a larger share, or bring more items",
    )
