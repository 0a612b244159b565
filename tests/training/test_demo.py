"""The demo keeps what it says: the drawn catalogue is hard, and one plain threshold breaks its promise."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from retrieval.catalogue.read import read_catalogue
from retrieval.errors import RunError
from retrieval.retriever import Retriever
from training.demo import demo, explain, run_demo
from training.evaluation.report import render


@pytest.mark.slow
def test_the_demo_is_hard_and_shows_the_broken_promise(tmp_path: Path) -> None:
    report, expectation = run_demo(tmp_path)
    assert "An unknown item returns a match in" in expectation
    unseen = report["splits"]["unseen"]
    assert 0.7 <= unseen["R@1"] <= 0.95
    assert unseen["FPIR"] > 0.10
    assert "unseen" in render(report)
    assert f"{unseen['FPIR']:.0%}" in explain(report)
    retriever = Retriever.open(tmp_path / "bundle", tmp_path / "gallery")
    assert retriever.bundle.operating_point.evidence["fpir"] <= 0.05
    kept = retriever.gallery.photo_ids()
    for photo in [p for p in read_catalogue(tmp_path / "photos/catalogue.csv") if p.photo_id in kept][::50]:
        best = retriever.search(photo.path).matches[0]
        assert (best.item_id, best.distance) == (photo.item_id, pytest.approx(0, abs=1e-5))


def test_a_folder_with_other_things_in_it_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("ten years of work")
    result = CliRunner().invoke(demo, ["-o", str(tmp_path)])
    assert isinstance(result.exception, RunError)
    assert "thesis.txt" in str(result.exception)
    assert (tmp_path / "thesis.txt").read_text() == "ten years of work"
