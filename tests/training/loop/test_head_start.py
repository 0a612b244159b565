from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from training.export.projection import fit_projection, found_by_item
from training.loop.distributed import ProcessGroup
from training.loop.head_start import SHRINKAGE, start_head, starts_fitted
from training.loop.recipe import initial_model
from training.loop.run import Run
from training.loop.train import begin_run
from training.loop.trainer import Trainer

from ..conftest import tiny_settings

WIDTH = 12


def world(*, items: int = 30, each: int = 5) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return features (n, WIDTH) of which the first three vary much within items, and labels (n,)."""
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(items), each)
    features = generator.normal(size=(items, WIDTH))[labels] + 0.1 * generator.normal(size=(len(labels), WIDTH))
    features[:, :3] += 4 * generator.normal(size=(len(labels), 3))
    return features + 3, labels


def embedded(head: nn.Linear, features: NDArray[np.float64]) -> NDArray[np.float64]:
    with torch.no_grad():
        return np.asarray(head(torch.from_numpy(features)))


def cosines(vectors: NDArray[np.float64]) -> NDArray[np.float64]:
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(unit @ unit.T)


@pytest.mark.parametrize("dim", [WIDTH, WIDTH + 4])
def test_a_layer_as_wide_as_the_features_gives_the_cosines_of_the_projection(dim: int) -> None:
    features, labels = world()
    head = nn.Linear(WIDTH, dim, dtype=torch.float64)
    start_head(head, features, labels)
    projected = fit_projection(features, labels.astype(str), 1.0, SHRINKAGE)(features)
    assert np.abs(cosines(embedded(head, features)) - cosines(projected)).max() < 1e-9


def test_a_narrow_layer_finds_what_the_features_hide() -> None:
    features, labels = world()
    head = nn.Linear(WIDTH, WIDTH - 1, dtype=torch.float64)
    start_head(head, features, labels)
    raw, started = (found_by_item(vectors, labels.astype(str)) for vectors in (features, embedded(head, features)))
    assert started.mean() > raw.mean() + 0.2


def test_items_with_one_photo_leave_the_layer_as_it_is() -> None:
    head = nn.Linear(WIDTH, 4)
    before = head.weight.clone()
    start_head(head, np.ones((5, WIDTH)), np.arange(5))
    assert torch.equal(before, head.weight)


def test_a_backbone_without_pretraining_starts_at_random(catalogue: Path) -> None:
    small = tiny_settings(catalogue)
    assert not starts_fitted(small)
    assert starts_fitted(tiny_settings(catalogue, head_start="fit"))
    assert starts_fitted(tiny_settings(catalogue, backbone="efficientnet-lite0"))
    assert not starts_fitted(tiny_settings(catalogue, backbone="efficientnet-lite0", head_start="random"))


@pytest.mark.usefixtures("empty_pictures")
def test_training_begins_at_the_fit_in_pixels_and_in_features(catalogue: Path, tmp_path: Path) -> None:
    weights = []
    for precompute in (0, 1):
        settings = tiny_settings(catalogue, head_start="fit", precompute=precompute, loss="vmf_nca")
        begin_run(settings, tmp_path / str(precompute), ProcessGroup.join())
        weights.append(Trainer(Run.open(tmp_path / str(precompute))).model.head.weight.detach())
    assert torch.allclose(weights[0], weights[1], rtol=1e-3, atol=1e-3 * float(weights[0].abs().max()))
    assert not torch.allclose(weights[0], initial_model(tiny_settings(catalogue))[0].head.weight)
