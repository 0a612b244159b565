from pathlib import Path

import pytest

from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import PARTS, EvaluationProtocol, Splits, make_evaluation_protocol, make_splits
from retrieval.errors import DataError


def photo(item: str, *, group: str = "", source: str = "", partition: str = "", role: str = "", n: int = 0) -> Photo:
    name = f"{item}-{source}-{role}-{n}"
    return Photo(name, Path("x.jpg"), item, group=group, source=source, partition=partition, role=role)


def catalogue() -> list[Photo]:
    return [photo(f"i{n:02d}", group=f"g{n // 3}") for n in range(60)]


def test_parts_are_disjoint_by_item_and_by_group_and_complete() -> None:
    photos = catalogue()
    splits = make_splits(photos)
    parts = [set(getattr(splits, part)) for part in PARTS]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 60
    group_of = {p.item_id: p.group for p in photos}
    groups = [{group_of[item] for item in part} for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 20


def test_validation_is_about_a_fifth_of_the_training_items() -> None:
    splits = make_splits(catalogue())
    share = len(splits.validation) / (len(splits.validation) + len(splits.fit))
    assert 0.12 <= share <= 0.28


def test_parts_have_their_shares_and_do_not_depend_on_the_order_of_photos() -> None:
    for items in (20, 60, 500):
        photos = [photo(f"i{n}") for n in range(items)]
        splits = make_splits(photos)
        assert splits == make_splits(photos[::-1])
        sizes = [len(getattr(splits, part)) for part in PARTS]
        train = items - 2 * round(0.2 * items)
        assert sizes == [train - round(0.2 * train), round(0.2 * train), *[round(0.2 * items)] * 2]


def test_items_that_come_or_go_move_only_groups_at_the_ends_of_parts() -> None:
    """Each group moves to the part beside its own: calibration and test items are never fitted."""
    order = ("test", "calibration", "validation", "fit")
    old = [photo(f"i{n}", group=f"g{n // 2}") for n in range(400)]
    before = part_of(make_splits(old))
    for photos in (old[:300], [*old, photo("new")], [*old, *(photo(f"new-{n}") for n in range(200))]):
        after = part_of(make_splits(photos))
        moved = [(before[item], after[item]) for item in before.keys() & after.keys() if before[item] != after[item]]
        assert len(moved) <= 0.1 * len(before)
        assert all(abs(order.index(first) - order.index(second)) == 1 for first, second in moved)


def part_of(splits: Splits) -> dict[str, str]:
    return {item: part for part in PARTS for item in getattr(splits, part)}


def test_what_was_fitted_is_never_held_out_nor_are_its_groups() -> None:
    photos = [photo(f"i{n:02d}", group=f"g{n // 2}") for n in range(60)]
    plain = make_splits(photos)
    fitted = {plain.test[0], plain.validation[0], plain.calibration[0]}
    groups = {p.group for p in photos if p.item_id in fitted}
    splits = make_splits(photos, fitted=fitted)
    assert {p.item_id for p in photos if p.group in groups} <= set(splits.fit)
    assert [len(getattr(splits, part)) for part in PARTS] == [len(getattr(plain, part)) for part in PARTS]
    assert make_splits(photos, fitted=set(plain.fit)) == plain
    everything = make_splits(photos, fitted={p.item_id for p in photos})
    assert len(everything.fit) == 60


def test_partitions_of_some_items_leave_the_rest_to_the_shares() -> None:
    new = [photo(f"n{n}", partition=name) for n, name in enumerate(["test", "calibration", *["train"] * 8, *[""] * 10])]
    splits = make_splits(new)
    assert "n0" in splits.test
    assert "n1" in splits.calibration
    assert not {f"n{n}" for n in range(2, 10)} & {*splits.test, *splits.calibration}
    assert (len(splits.test), len(splits.calibration)) == (1 + 2, 1 + 2)  # a fifth of the ten without a partition
    family = [photo("f0", group="f", partition="test"), *(photo(f"f{n}", group="f") for n in range(1, 4))]
    assert {"f0", "f1", "f2", "f3"} <= set(make_splits([*new, *family]).test)


def test_partitions_that_hold_out_what_was_fitted_or_are_unknown_are_refused() -> None:
    photos = [photo(f"t{n}") for n in range(20)]
    for partition in ("test", "calibration", "validation"):
        with pytest.raises(DataError, match=r"the earlier run was fitted on items .* holds out now: t3.*--from"):
            make_splits([*photos[:3], photo("t3", partition=partition), *photos[4:]], fitted={"t3"})
    assert "t3" in make_splits([*photos[:3], photo("t3", partition="train"), *photos[4:]], fitted={"t3"}).fit
    with pytest.raises(DataError, match=r"partition column has \['tset'\]"):
        make_splits([*photos, photo("new", partition="tset")])


def test_given_partitions_are_kept() -> None:
    photos = [photo(f"t{n}", partition="train") for n in range(10)]
    photos += [photo(f"c{n}", partition="calibration") for n in range(3)]
    photos += [photo(f"e{n}", partition="test") for n in range(4)]
    splits = make_splits(photos)
    assert splits.calibration == ("c0", "c1", "c2")
    assert splits.test == ("e0", "e1", "e2", "e3")
    assert len(splits.validation) == 2
    assert Splits.from_dict(splits.to_dict()) == splits


def test_given_validation_items_are_the_validation_items() -> None:
    photos = [photo(f"t{n}", partition="train") for n in range(10)]
    photos += [photo(f"v{n}", partition="validation") for n in range(3)]
    splits = make_splits(photos)
    assert splits.validation == ("v0", "v1", "v2")
    assert splits.fit == tuple(sorted(f"t{n}" for n in range(10)))


def test_an_item_in_two_partitions_is_refused() -> None:
    photos = [photo(f"t{n}", partition="train") for n in range(10)] + [photo("t3", partition="test", n=1)]
    with pytest.raises(DataError, match="t3"):
        make_splits(photos)


def test_a_group_in_two_partitions_is_refused() -> None:
    photos = [photo(f"t{n}", partition="train", group="mugs" if n == 3 else "") for n in range(10)]
    tested = [photo(f"e{n}", partition="test") for n in range(3)]
    assert make_splits([*photos, *tested]).test == ("e0", "e1", "e2")
    with pytest.raises(DataError, match="in several partitions: mugs"):
        make_splits([*photos, *tested, photo("e3", partition="test", group="mugs")])


def test_too_few_items_are_refused_with_a_remedy() -> None:
    with pytest.raises(DataError, match="at least 8 for training"):
        make_splits([photo(f"t{n}", partition="train") for n in range(7)])
    with pytest.raises(DataError, match="Add items: at least 14"):
        make_splits([photo(f"t{n}") for n in range(13)])
    for name in "tuv":
        make_splits([photo(f"{name}{n}", partition="train") for n in range(8)])
        for items in range(14, 40):
            make_splits([photo(f"{name}{n}") for n in range(items)])


def test_protocol_prefers_roles_then_sources_with_several_photos() -> None:
    roles = [photo("a", role="gallery"), photo("a", role="query")]
    assert make_evaluation_protocol(roles) == EvaluationProtocol("gallery", "query")
    shops = [photo("a", source=s, n=n) for s in ("store_a", "store_b") for n in range(3)]
    iconic = [photo("a", source="iconic")]
    assert make_evaluation_protocol(shops + iconic) == EvaluationProtocol("store_a", "store_b")
    assert make_evaluation_protocol([photo("a", n=n) for n in range(3)]).leave_one_out
