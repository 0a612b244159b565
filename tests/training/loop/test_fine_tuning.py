"""The fine-tuning kit in whole runs: what rests, what is averaged, what is computed once, and what resumes."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from retrieval.catalogue.splits import make_splits
from retrieval.errors import InvalidParameter, MissingDependency
from training.data.reader import PhotoReader
from training.evaluation.embedding import embed_photos
from training.export.export import export
from training.loop.recipe import initial_model
from training.loop.run import BEST, LAST, Run
from training.loop.train import train
from training.loop.trainer import Trainer

from ..conftest import dying_in_epoch, tiny_settings

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_pictures")]


def parts(run: Run, name: str = LAST) -> dict[str, torch.Tensor]:
    return run.load(name)[0]


def same(one: Mapping[str, torch.Tensor], other: Mapping[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


def backbone(tensors: Mapping[str, torch.Tensor], prefix: str = "model.") -> dict[str, torch.Tensor]:
    start = f"{prefix}backbone."
    return {name[len(prefix) :]: value for name, value in tensors.items() if name.startswith(start)}


def untrained(run: Run) -> dict[str, torch.Tensor]:
    return dict(initial_model(run.settings)[0].state_dict())


KIT: dict[str, dict[str, Any]] = {
    "projector": {"projector": 8, "loss": "proxy_nca"},
    "groups": {"sampler": "groups:group"},
    "random": {"sampler": "random", "loss": "arcface", "epoch_steps": 3},
    "features": {"precompute": 2},
    "half": {"precision": "bf16"},
}


@pytest.mark.parametrize("name", KIT)
def test_interrupted_anywhere_it_ends_the_same(name: str, catalogue: Path, tmp_path: Path) -> None:
    settings = tiny_settings(catalogue, **KIT[name])
    whole = train(settings, tmp_path / "whole")
    with dying_in_epoch(1):
        train(settings, tmp_path / "run")
    resumed = train(settings, tmp_path / "run", resume=True)
    assert same(parts(whole), parts(resumed))
    assert same(parts(whole, BEST), parts(resumed, BEST))


def test_without_validation_items_the_last_checkpoint_is_kept(catalogue: Path, tmp_path: Path) -> None:
    from retrieval.catalogue.read import read_catalogue

    splits = make_splits(read_catalogue(catalogue))
    splits = dataclasses.replace(splits, fit=tuple(sorted({*splits.fit, *splits.validation})), validation=())
    run = train(tiny_settings(catalogue, epochs=1), tmp_path / "run", splits=splits)
    assert run.splits == splits
    assert torch.equal(parts(run)["model.head.weight"], parts(run, BEST)["head.weight"])


def test_a_head_on_features_is_a_whole_model_in_the_end(catalogue: Path, tmp_path: Path) -> None:
    run = train(tiny_settings(catalogue, precompute=1, epochs=4, pooling="gem"), tmp_path / "run")
    assert same(backbone(parts(run)), backbone(untrained(run), ""))
    lines = [json.loads(line) for line in (run.path / "metrics.jsonl").read_text().splitlines()]
    assert lines[-1]["loss"] < lines[1]["loss"]
    trainer = Trainer(run)
    trainer._restore()
    once = trainer.source.vectors(trainer.model)
    assert trainer.mixed is not None
    reader = PhotoReader(trainer.mixed.photos, run.preprocessing)
    whole = embed_photos(trainer.model, reader, len(trainer.mixed.photos), run.preprocessing)
    assert np.abs(once - whole).max() < 1e-5
    bundle = export(run, tmp_path / "bundle", even_if_worse=True)  # which compares ONNX with the whole torch model
    assert bundle.dim == 16


def test_fp16_needs_a_gpu_and_an_unknown_logger_is_refused(catalogue: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidParameter, match="without a GPU"):
        train(tiny_settings(catalogue, precision="fp16"), tmp_path / "run")
    with pytest.raises(InvalidParameter, match="tensorboard"):
        train(tiny_settings(catalogue, loggers="paper"), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_logger_that_is_not_installed_is_named(
    catalogue: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.loop.loggers.find_spec", lambda name: None if name == "wandb" else name)
    with pytest.raises(MissingDependency, match="wandb"):
        train(tiny_settings(catalogue, loggers="tensorboard,wandb"), tmp_path / "run")
