from __future__ import annotations

from dataclasses import replace
from math import nan
from pathlib import Path

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.indexing.pipeline import index_catalogue


def test_a_photo_with_too_much_metadata_is_refused_and_the_others_are_indexed(world: Path, tmp_path: Path) -> None:
    photos = read_catalogue(world / "photos")[:3]
    rows = [photos[0], replace(photos[1], metadata={"text": "a" * 70_000}), replace(photos[2], metadata={"n": nan})]
    report = index_catalogue(Bundle.open(world / "bundle"), rows, tmp_path / "gallery", progress=False)
    assert (report.added, [photo_id for photo_id, _ in report.refused]) == (1, [rows[1].photo_id, rows[2].photo_id])
    assert "65,536 bytes" in report.refused[0][1]
    assert all(len(reason) < 1000 for _, reason in report.refused)
