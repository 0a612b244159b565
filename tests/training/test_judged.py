"""A model that training made worse: `train`, `evaluate` and `export` say so, with the commands that a user has."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from retrieval.bundle.bundle import Bundle
from retrieval.cli.main import group
from retrieval.errors import RunError

from ..world import draw

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_pictures")]


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    """Return a table of 60 items with 4 to 8 photos each."""
    with (tmp_path / "photos.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "item_id"])
        for item in range(60):
            for number in range(4 + item % 5):
                draw(item, number).save(tmp_path / f"{item}_{number}.png")
                writer.writerow([f"{item}_{number}.png", f"item-{item}"])
    return tmp_path / "photos.csv"


def cli(*words: object) -> Result:
    return CliRunner().invoke(group, [str(word) for word in words])


def test_a_model_that_training_made_worse_is_exported_only_on_demand(photos: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    head = ("--dim", 6, "--head-start", "random", "--precompute", 1, "--epochs", 1, "--epoch-steps", 1)
    trained = cli("train", photos, "--backbone", "efficientnet-lite0", *head, "-o", run)
    assert trained.exit_code == 0, trained.output
    evaluated = cli("evaluate", run)
    assert evaluated.exit_code == 0, evaluated.output
    assert "efficientnet-lite0 → this run" in evaluated.output
    assert "This run finds less than the model that it started from: R@1 is 0." in evaluated.output
    assert "Next: retrieval export --pretrained efficientnet-lite0 -o bundles/run" in evaluated.output
    refused = cli("export", run, "-o", tmp_path / "bundle")
    assert isinstance(refused.exception, RunError)
    assert "--even-if-worse" in refused.exception.remedy
    assert not (tmp_path / "bundle").exists()
    done = cli("export", run, "-o", tmp_path / "bundle", "--even-if-worse", "--target-fpir", 0.4)
    assert done.exit_code == 0, done.output
    assert Bundle.open(tmp_path / "bundle").operating_point.target_fpir == 0.4
