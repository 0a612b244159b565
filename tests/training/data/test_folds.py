from pathlib import Path

import pytest

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.splits import make_splits
from retrieval.errors import DataError, InvalidParameter
from training.data.folds import fold_splits, item_folds, share_of_items, training_items


def photos_of(groups: dict[str, int]) -> list[Photo]:
    """Return two photos of each item; a group of name "" gives items without one."""
    return [
        Photo(f"{group}{item}-{number}", Path("none.jpg"), f"{group or 'lone'}-{item}", group)
        for group, items in groups.items()
        for item in range(items)
        for number in range(2)
    ]


def items_of(photos: list[Photo]) -> list[str]:
    return sorted({photo.item_id for photo in photos})


@pytest.mark.parametrize("folds", [2, 3, 4])
def test_every_item_is_validated_on_once_and_never_fitted_then(folds: int) -> None:
    photos = photos_of({"": 22})
    made = item_folds(photos, items_of(photos), folds=folds, seed=0)
    assert len(made) == folds
    assert sorted(item for _, validation in made for item in validation) == items_of(photos)
    for fit, validation in made:
        assert not set(fit) & set(validation)
        assert sorted((*fit, *validation)) == items_of(photos)
    sizes = [len(validation) for _, validation in made]
    assert max(sizes) - min(sizes) <= 1


def test_groups_stay_whole_and_folds_stay_even() -> None:
    photos = photos_of({"a": 5, "b": 4, "c": 3, "d": 3, "e": 2, "": 3})
    group_of = {photo.item_id: photo.group or photo.item_id for photo in photos}
    made = item_folds(photos, items_of(photos), folds=4, seed=3)
    for fit, validation in made:
        assert not {group_of[item] for item in fit} & {group_of[item] for item in validation}
    assert sorted(len(validation) for _, validation in made) == [5, 5, 5, 5]


def test_only_the_items_asked_for_take_part() -> None:
    photos = photos_of({"": 12})
    wanted = items_of(photos)[:8]
    made = item_folds(photos, wanted, folds=2, seed=0)
    assert {item for fold in made for part in fold for item in part} == set(wanted)


def test_the_seed_decides() -> None:
    photos = photos_of({"": 20})
    one, same, other = (item_folds(photos, items_of(photos), folds=4, seed=seed) for seed in (0, 0, 1))
    assert one == same
    assert one != other


@pytest.mark.parametrize(("groups", "folds"), [({"a": 10, "b": 10}, 3), ({"": 5}, 3), ({"a": 1, "b": 9}, 2)])
def test_too_few_items_or_groups_are_refused(groups: dict[str, int], folds: int) -> None:
    photos = photos_of(groups)
    with pytest.raises(DataError, match=f"do not fill {folds} folds.*fewer folds"):
        item_folds(photos, items_of(photos), folds=folds, seed=0)


def test_one_fold_and_strangers_are_refused() -> None:
    photos = photos_of({"": 6})
    with pytest.raises(InvalidParameter, match="folds must be at least 2"):
        item_folds(photos, items_of(photos), folds=1, seed=0)
    with pytest.raises(InvalidParameter, match="'stranger'"):
        item_folds(photos, ["stranger"], folds=2, seed=0)


def test_a_share_takes_whole_groups_near_to_it() -> None:
    photos = photos_of({"a": 4, "b": 4, "c": 4, "d": 4, "": 24})
    taken = share_of_items(photos, items_of(photos), share=0.5, seed=0)
    assert len(taken) == 20
    for group in "abcd":
        assert len([item for item in taken if item.startswith(f"{group}-")]) in (0, 4)
    assert share_of_items(photos, items_of(photos), share=1.0, seed=0) == tuple(items_of(photos))
    with pytest.raises(InvalidParameter, match="share must lie in"):
        share_of_items(photos, items_of(photos), share=0.0, seed=0)


def test_training_items_are_neither_calibration_nor_test_items(catalogue: Path) -> None:
    photos = read_catalogue(catalogue)
    splits = make_splits(photos)
    items = training_items(photos)
    assert set(items) == {*splits.fit, *splits.validation}
    assert not set(items) & {*splits.calibration, *splits.test}
    parts = fold_splits(item_folds(photos, items, folds=2, seed=0)[0])
    assert parts.calibration == parts.test == ()
    assert {*parts.fit, *parts.validation} == set(items)
