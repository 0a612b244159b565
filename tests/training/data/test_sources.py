"""Features of a frozen backbone that are kept in a run, and the photos that they belong to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from retrieval.catalogue.splits import photos_in_protocol
from training.data.reader import PhotoReader, evaluation_batches
from training.data.sources import FEATURES, pooled_features
from training.evaluation.embedding import to_device
from training.loop.recipe import initial_model
from training.loop.run import Run
from training.loop.train import train
from training.tune.study import fold_metrics

from ..conftest import dying_in_epoch, tiny_settings

pytestmark = pytest.mark.usefixtures("empty_pictures")
TOLD = "The photos may have changed, so their features are computed again."


@pytest.fixture
def copied(catalogue: Path, tmp_path: Path) -> Path:
    """Return a copy of the catalogue that a test may change."""
    shutil.copytree(catalogue.parent, tmp_path / "photos")
    return tmp_path / "photos" / catalogue.name


def fitted(run: Run) -> list[Path]:
    photos = photos_in_protocol(run.photos(), run.splits.fit, run.protocol, left_out=run.held_out)
    return [photo.path for photo in photos]


def remove_a_row(run: Run, catalogue: Path) -> None:
    lines = catalogue.read_text().splitlines(keepends=True)
    catalogue.write_text("".join(line for line in lines if not line.startswith(fitted(run)[3].name)))


def reorder_rows(run: Run, catalogue: Path) -> None:
    head, *rows = catalogue.read_text().splitlines(keepends=True)
    catalogue.write_text("".join([head, *reversed(rows)]))


def swap_photos(run: Run, catalogue: Path) -> None:
    first, *_, last = fitted(run)
    first.rename(first.with_suffix(".aside"))
    last.rename(first)
    first.with_suffix(".aside").rename(last)


@pytest.mark.parametrize("change", [remove_a_row, reorder_rows, swap_photos])
def test_resuming_after_the_photos_changed_computes_their_features_again(
    change: Callable[[Run, Path], None], copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_settings(copied, precompute=2, loss="proxy_nca")
    with dying_in_epoch(1):
        train(settings, tmp_path / "run")
    change(Run.open(tmp_path / "run"), copied)
    run = train(settings, tmp_path / "run", resume=True)
    assert TOLD in capsys.readouterr().out
    photos = photos_in_protocol(run.photos(), run.splits.fit, run.protocol, left_out=run.held_out)
    blocks = evaluation_batches(PhotoReader(photos, run.preprocessing), range(len(photos)))
    model, preprocessing = initial_model(run.settings)[0], run.preprocessing
    wanted = pooled_features(model, blocks, lambda pixels: to_device(pixels, preprocessing, model.head.weight.device))
    assert np.abs(load_file(run.path / FEATURES)["fit"][0] - wanted).max() < 1e-5


def test_resuming_with_the_same_photos_keeps_their_features(
    copied: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = tiny_settings(copied, precompute=2, loss="proxy_nca")
    with dying_in_epoch(1):
        train(settings, tmp_path / "run")
    kept = (tmp_path / "run" / FEATURES).stat().st_ino
    train(settings, tmp_path / "run", resume=True)
    assert (tmp_path / "run" / FEATURES).stat().st_ino == kept
    assert TOLD not in capsys.readouterr().out


def test_trials_after_the_photos_changed_share_the_features_that_are_computed_again(
    copied: Path, tmp_path: Path
) -> None:
    settings, shared = tiny_settings(copied, precompute=1, epochs=1, loggers=""), tmp_path / "features" / "fold"
    items = [f"item-{number:02d}" for number in range(20)]
    fold, kept = (tuple(items[:14]), tuple(items[14:])), []
    for trial in range(2):
        fold_metrics(settings, tmp_path / str(trial), fold, shared)
        kept.append(shared.read_bytes())
        os.utime(copied.parent / "00_0.png", ns=(0, 0))
    assert kept[0] != kept[1]
