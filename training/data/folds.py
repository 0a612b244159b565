"""Class-disjoint folds of the training items, for tuning and cross-validation.

They leave out calibration and test items. Where items have a `group` (a family of items), no group is in two folds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence

import numpy as np

from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import Splits, make_splits
from retrieval.errors import DataError, InvalidParameter, counted

Fold = tuple[tuple[str, ...], tuple[str, ...]]
FOLD_SEED = 0  # of the folds of every run and study
LEAST = 2  # items per fold: a search needs an item to be mistaken for


def item_folds(photos: Sequence[Photo], items: Sequence[str], *, folds: int, seed: int) -> list[Fold]:
    """Return (items to fit, items to validate on) of each fold, sorted.

    Every item is in the validation part of one fold. Groups stay whole: the largest come first, each into the fold
    with the fewest items. Without groups, folds differ by one item at most.

    Raises
    ------
    InvalidParameter
        For fewer than two folds, or items without photos.
    DataError
        For too few items or groups to fill the folds.
    """
    if folds < 2:
        raise InvalidParameter("folds", "be at least 2", folds)
    groups = _groups(photos, items)
    order = [list(groups.values())[i] for i in np.random.default_rng(seed).permutation(len(groups))]
    parts: list[list[str]] = [[] for _ in range(folds)]
    for members in sorted(order, key=len, reverse=True):
        min(parts, key=len).extend(members)
    if min(map(len, parts)) < LEAST:
        raise DataError(
            f"{counted(sum(map(len, parts)), 'item')} in {counted(len(groups), 'group')} do not fill {folds} folds "
            f"of at least {LEAST} items "
            "with whole groups",
            remedy="Use fewer folds, a larger share or more items",
        )
    everything = {item for part in parts for item in part}
    return [(tuple(sorted(everything.difference(part))), tuple(sorted(part))) for part in parts]


def share_of_items(photos: Sequence[Photo], items: Sequence[str], *, share: float, seed: int) -> tuple[str, ...]:
    """Return about this share of the items, sorted, as whole groups in random order."""
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


def training_items(photos: Sequence[Photo]) -> tuple[str, ...]:
    """Return the items of the training partition, fit and validation, sorted."""
    splits = make_splits(photos)
    return tuple(sorted((*splits.fit, *splits.validation)))


def fold_splits(fold: Fold) -> Splits:
    """Return the parts of a run on one fold, without calibration and test items."""
    fit, validation = fold
    return Splits(fit=fit, validation=validation, calibration=(), test=())


def _groups(photos: Sequence[Photo], items: Sequence[str]) -> dict[str, list[str]]:
    """Return the items of each group, both in alphabetical order; an item without a group forms its own."""
    group_of = {photo.item_id: photo.group or photo.item_id for photo in photos}
    unknown = sorted(set(items).difference(group_of))
    if unknown:
        raise InvalidParameter("items", "have photos", unknown[0])
    groups: dict[str, list[str]] = defaultdict(list)
    for item in sorted(set(items)):
        groups[group_of[item]].append(item)
    return dict(sorted(groups.items()))
