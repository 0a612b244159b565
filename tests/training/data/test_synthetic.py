"""The drawn catalogue: complete, deterministic, of one population, and with the queries that it lists."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter, defaultdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval.catalogue.check import check_catalogue
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import InvalidParameter
from training.data.synthetic import make_catalogue
from training.data.synthetic.catalogue import KINDS, KNOWN, PLACE, UNKNOWN, VARIANT
from training.data.synthetic.things import FAMILIES, SPRITE, draw_design, draw_thing, draw_variants

ITEMS, PHOTOS, SIZE = 40, 3, 48


@pytest.fixture(scope="module")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_catalogue(
        tmp_path_factory.mktemp("drawn"), items=ITEMS, photos=PHOTOS, size=SIZE, seed=3, progress=False
    )


def contents(directory: Path) -> dict[str, str]:
    files = sorted(f for f in directory.rglob("*") if f.is_file())
    return {f.relative_to(directory).as_posix(): hashlib.sha256(f.read_bytes()).hexdigest() for f in files}


def test_our_own_reader_finds_nothing_wrong(catalogue: Path) -> None:
    photos = read_catalogue(catalogue)
    report = check_catalogue(photos, progress=False)
    assert (report.photos, report.items) == (ITEMS * PHOTOS, ITEMS)
    assert report.usable
    assert not report.duplicates
    assert not report.single_photo_items
    assert set(Counter(photo.item_id for photo in photos).values()) == {PHOTOS}
    assert {photo.metadata["family"] for photo in photos} == set(FAMILIES)
    for photo in photos:
        with Image.open(photo.path) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (SIZE, SIZE))


def test_the_same_seed_writes_the_same_bytes_and_another_seed_does_not(tmp_path: Path) -> None:
    first, again, other = (
        make_catalogue(tmp_path / name, items=10, photos=2, size=SIZE, seed=seed, progress=False).parent
        for name, seed in (("a", 3), ("b", 3), ("c", 4))
    )
    assert contents(first) == contents(again)
    assert not set(contents(first).values()) & set(contents(other).values())


def test_partitions_share_no_group(catalogue: Path) -> None:
    photos = read_catalogue(catalogue)
    parts: dict[str, set[str]] = defaultdict(set)
    for photo in photos:
        parts[photo.group].add(photo.partition)
    assert all(len(named) == 1 for named in parts.values())
    items = {(photo.partition, photo.item_id) for photo in photos}
    assert Counter(part for part, _ in items) == {"train": 16, "calibration": 12, "test": 12}


def queries(catalogue: Path) -> list[dict[str, str]]:
    with (catalogue.parent / "queries.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_queries_are_new_photos_in_random_order(catalogue: Path) -> None:
    rows = queries(catalogue)
    kinds = [row["kind"] for row in rows]
    assert [kinds.count(kind) for kind in (KNOWN, UNKNOWN, PLACE)] == [ITEMS, ITEMS, 2]
    assert set(kinds) == set(KINDS)
    assert kinds != sorted(kinds, key=KINDS.index)
    assert [row["path"] for row in rows] == [f"queries/{n:04d}.jpg" for n in range(1, len(rows) + 1)]
    digests = contents(catalogue.parent)
    assert len(set(digests.values())) == len(digests)


def test_only_known_queries_show_items_of_the_catalogue(catalogue: Path) -> None:
    items = {photo.item_id: photo for photo in read_catalogue(catalogue)}
    by_kind: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in queries(catalogue):
        by_kind[row["kind"]].append(row)
    assert {row["item_id"] for row in by_kind[KNOWN]} == set(items)
    assert not set(items) & {row["item_id"] for kind in KINDS[1:] for row in by_kind[kind]}
    groups = Counter(photo.group for photo in items.values())
    pairs = {group for group, count in groups.items() if count == 2}
    assert pairs <= {row["group"] for row in by_kind[VARIANT]} <= set(groups)
    assert not set(groups) & {row["group"] for row in by_kind[UNKNOWN]}


def test_three_of_a_kind_differ_in_word_emblem_and_accent_alone() -> None:
    generator = np.random.default_rng(0)
    for _ in range(50):
        design = draw_design(generator)
        three = [design, *draw_variants(design, 2, generator)]
        assert {len({getattr(each, name) for each in three}) for name in ("word", "emblem", "accent")} == {3}
        for name in ("brand", "body", "label", "trim", "pattern", "repeats"):
            assert len({getattr(each, name) for each in three}) == 1


@pytest.mark.parametrize("family", FAMILIES)
def test_things_stand_clear_of_their_background_and_show_their_design(family: str) -> None:
    generator = np.random.default_rng(1)
    design = draw_design(generator)
    first, second = (draw_thing(family, each) for each in (design, *draw_variants(design, 1, generator)))
    assert (first.mode, first.size) == ("RGBA", (SPRITE, SPRITE))
    shape, other = (np.asarray(each.getchannel("A")) for each in (first, second))
    assert 0.2 < (shape > 0).mean() < 0.9
    np.testing.assert_array_equal(shape, other)
    assert 0.01 < np.any(np.asarray(first) != np.asarray(second), axis=2).mean() < 0.5


@pytest.mark.parametrize(("parameter", "value"), [("items", 9), ("photos", 1), ("size", 31)])
def test_arguments_that_make_no_catalogue_are_refused(tmp_path: Path, parameter: str, value: int) -> None:
    arguments = {"items": 10, "photos": 2, "size": 32, parameter: value}
    with pytest.raises(InvalidParameter, match=parameter):
        make_catalogue(tmp_path, progress=False, **arguments)
    assert not list(tmp_path.iterdir())
