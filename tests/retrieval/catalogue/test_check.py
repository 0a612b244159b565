"""`retrieval data check` agrees with what a training then does."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

import pytest
from click.testing import CliRunner

from retrieval.catalogue.check import readiness
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.cli.data import data

from ...world import draw, write_folder


def photos_of(counts: Iterable[int], *, groups: int = 0) -> list[Photo]:
    """Return photos of items, so many of each; with groups, the items take turns in them."""
    return [
        Photo(f"{item:03d}/{n}", Path("x.jpg"), f"item-{item:03d}", f"group-{item % groups}" if groups else "")
        for item, count in enumerate(counts)
        for n in range(count)
    ]


def test_a_large_catalogue_is_ready_without_a_warning() -> None:
    found = readiness(photos_of([8] * 400))
    assert found.problem is None
    assert found.warnings == ()
    assert found.parts == (
        "Training fits 192 items (1,496 photos; 40 others are searched to judge it) and validates on 48; 80 are left "
        "for calibration and 80 for the test"
    )


@pytest.mark.parametrize(
    ("counts", "groups", "told"),
    [
        ([3] * 5, 0, "3 of 5 items can be trained on, too few"),
        ([3] * 15, 3, "`retrieval data table CATALOGUE -o photos.csv --no-groups`"),
        ([1] * 400, 0, "no photo of the 48 validation items has another photo of its item to match"),
    ],
)
def test_what_training_refuses_is_a_problem(counts: list[int], groups: int, told: str) -> None:
    found = readiness(photos_of(counts, groups=groups))
    assert found.problem is not None
    assert told in str(found.problem)


@pytest.mark.parametrize(
    ("counts", "groups", "told"),
    [
        ([8] * 40, 0, "8 items for calibration set no threshold"),
        ([8] * 400, 40, "8 items for calibration set no threshold"),
        ([8] * 400, 40, "A gallery of 20 items sets its own"),
    ],
)
def test_what_there_is_too_little_of_is_a_warning_with_numbers(counts: list[int], groups: int, told: str) -> None:
    found = readiness(photos_of(counts, groups=groups))
    assert found.problem is None
    assert told in " ".join(found.warnings)


def test_a_catalogue_without_calibration_items_is_told_who_needs_them() -> None:
    photos = [
        Photo(f"{n}/{item}", Path("x.jpg"), f"item-{item}", partition="train") for item in range(100) for n in range(8)
    ]
    (calibration, test) = readiness(photos).warnings
    assert calibration.startswith("the calibration part has 0 items, and `evaluate` and `export` need at least two")
    assert test.startswith("the test part has 0 items, and `evaluate` needs at least two")


def test_data_check_says_how_it_read_the_folders_and_the_remedy_it_prints_works(tmp_path: Path) -> None:
    for item in range(15):
        folder = tmp_path / "photos" / f"group {item % 3}" / f"item-{item:02d}"
        folder.mkdir(parents=True)
        for number in range(3):
            draw(item, number).save(folder / f"{number}.png")
    told = CliRunner().invoke(data, ["check", str(tmp_path / "photos")])
    assert told.exit_code == 1
    assert "45 photos of 15 items in 3 groups, from folders two levels deep." in told.output
    assert "--no-groups" in told.output
    assert "Next: retrieval train" not in told.output

    made = CliRunner().invoke(data, ["table", str(tmp_path / "photos"), "-o", str(tmp_path / "p.csv"), "--no-groups"])
    assert made.exit_code == 0
    assert f"Next: retrieval data check {tmp_path / 'p.csv'}" in made.output
    again = CliRunner().invoke(data, ["check", str(tmp_path / "p.csv")])
    assert again.exit_code == 0
    assert "45 photos of 15 items, from a CSV with commas." in again.output
    assert "Warning: " in again.output


def test_a_table_keeps_all_that_was_read(tmp_path: Path) -> None:
    write_folder(tmp_path / "photos" / "veg", items=range(2))
    (tmp_path / "photos.csv").write_text(
        "path,item_id,group,source,bbox,price\nphotos/veg/item-00/0.png,kiwi,green,shop,1 2 30 40,3\n"
    )
    for place in (tmp_path / "photos", tmp_path / "photos.csv"):
        out = tmp_path / "out" / f"{place.stem}.csv"
        assert CliRunner().invoke(data, ["table", str(place), "-o", str(out)]).exit_code == 0
        read, before = read_catalogue(out), read_catalogue(place)
        assert [(p.photo_id, p.item_id, p.group, p.source, p.bbox, p.metadata, p.read()) for p in read] == [
            (p.photo_id, p.item_id, p.group, p.source, p.bbox, p.metadata, p.read()) for p in before
        ]
