import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.splits import make_splits
from training.evaluation.mixed import Comparison
from training.loop.recipe import initial_model
from training.loop.run import BEST, LAST
from training.loop.selection import Selection
from training.loop.train import train
from training.loop.trainer import Trainer

from ..conftest import tiny_settings


def metrics(value: float) -> dict[str, float]:
    return {f"validation {name}": value for name in ("mean TPIR", "R@1", "TPIR")}


def chosen(select: str, values: list[float], *, start: float | None = None) -> int:
    selection = Selection(select, 0)
    if start is not None:
        selection.start(metrics(start), {})
    for epoch, value in enumerate(values, 1):
        selection.add(epoch, metrics(value), {})
    return int(selection.best["epoch"])


def test_the_best_epoch_is_kept_and_the_model_before_training_only_if_it_is_better() -> None:
    for select in ("tpir", "r@1"):
        assert chosen(select, [0.5, 0.9, 0.6, 0.7, 0.7, 0.7]) == 2
        assert chosen(select, [0.3, 0.4, 0.4], start=0.5) == 0
        assert chosen(select, [0.5, 0.5, 0.5], start=0.5) > 0
        assert chosen(select, [0.5, 0.6, 0.6], start=0.5) > 0
    assert chosen("last", [0.9, 0.1]) == 2


def test_an_epoch_that_diverged_is_not_chosen() -> None:
    assert chosen("tpir", [0.5, 0.6, float("nan"), float("nan")], start=0.1) == 2
    assert chosen("r@1", [float("nan")], start=0.1) == 0


def test_patience_counts_trained_epochs() -> None:
    selection = Selection("r@1", 2)
    selection.start(metrics(0.9), {})
    stopped = []
    for epoch, value in enumerate([0.1, 0.3, 0.2, 0.3], 1):
        selection.add(epoch, metrics(value), {})
        stopped.append(selection.stops(epoch))
    assert stopped == [False, False, False, True]


@pytest.mark.usefixtures("empty_pictures")
def test_training_that_makes_it_worse_returns_what_came_in(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = Trainer._validate, []

    def worse(self: Trainer) -> tuple[dict[str, float], Comparison]:
        calls.append(1)
        metrics, comparison = real(self)
        return {name: value / len(calls) for name, value in metrics.items()}, comparison

    monkeypatch.setattr(Trainer, "_validate", worse)
    splits = make_splits(read_catalogue(catalogue))
    validation = (*splits.validation, *splits.fit[:4])  # six items: with fewer than five, the last epoch is kept
    splits = replace(splits, fit=splits.fit[4:], validation=validation)
    run = train(tiny_settings(catalogue, select="r@1"), tmp_path / "run", splits=splits)
    lines = (run.path / "metrics.jsonl").read_text().splitlines()
    assert [json.loads(line)["epoch"] for line in lines] == [0, 1, 2]  # 0 is the model before training
    assert run.progress["best"]["epoch"] == 0
    assert run.progress["best_trained"]["epoch"] == 1
    kept, last, came_in = run.load(BEST)[0], run.load(LAST)[0], initial_model(run.settings)[0].state_dict()
    assert all(torch.equal(kept[name], value) for name, value in came_in.items())
    assert not torch.equal(kept["head.weight"], last["model.head.weight"])
