"""The drawn catalogue: complete, deterministic, family-disjoint, and as hard as it says."""

from __future__ import annotations

import csv
import hashlib
from collections import defaultdict
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval.catalogue.read import check_catalogue, read_catalogue
from retrieval.errors import InvalidParameter
from training.data.synthetic import make_catalogue
from training.data.synthetic.designs import draw_family
from training.data.synthetic.families import FAMILIES, UNKNOWN
from training.data.synthetic.photos import STORES, Studio, turns

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


def test_the_same_seed_writes_the_same_bytes_and_another_seed_does_not(catalogue: Path, tmp_path: Path) -> None:
    again = make_catalogue(tmp_path / "a", items=ITEMS, photos=PHOTOS, size=SIZE, seed=3, progress=False)
    other = make_catalogue(tmp_path / "b", items=ITEMS, photos=PHOTOS, size=SIZE, seed=4, progress=False)
    assert contents(again.parent) == contents(catalogue.parent)
    assert not set(contents(other.parent).values()) & set(contents(catalogue.parent).values())


def test_partitions_share_no_family(catalogue: Path) -> None:
    parts: dict[str, set[str]] = defaultdict(set)
    for photo in read_catalogue(catalogue):
        parts[photo.group].add(photo.partition)
    assert all(len(found) == 1 for found in parts.values())
    sizes = [sum(found == {part} for found in parts.values()) for part in ("train", "calibration", "test")]
    assert sizes == [6, 2, 2]


def test_which_families_are_tested_is_chance(tmp_path: Path) -> None:
    tested = set()
    for seed in range(3):
        path = make_catalogue(tmp_path / str(seed), items=10, photos=2, size=32, seed=seed, progress=False)
        tested.add(frozenset(p.group for p in read_catalogue(path) if p.partition == "test"))
    assert len(tested) > 1


def test_the_unknown_are_outside_the_catalogue(catalogue: Path) -> None:
    names = {f.stem.rpartition("-")[0] for f in (catalogue.parent / "unknown").glob("*.jpg")}
    assert names == {name.replace(" ", "-") for name in UNKNOWN}
    assert not set(UNKNOWN) & set(FAMILIES)
    with catalogue.open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert not any(row["path"].startswith("unknown") or row["group"] in UNKNOWN for row in rows)


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_shows_what_its_products_differ_in(family: str) -> None:
    shape = FAMILIES[family]
    designs = draw_family(6, density=0.8, generator=np.random.default_rng(0))
    sprites = [np.asarray(shape.render(design, [0.0])[0], int) for design in designs]
    assert all(sprite[..., 3].mean() > 12 for sprite in sprites)  # there is something to see
    for i, one in enumerate(sprites):
        for other in sprites[:i]:
            assert np.abs(one - other)[..., :3].max() > 60


def test_a_dense_family_has_few_brands() -> None:
    def brands(density: float) -> int:
        designs = draw_family(20, density=density, generator=np.random.default_rng(1))
        assert len(set(designs)) == 20
        return len({(d.body, d.pattern, d.repeats, d.brand) for d in designs})

    assert brands(0.0) == 20
    assert brands(0.7) == 6


def spread(variation: float) -> float:
    """Return how far apart a product's photos are: the mean standard deviation of a pixel over 12 photos."""
    design = draw_family(1, density=0, generator=np.random.default_rng(5))[0]
    views = FAMILIES["mug"].render(design, turns(variation))
    studio, generator = Studio(48, np.random.default_rng(6)), np.random.default_rng(7)
    photos = [
        studio.take(views, [], place=0, variation=variation, store=STORES[1], generator=generator) for _ in range(12)
    ]
    return float(np.stack([np.asarray(photo, float) for photo in photos]).std(axis=0).mean())


def test_variation_is_how_much_photos_differ() -> None:
    calm, lively, wild = (spread(variation) for variation in (0.05, 0.4, 1.0))
    assert calm < 0.5 * lively < 0.5 * wild


@pytest.mark.parametrize(("parameter", "value"), [("items", 9), ("photos", 3), ("photos", 0), ("size", 31)])
def test_arguments_that_make_no_catalogue_are_refused(tmp_path: Path, parameter: str, value: int) -> None:
    arguments = {"items": 10, "photos": 2, "size": 32, parameter: value}
    with pytest.raises(InvalidParameter, match=parameter):
        make_catalogue(tmp_path, progress=False, **arguments)
    assert not list(tmp_path.iterdir())
