import dataclasses
import itertools
import json
from pathlib import Path

import numpy as np
import pytest
import torch

from retrieval.errors import DataError, InvalidParameter, RunError
from retrieval.images import Preprocessing
from training.data.augmentation import Augmentation
from training.data.reader import PhotoReader
from training.loop.optimizer import WARMUP, learning_rate_factor, make_optimizer
from training.loop.recipe import build_loss
from training.loop.run import BEST, LAST, Run
from training.loop.train import train
from training.loop.trainer import Trainer

from ..conftest import tiny_settings

SIGHT = Preprocessing(size=32)


def weights(run: Run, name: str) -> dict[str, torch.Tensor]:
    return run.load(name)[0]


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_a_run_leaves_what_it_promises(run: Run) -> None:
    assert run.progress["epoch"] == 2
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert [line["epoch"] for line in lines] == [0, 1, 2]  # 0 is the model before training
    wanted = {f"validation {name}" for name in ("R@1", "MAP@R", "TPIR", "mean TPIR", "FNIR", "OPIS", "balanced")}
    assert all(wanted <= line.keys() for line in lines)
    assert "loss" in lines[1]
    assert list((run.path / "tensorboard").iterdir())
    assert run.progress["best"]["metrics"].items() <= lines[run.progress["best"]["epoch"]].items()


@pytest.mark.end_to_end
def test_training_learns(catalogue: Path, tmp_path: Path) -> None:
    settings = tiny_settings(catalogue, epochs=6)
    run = train(settings, tmp_path / "run")
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < 0.6 * lines[1]["loss"]


@pytest.mark.slow
def test_the_same_seed_gives_the_same_run_and_another_seed_another(catalogue: Path, tmp_path: Path, run: Run) -> None:
    again = train(tiny_settings(catalogue), tmp_path / "again")
    assert equal(weights(run, LAST), weights(again, LAST))
    other = train(tiny_settings(catalogue, seed=1), tmp_path / "other")
    assert not equal(weights(run, LAST), weights(other, LAST))


@pytest.mark.parametrize("dying", [pytest.param(0, marks=pytest.mark.end_to_end), 1])
def test_resuming_gives_the_same_result(
    dying: int, catalogue: Path, tmp_path: Path, run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = Trainer._epoch

    def dies(self: Trainer, epoch: int) -> dict[str, float]:
        if epoch == dying:
            raise KeyboardInterrupt
        return real(self, epoch)

    monkeypatch.setattr(Trainer, "_epoch", dies)
    with pytest.raises(KeyboardInterrupt):
        train(tiny_settings(catalogue), tmp_path / "run")
    monkeypatch.undo()
    resumed = train(tiny_settings(catalogue), tmp_path / "run", resume=True)
    assert equal(weights(run, LAST), weights(resumed, LAST))
    assert equal(weights(run, BEST), weights(resumed, BEST))
    assert resumed.progress == run.progress or resumed.progress["epoch"] == 2


def test_a_run_is_never_overwritten(catalogue: Path, run: Run) -> None:
    with pytest.raises(RunError, match="--resume"):
        train(tiny_settings(catalogue), run.path)


@pytest.mark.parametrize(
    "loss", ["proxy_anchor", *(pytest.param(loss, marks=pytest.mark.slow) for loss in ("smooth_ap", "arcface"))]
)
def test_every_base_loss_trains_with_the_regularizer(catalogue: Path, tmp_path: Path, loss: str) -> None:
    run = train(tiny_settings(catalogue, epochs=1, loss=loss, regularizer="tcm"), tmp_path / loss)
    assert np.isfinite(run.progress["best_trained"]["metrics"]["loss"])


def test_an_unknown_loss_is_refused_before_anything_is_written(catalogue: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="smooth_ap"):
        train(tiny_settings(catalogue, loss="smoothap"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_proxies_have_their_own_learning_rate(catalogue: Path, run: Run) -> None:
    trainer = Trainer(run)
    settings = tiny_settings(catalogue, loss="proxy_anchor", proxy_learning_rate=0.5)
    loss = build_loss(settings, classes=5)
    groups = make_optimizer(trainer.model, loss, settings).param_groups
    proxies = [group for group in groups if group["lr"] == 0.5]
    assert [p.shape for p in proxies[0]["params"]] == [(5, 16)]
    assert proxies[0]["weight_decay"] == 0


def test_the_learning_rate_rises_and_then_falls_to_nothing() -> None:
    factors = [learning_rate_factor(step, 200) for step in range(200)]
    assert factors[0] == pytest.approx(1 / (200 * WARMUP))
    assert max(factors) == pytest.approx(1.0)
    assert all(a >= b for a, b in itertools.pairwise(factors[10:]))
    assert factors[-1] < 0.01


def test_augmentation_depends_on_its_generator_alone(catalogue: Path) -> None:
    settings = tiny_settings(catalogue, flip=True, colour=0.3)
    image = PhotoReader(_photos(catalogue), SIGHT)[0]
    augment = Augmentation(settings)
    first = augment(image, np.random.default_rng(1))
    augment(image, np.random.default_rng(2))
    assert np.array_equal(first, augment(image, np.random.default_rng(1)))
    assert not np.array_equal(first, augment(image, np.random.default_rng(2)))
    assert first.shape == (32, 32, 3)


def test_the_cache_changes_nothing(catalogue: Path) -> None:
    photos = _photos(catalogue)
    kept, read = PhotoReader(photos, SIGHT), PhotoReader(photos, SIGHT, cache_bytes=0)
    for _ in range(2):
        assert np.array_equal(kept.pixels([0, 5]), read.pixels([0, 5]))


def test_an_unreadable_training_photo_is_named(catalogue: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.png"
    broken.write_bytes(b"no image")
    photo = _photos(catalogue)[0]
    with pytest.raises(DataError, match=r"broken\.png"):
        PhotoReader([dataclasses.replace(photo, path=broken)], SIGHT)[0]


def _photos(catalogue: Path) -> list:
    from retrieval.catalogue.read import read_catalogue

    return read_catalogue(catalogue)
