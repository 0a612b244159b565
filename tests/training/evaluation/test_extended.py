from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from research.datasets import read_dataset, set_aside
from retrieval.catalogue.read import Photo
from retrieval.catalogue.tables import write_catalogue
from retrieval.cli.main import group
from training.evaluation.evaluate import EvaluationSplit
from training.evaluation.extended import extended_metrics
from training.evaluation.report import evaluate_run, render
from training.loop.run import Run
from training.loop.train import train

from ...miniature import WRITERS
from ..conftest import tiny_settings

ANGLES = np.deg2rad([0, 1, 60, 61, 180, 181, 240, 241])
VECTORS = np.stack([np.cos(ANGLES), np.sin(ANGLES)], axis=1).astype(np.float32)
LABELS = np.array([0, 0, 1, 1, 2, 2, 3, 3])
PHOTOS = [
    Photo(str(i), Path(str(i)), str(item), metadata={"category": "ab"[item // 2]}) for i, item in enumerate(LABELS)
]


def test_pairs_of_near_photos_are_found_whole() -> None:
    everything = np.arange(8)
    got = extended_metrics(EvaluationSplit("unseen", everything, everything), PHOTOS, VECTORS, LABELS, seed=0)
    assert got["mAP"] == got["mAP@1000"] == got["re-ranked R@1 (k = 16)"] == got["NMI"] == pytest.approx(1)
    assert got["H-AP"] == got["category mAP"] == pytest.approx(1)  # the other item of the category comes next
    assert got["intra-item distance"] == pytest.approx(2 * np.sin(np.deg2rad(0.5)), abs=1e-6)
    assert got["cluster diversity"] == 0


def test_photos_without_a_category_have_no_figure_of_it() -> None:
    some = np.arange(8)
    got = extended_metrics(EvaluationSplit("unseen", some[::2], some[1::2]), PHOTOS, VECTORS, LABELS, seed=0)
    assert got["H-AP"] == pytest.approx(1)
    plain = [replace(photo, metadata={}) for photo in PHOTOS]
    one = extended_metrics(EvaluationSplit("unseen", some[:2], some[:2]), PHOTOS, VECTORS, LABELS, seed=0)
    assert "inter-item distance" not in one  # a single item
    assert "H-AP" not in extended_metrics(EvaluationSplit("unseen", some, some), plain, VECTORS, LABELS, seed=0)


def test_the_command_shows_them(run: Run) -> None:
    done = CliRunner().invoke(group, ["evaluate", str(run.path), "--metrics", "extended", "--json"])
    report = json.loads(done.stdout)
    assert {"mAP@1000", "NMI", "spectral decay", "re-ranked R@1 (k = 16)"} <= set(report["extended"])
    assert report["extended"] == json.loads((run.path / "evaluation.json").read_text())["extended"]
    assert f"NMI {report['extended']['NMI']:.3f}" in render(report)
    assert "extended" not in evaluate_run(run)


@pytest.mark.slow
@pytest.mark.parametrize("name", WRITERS)
def test_every_set_in_miniature_trains_and_is_evaluated(name: str, tmp_path: Path) -> None:
    photos = set_aside(read_dataset(name, WRITERS[name](tmp_path / "set", classes=12)), share=0.25, seed=0)
    run = train(tiny_settings(write_catalogue(photos, tmp_path / "photos.csv"), epochs=1), tmp_path / "run")
    report = evaluate_run(run, extended=True)
    assert report["splits"]["unseen"]["items"] == 12
    assert 0 <= report["extended"]["H-AP"] <= 1
    assert ("gallery" in report["protocol"]) is (name == "inshop")
