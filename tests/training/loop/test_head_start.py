from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch import nn

from index.search.item_distance import ItemDistance
from retrieval.metrics.identification import search_scores, threshold_at_fpir
from training.export.projection import fit_projection, found_by_item
from training.loop.begin import begin_run
from training.loop.distributed import ProcessGroup
from training.loop.head_start import SHRINKAGE, start_head, starts_fitted
from training.loop.recipe import initial_model
from training.loop.run import Run
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
    start_head(head, features[None], labels)
    projected = fit_projection(features, labels.astype(str), 1.0, SHRINKAGE)(features)
    assert np.abs(cosines(embedded(head, features)) - cosines(projected)).max() < 1e-9


def test_a_narrow_layer_finds_what_the_features_hide() -> None:
    features, labels = world()
    head = nn.Linear(WIDTH, WIDTH - 1, dtype=torch.float64)
    start_head(head, features[None], labels)
    raw, started = (found_by_item(vectors, labels.astype(str)) for vectors in (features, embedded(head, features)))
    assert started.mean() > raw.mean() + 0.2


def mixed(seed: int) -> tuple[NDArray[np.float64], NDArray[np.int64], NDArray[np.bool_]]:
    """Return views (8, n, 160) of 8 photos of each of 100 items, their labels, and which of the photos are shown.

    Every channel tells items apart, and a view differs from its photo as photos of an item differ.
    """
    generator, scale = np.random.default_rng(seed), np.arange(1.0, 161) ** -0.15
    labels = np.repeat(np.arange(100), 8)
    photos = generator.normal(size=(100, 160))[labels] + 1.8 * generator.normal(size=(800, 160))
    views = photos + 2.5 * generator.normal(size=(8, 800, 160))
    views[0] = photos
    return views * scale, labels, np.arange(800) % 8 < 4


def rates(vectors: NDArray[np.float64], labels: NDArray[np.int64], shown: NDArray[np.bool_]) -> NDArray[np.float64]:
    """Return the TPIR at FPIR 5 % of new photos of items 0 to 19, and of 20 to 49; items from 50 are unknown."""
    gallery, queries = shown & (labels < 50), ~shown | (labels >= 50)
    unit = vectors.astype(np.float32)
    constants = ItemDistance()
    scores = search_scores(unit[queries], labels[queries], unit[gallery], labels[gallery], item_distance=constants)
    found, fitted = scores.correct <= threshold_at_fpir(scores, 0.05), scores.labels < 20
    return np.array([found[fitted].mean(), found[~fitted & (scores.labels < 50)].mean()])


def test_a_start_on_few_photos_keeps_new_photos_of_fitted_and_of_other_items_as_near() -> None:
    before, after = np.zeros(2), np.zeros(2)
    for seed in range(3):
        views, labels, shown = mixed(seed)
        fit = shown & (labels < 20)
        head = nn.Linear(160, 160, dtype=torch.float64)
        start_head(head, views[:, fit], labels[fit])
        before += rates(views[0], labels, shown) / 3
        after += rates(embedded(head, views[0]), labels, shown) / 3
    assert (after > before - 0.04).all(), (before, after)  # by unaugmented photos alone, both lose 0.09 and more


def test_a_pretrained_backbone_loses_no_direction_by_default(catalogue: Path) -> None:
    settings = tiny_settings(catalogue, backbone="efficientnet-lite0", dim=0)
    assert initial_model(settings)[0].head.weight.shape == (1280, 1280)
    assert initial_model(tiny_settings(catalogue, dim=0))[0].head.out_features == 128


def test_items_with_one_photo_leave_the_layer_as_it_is() -> None:
    head = nn.Linear(WIDTH, 4)
    before = head.weight.clone()
    start_head(head, np.ones((2, 5, WIDTH)), np.arange(5))
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
