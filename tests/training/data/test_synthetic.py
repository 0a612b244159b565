"""The drawn catalogue: complete, deterministic, of one population, and as hard as it says."""

from __future__ import annotations

import csv
import hashlib
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval.catalogue.check import check_catalogue
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import InvalidParameter
from training.data.synthetic import make_catalogue
from training.data.synthetic.families import FAMILIES, OTHER_FAMILIES
from training.data.synthetic.population import SyntheticItem, draw_population
from training.data.synthetic.queries import BLANK, KINDS, KNOWN, NOISE, OBJECT, PLACE, SIBLING, UNKNOWN

ITEMS, PHOTOS, SIZE = 20, 4, 48


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
    assert report.duplicates == report.single_photo_items == []
    assert {photo.role for photo in photos} == {"gallery", "query"}
    assert all((photo.source == "store_a") == (photo.role == "gallery") for photo in photos)


def test_every_item_is_photographed_alike_in_both_stores(catalogue: Path) -> None:
    counts: dict[tuple[str, str], int] = defaultdict(int)
    for photo in read_catalogue(catalogue):
        counts[photo.item_id, photo.source] += 1
        with Image.open(photo.path) as image:
            assert (image.format, image.mode, image.size) == ("JPEG", "RGB", (SIZE, SIZE))
    assert set(counts.values()) == {PHOTOS // 2}
    assert len(counts) == 2 * ITEMS


@pytest.mark.slow
def test_the_same_seed_writes_the_same_bytes_and_another_seed_does_not(catalogue: Path, tmp_path: Path) -> None:
    again = make_catalogue(tmp_path / "a", items=ITEMS, photos=PHOTOS, size=SIZE, seed=3, progress=False)
    other = make_catalogue(tmp_path / "b", items=ITEMS, photos=PHOTOS, size=SIZE, seed=4, progress=False)
    assert contents(again.parent) == contents(catalogue.parent)
    assert not set(contents(other.parent).values()) & set(contents(catalogue.parent).values())


def test_partitions_share_no_group(catalogue: Path) -> None:
    photos = read_catalogue(catalogue)
    parts: dict[str, set[str]] = defaultdict(set)
    for photo in photos:
        parts[photo.group].add(photo.partition)
    assert all(len(found) == 1 for found in parts.values())
    items = {(photo.partition, photo.item_id) for photo in photos}
    assert Counter(part for part, _ in items) == {"train": 8, "calibration": 10, "test": 2}


def variants(items: Sequence[SyntheticItem], gallery: set[str]) -> float:
    """Return the mean number of variants in a gallery, by line, that an item has besides itself."""
    lines = Counter(item_id[:-1] for item_id in gallery)
    return float(np.mean([lines[item.line] - (item.item_id in gallery) for item in items]))


@pytest.mark.slow
def test_unknown_items_have_as_many_variants_in_the_catalogue_as_its_own_items() -> None:
    population = draw_population(2_000, np.random.default_rng(0))
    gallery = {item.item_id for _, item in population.catalogue}
    known = [*population.partitions["calibration"], *population.partitions["test"]]
    assert not gallery & {item.item_id for item in population.unknown}
    for items in (known, population.partitions["train"]):
        assert variants(items, gallery) == pytest.approx(variants(population.unknown, gallery), abs=0.06)
    counts = [Counter(item.family for item in items) for items in (known, population.unknown)]
    shares = [[count[family] / count.total() for family in FAMILIES] for count in counts]
    assert np.ptp(shares, axis=0).max() < 0.04


def queries(catalogue: Path) -> list[dict[str, str]]:
    with (catalogue.parent / "queries.csv").open(newline="") as file:
        return list(csv.DictReader(file))


def test_queries_are_new_photos_in_random_order(catalogue: Path) -> None:
    rows = queries(catalogue)
    kinds = [row["kind"] for row in rows]
    assert Counter(kinds) == {KNOWN: 20, UNKNOWN: 14, SIBLING: 17, OBJECT: 1, PLACE: 1, BLANK: 1, NOISE: 1}
    assert kinds != sorted(kinds, key=KINDS.index)
    assert [row["path"] for row in rows] == [f"queries/{n:04d}.jpg" for n in range(1, len(rows) + 1)]
    digests = contents(catalogue.parent)
    assert len({digests[row["path"]] for row in rows} - {digests[p.photo_id] for p in read_catalogue(catalogue)}) == 55


def test_only_known_queries_show_items_of_the_catalogue(catalogue: Path) -> None:
    items = {photo.item_id: photo for photo in read_catalogue(catalogue)}
    by_kind: dict[str, list[dict[str, str]]] = defaultdict(list)
    for row in queries(catalogue):
        by_kind[row["kind"]].append(row)
    assert {row["item_id"] for row in by_kind[KNOWN]} == set(items)
    assert not set(items) & {row["item_id"] for kind in KINDS[1:] for row in by_kind[kind]}
    groups = {photo.group for photo in items.values()}
    names = {photo.metadata["name"] for photo in items.values()}
    assert {row["group"] for row in by_kind[SIBLING]} <= groups
    assert not groups & {row["group"] for row in by_kind[UNKNOWN]}
    assert not names & {row["name"] for row in by_kind[SIBLING]}
    assert {row["name"].split(" ", 2)[2] for row in by_kind[OBJECT]} <= set(OTHER_FAMILIES)
    assert not set(OTHER_FAMILIES) & set(FAMILIES)


@pytest.mark.parametrize(("parameter", "value"), [("items", 9), ("photos", 3), ("photos", 0), ("size", 31)])
def test_arguments_that_make_no_catalogue_are_refused(tmp_path: Path, parameter: str, value: int) -> None:
    arguments = {"items": 10, "photos": 2, "size": 32, parameter: value}
    with pytest.raises(InvalidParameter, match=parameter):
        make_catalogue(tmp_path, progress=False, **arguments)
    assert not list(tmp_path.iterdir())
