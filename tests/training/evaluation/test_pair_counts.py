from collections.abc import Iterator

import numpy as np
import pytest
import torch

from retrieval.metrics.consistency import opis
from retrieval.metrics.pairs import Pairs
from training.evaluation import pair_counts
from training.evaluation.pair_counts import GpuPairs, pair_counter

DEVICES = [
    "cpu",
    pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")),
]


@pytest.fixture(scope="module")
def embeddings() -> Iterator[tuple[np.ndarray, np.ndarray]]:
    generator = np.random.default_rng(0)
    labels = np.repeat(np.arange(200), 7)  # 1,400 photos: two tiles a side
    vectors = generator.normal(size=(200, 24))[labels] + 1.2 * generator.normal(size=(1400, 24))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pair_counts, "TILE", 1000)
        yield vectors.astype(np.float32), labels


@pytest.mark.parametrize("device", DEVICES)
def test_counts_are_those_of_the_cores(embeddings: tuple[np.ndarray, np.ndarray], device: str) -> None:
    vectors, labels = embeddings
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    points = np.array([0.0, 0.5, 0.9, 1.2, 1.4, 2.0])
    here, there = Pairs(unit, labels), GpuPairs(unit, labels, device=device)
    one, other = here.within(points), there.within(points)
    assert (one.all_positives == other.all_positives).all()
    assert (one.all_negatives == other.all_negatives).all()
    assert other.negatives[:, -1].sum() == other.all_negatives.sum()
    for mine, theirs in ((one.positives, other.positives), (one.negatives, other.negatives)):
        assert np.abs(mine - theirs).max() <= 2  # a distance on an edge may round to either side
    shares = np.array([[1e-4, 1e-2], [0.1, 0.5]])
    assert there.in_ranges(shares, 5)[0] == pytest.approx(here.in_ranges(shares, 5)[0], abs=1e-5)


@pytest.mark.parametrize("device", DEVICES)
def test_opis_is_the_same(embeddings: tuple[np.ndarray, np.ndarray], device: str) -> None:
    expected = opis(*embeddings)
    got = opis(*embeddings, counter=lambda unit, codes: GpuPairs(unit, codes, device=device))
    assert got.value == pytest.approx(expected.value, rel=1e-4)
    assert got.epsilon_value == pytest.approx(expected.epsilon_value, rel=1e-4)
    assert got.d_max == pytest.approx(expected.d_max, abs=1e-5)


def test_the_gpu_counts_where_there_is_one() -> None:
    assert (pair_counter() is Pairs) == (not torch.cuda.is_available())
