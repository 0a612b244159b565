"""A tiny catalogue of coloured patterns and a run trained on it, made once a session."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from training.config import Settings
from training.loop.run import Run
from training.loop.train import train
from training.loop.trainer import Trainer

from ..world import ITEMS, PHOTOS, draw, shuffled


@pytest.fixture(scope="session")
def catalogue(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a CSV of 20 items in 10 groups, 8 photos each, from two sources, in no order; no partition is given."""
    folder = tmp_path_factory.mktemp("catalogue")
    with (folder / "photos.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "item_id", "group", "source"])
        for item, number in shuffled([(item, number) for item in range(ITEMS) for number in range(PHOTOS)]):
            name = f"{item:02d}_{number}.png"
            draw(item, number).save(folder / name)
            writer.writerow([name, f"item-{item:02d}", f"group-{item // 2}", "ab"[number % 2]])
    return folder / "photos.csv"


def tiny_settings(catalogue: Path, **changes: object) -> Settings:
    """Return settings that train in a second or two."""
    values = {
        "catalogue": str(catalogue),
        "backbone": "small",
        "size": 32,
        "dim": 16,
        "epochs": 2,
        "items_per_batch": 4,
        "photos_per_item": 4,
        "learning_rate": 1e-3,
        "crop_area": 0.7,
        "flip": False,
    }
    return Settings.from_dict(values | changes)


@contextmanager
def dying_in_epoch(number: int) -> Iterator[None]:
    """Let a training that is begun inside end in an epoch, as one that is interrupted does."""
    real = Trainer._epoch

    def dies(self: Trainer, epoch: int) -> dict[str, float]:
        if epoch == number:
            raise KeyboardInterrupt
        return real(self, epoch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Trainer, "_epoch", dies)
        with pytest.raises(KeyboardInterrupt):
            yield


@pytest.fixture(scope="session")
def run(catalogue: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a finished run of two epochs."""
    return train(tiny_settings(catalogue), tmp_path_factory.mktemp("runs") / "tiny")


@pytest.fixture(scope="session")
def calibrated(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """Return a run with 24 calibration items."""
    folder = tmp_path_factory.mktemp("calibrated")
    parts = ["calibration"] * 24 + ["train"] * 8 + ["validation"] * 4 + ["test"] * 4
    rows = ["path,item_id,partition"]
    for item, part in enumerate(parts):
        for number in range(4):
            draw(item, number).save(folder / f"{item:02d}_{number}.png")
            rows.append(f"{item:02d}_{number}.png,item-{item:02d},{part}")
    (folder / "photos.csv").write_text("\n".join(rows) + "\n")
    return train(tiny_settings(folder / "photos.csv"), folder / "run")
