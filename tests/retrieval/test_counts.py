"""Counts in sentences agree with their nouns, in singular and plural."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from retrieval.catalogue.check import describe_catalogue
from retrieval.catalogue.read import read_catalogue
from retrieval.cli.main import group
from retrieval.errors import counted, listed, photos_of_items

from ..world import draw, make_bundle


def test_a_noun_is_singular_for_one_alone() -> None:
    assert [counted(count, "photo") for count in (0, 1, 2, 1200)] == ["0 photos", "1 photo", "2 photos", "1,200 photos"]
    assert counted(2, "item with one photo") == "2 items with one photo"
    assert counted(2, "search", "searches") == "2 searches"
    assert photos_of_items(1, 1) == "1 photo of 1 item"
    assert photos_of_items(6, 2) == "6 photos of 2 items"


def test_twenty_values_are_listed_and_the_others_counted() -> None:
    assert listed("abc") == "a, b, c"
    assert listed(range(20)) == ", ".join(map(str, range(20)))
    assert listed(range(22), between="; ").endswith("18; 19 and 2 more")


def test_one_photo_of_one_item_is_told_in_the_singular_all_the_way(tmp_path: Path) -> None:
    (tmp_path / "photos" / "mug").mkdir(parents=True)
    draw(1, 0).save(tmp_path / "photos" / "mug" / "1.png")
    make_bundle(tmp_path)
    assert describe_catalogue(tmp_path / "photos", read_catalogue(tmp_path / "photos")).startswith("1 photo of 1 item,")

    def told(*words: object) -> str:
        return CliRunner().invoke(group, [*map(str, words)]).output

    bundle, gallery = tmp_path / "bundle", tmp_path / "gallery"
    assert "1 photo added" in told("index", bundle, tmp_path / "photos", "-o", gallery)
    assert "1 photo of 1 item, 48 numbers" in told("gallery", "info", gallery)
    assert "1 photo is intact" in told("gallery", "verify", gallery)
    assert "1 photo of 1 item, threshold" in told("audit", bundle, gallery)
    assert "1 item within the threshold" in told("search", bundle, gallery, tmp_path / "photos" / "mug" / "1.png")
    assert "1 photo removed." in told("gallery", "remove", gallery, "--item", "mug")
