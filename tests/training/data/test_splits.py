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
    splits = make_splits(photos, seed=3)
    parts = [set(getattr(splits, part)) for part in PARTS]
    assert sum(map(len, parts)) == len(set.union(*parts)) == 60
    group_of = {p.item_id: p.group for p in photos}
    groups = [{group_of[item] for item in part} for part in parts]
    assert sum(map(len, groups)) == len(set.union(*groups)) == 20


def test_validation_is_about_a_fifth_of_the_training_items() -> None:
    for seed in range(5):
        splits = make_splits(catalogue(), seed=seed)
        share = len(splits.validation) / (len(splits.validation) + len(splits.fit))
        assert 0.12 <= share <= 0.28


def test_the_seed_decides() -> None:
    assert make_splits(catalogue(), seed=1) == make_splits(catalogue(), seed=1)
    assert make_splits(catalogue(), seed=1) != make_splits(catalogue(), seed=2)


def test_given_partitions_are_kept() -> None:
    photos = [photo(f"t{n}", partition="train") for n in range(10)]
    photos += [photo(f"c{n}", partition="calibration") for n in range(3)]
    photos += [photo(f"e{n}", partition="test") for n in range(4)]
    splits = make_splits(photos, seed=0)
    assert splits.calibration == ("c0", "c1", "c2")
    assert splits.test == ("e0", "e1", "e2", "e3")
    assert len(splits.validation) == 2
    assert Splits.from_dict(splits.to_dict()) == splits


def test_given_validation_items_are_the_validation_items() -> None:
    photos = [photo(f"t{n}", partition="train") for n in range(10)]
    photos += [photo(f"v{n}", partition="validation") for n in range(3)]
    splits = make_splits(photos, seed=0)
    assert splits.validation == ("v0", "v1", "v2")
    assert splits.fit == tuple(sorted(f"t{n}" for n in range(10)))


def test_an_item_in_two_partitions_is_refused() -> None:
    photos = [photo(f"t{n}", partition="train") for n in range(10)] + [photo("t3", partition="test", n=1)]
    with pytest.raises(DataError, match="t3"):
        make_splits(photos, seed=0)


def test_a_group_in_two_partitions_is_refused() -> None:
    photos = [photo(f"t{n}", partition="train", group="mugs" if n == 3 else "") for n in range(10)]
    tested = [photo(f"e{n}", partition="test") for n in range(3)]
    assert make_splits([*photos, *tested], seed=0).test == ("e0", "e1", "e2")
    with pytest.raises(DataError, match="in several partitions: mugs"):
        make_splits([*photos, *tested, photo("e3", partition="test", group="mugs")], seed=0)


def test_too_few_items_are_refused_with_a_remedy() -> None:
    with pytest.raises(DataError, match="at least 8 for training"):
        make_splits([photo(f"t{n}", partition="train") for n in range(7)], seed=0)
    with pytest.raises(DataError, match="Add items: at least 14"):
        make_splits([photo(f"t{n}") for n in range(13)], seed=0)
    for seed in range(10):
        make_splits([photo(f"t{n}", partition="train") for n in range(8)], seed=seed)
        for items in range(14, 40):
            make_splits([photo(f"t{n}") for n in range(items)], seed=seed)


def test_protocol_prefers_roles_then_sources_with_several_photos() -> None:
    roles = [photo("a", role="gallery"), photo("a", role="query")]
    assert make_evaluation_protocol(roles) == EvaluationProtocol("gallery", "query")
    shops = [photo("a", source=s, n=n) for s in ("store_a", "store_b") for n in range(3)]
    iconic = [photo("a", source="iconic")]
    assert make_evaluation_protocol(shops + iconic) == EvaluationProtocol("store_a", "store_b")
    assert make_evaluation_protocol([photo("a", n=n) for n in range(3)]).leave_one_out
