"""Splits of a catalogue with new items: items that stay, the parts of new items, and refusals."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from retrieval.catalogue.extended_splits import extend_splits
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.splits import PARTS, Splits, make_splits
from retrieval.errors import DataError


def photo(item: str, group: str = "", partition: str = "") -> Photo:
    return Photo(item, Path(item), item, group=group, partition=partition)


OLD = [photo(f"old-{number:02d}") for number in range(20)]
NEW = [photo(f"new-{number:02d}") for number in range(20)]
SPLITS = make_splits(OLD, seed=3)


def sizes(splits: Splits) -> list[int]:
    return [len(getattr(splits, part)) for part in PARTS]


def test_known_items_keep_their_part_and_new_ones_are_divided_by_the_same_shares() -> None:
    extended = extend_splits(SPLITS, [*NEW, *OLD], seed=3)
    for part in PARTS:
        items = getattr(extended, part)
        assert set(getattr(SPLITS, part)) == {item for item in items if item.startswith("old")}
        assert list(items) == sorted(items)
    assert [a - b for a, b in zip(sizes(extended), sizes(SPLITS), strict=True)] == sizes(make_splits(NEW, seed=0))
    assert extended == extend_splits(SPLITS, [*OLD, *NEW], seed=3)
    assert extended != extend_splits(SPLITS, [*OLD, *NEW], seed=4)


def test_items_that_are_gone_are_left_out_and_a_single_new_item_is_fitted_on() -> None:
    kept = OLD[1:]
    extended = extend_splits(SPLITS, [*kept, NEW[0]], seed=0)
    everything = {item for part in PARTS for item in getattr(extended, part)}
    assert everything == {p.item_id for p in kept} | {"new-00"}
    assert "new-00" in extended.fit


@pytest.mark.parametrize("part", PARTS)
def test_a_new_item_joins_the_part_of_its_group(part: str) -> None:
    one = getattr(SPLITS, part)[0]
    old = [replace(p, group="family") if p.item_id == one else p for p in OLD]
    extended = extend_splits(SPLITS, [*old, *(replace(p, group="family") for p in NEW[:3])], seed=0)
    assert {"new-00", "new-01", "new-02"} <= set(getattr(extended, part))


def test_a_group_that_was_fitted_on_is_never_held_out() -> None:
    divided = {SPLITS.test[0], SPLITS.fit[0]}
    old = [replace(p, group="family") if p.item_id in divided else p for p in OLD]
    assert "new-00" in extend_splits(SPLITS, [*old, replace(NEW[0], group="family")], seed=0).fit


@pytest.mark.parametrize("part", PARTS[1:])
def test_an_item_that_became_a_variant_of_a_fitted_one_joins_it(part: str) -> None:
    variant, others = getattr(SPLITS, part)[0], set(getattr(SPLITS, part)[1:])
    old = [replace(p, group="family") if p.item_id in {variant, SPLITS.fit[0]} else p for p in OLD]
    extended = extend_splits(SPLITS, old, seed=0)
    assert set(getattr(extended, part)) == others
    assert set(extended.fit) == {*SPLITS.fit, variant}


def test_new_variants_of_fitted_items_that_are_gone_are_fitted() -> None:
    fresh = [replace(p, group=f"g{number % 4}") for number, p in enumerate(NEW)]
    seen = {replace(fresh[0], item_id="gone").group_key, OLD[0].item_id}
    extended = extend_splits(SPLITS, [*OLD, *fresh], seed=0, is_fitted=lambda photo: photo.group_key in seen)
    assert {p.item_id for p in fresh if p.group == "g0"} <= set(extended.fit)
    assert {p.item_id for p in fresh} & {*extended.validation, *extended.calibration, *extended.test}
    assert extended.fit[: len(SPLITS.fit)] != extended.fit
    assert set(SPLITS.test) <= set(extended.test)


def test_new_items_that_are_named_for_validation_choose_checkpoints() -> None:
    new = [replace(p, partition="validation" if number in (3, 1) else "train") for number, p in enumerate(NEW)]
    extended = extend_splits(SPLITS, [*OLD, *new], seed=0)
    assert {"new-01", "new-03"} <= set(extended.validation)
    assert sizes(extended)[1] - sizes(SPLITS)[1] == round(0.2 * len(NEW))


def test_new_items_of_one_group_join_one_part() -> None:
    family = [replace(NEW[0], group="family", partition="test"), *(replace(p, group="family") for p in NEW[1:4])]
    extended = extend_splits(SPLITS, [*OLD, *family], seed=0)
    assert {"new-00", "new-01", "new-02", "new-03"} <= set(extended.test)
    with pytest.raises(DataError, match="in several partitions: family"):
        extend_splits(SPLITS, [*OLD, *family, replace(NEW[5], group="family", partition="calibration")], seed=0)


def test_the_partition_of_a_new_item_decides() -> None:
    new = [
        replace(p, partition=name)
        for p, name in zip(NEW, ["test", "calibration", *["train"] * 8, *[""] * 10], strict=True)
    ]
    extended = extend_splits(SPLITS, [*OLD, *new], seed=0)
    assert "new-00" in extended.test
    assert "new-01" in extended.calibration
    assert not {f"new-{number:02d}" for number in range(2, 10)} & {*extended.test, *extended.calibration}
    assert sizes(extended)[3] - sizes(SPLITS)[3] == 1 + 2  # a fifth of the ten without a partition


@pytest.mark.parametrize(("part", "partition"), [("fit", "test"), ("validation", "calibration"), ("test", "train")])
def test_a_partition_that_contradicts_the_earlier_run_is_refused(part: str, partition: str) -> None:
    item = getattr(SPLITS, part)[0]
    photos = [replace(p, partition=partition) if p.item_id == item else p for p in OLD]
    with pytest.raises(DataError, match=f"{item} has the partition {partition}, but in the earlier run.*--from"):
        extend_splits(SPLITS, photos, seed=0)


def test_earlier_partitions_may_be_repeated_and_others_are_refused() -> None:
    name = {"fit": "train", "validation": "train", "calibration": "calibration", "test": "test"}
    part_of = {item: part for part in PARTS for item in getattr(SPLITS, part)}
    photos = [replace(p, partition=name[part_of[p.item_id]]) for p in OLD]
    assert extend_splits(SPLITS, photos, seed=0) == SPLITS
    with pytest.raises(DataError, match=r"partition column has \['tset'\]"):
        extend_splits(SPLITS, [*OLD, replace(NEW[0], partition="tset")], seed=0)
    with pytest.raises(DataError, match="new-00 is in several partitions: test, train"):
        extend_splits(SPLITS, [replace(NEW[0], partition="test"), replace(NEW[0], partition="train")], seed=0)
