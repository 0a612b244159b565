import numpy as np
import pytest

from research.metrics import diversity as module
from research.metrics.diversity import diversity, spectral_decay
from retrieval.errors import InvalidParameter

AXES = np.eye(4, dtype=np.float32)


def test_by_hand() -> None:
    """Item 0: two orthogonal photos. Item 1: one photo twice, opposite to item 0's mean direction."""
    half = np.sqrt(0.5)
    vectors = np.array([[1, 0], [0, 1], [-half, -half], [-half, -half]], dtype=np.float32)
    got = diversity(vectors, [0, 0, 1, 1])
    assert got.intra == pytest.approx((np.sqrt(2) + 0) / 2)
    assert got.inter == pytest.approx(2)
    assert got.density == pytest.approx(np.sqrt(2) / 4)
    assert got.cluster_diversity == 0  # one distance an item: no variance


def test_cluster_diversity_is_the_variance_of_the_distances_within() -> None:
    angles = np.deg2rad([0, 60, 180])  # distances 1, 2 and sqrt(3)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert diversity(vectors, [5, 5, 5]).cluster_diversity == pytest.approx(np.var([1, 2, np.sqrt(3)]), abs=1e-6)


def test_spectral_decay_by_hand() -> None:
    assert spectral_decay(np.concatenate([AXES, AXES])) == pytest.approx(0, abs=1e-12)  # all directions alike
    shares = np.array([3, 1, 1, 1]) / 6  # singular values 3, 1, 1, 1
    vectors = np.concatenate([AXES, *[AXES[:1]] * 8])
    want = float(np.mean(np.log(0.25 / shares)))
    assert spectral_decay(vectors) == pytest.approx(want)
    assert spectral_decay(vectors, skip=1) == pytest.approx(0, abs=1e-12)
    assert diversity(vectors, np.arange(12)).feature_diversity == pytest.approx(np.exp(-want))


def test_unused_directions_raise_the_decay_and_stay_finite() -> None:
    flat = spectral_decay(AXES[:2])
    assert np.isfinite(flat)
    assert flat > spectral_decay(AXES)


def test_items_of_one_photo_have_no_distance_within() -> None:
    got = diversity(AXES, [0, 0, 1, 2])
    assert got.intra == pytest.approx(np.sqrt(2))
    assert np.isnan(diversity(AXES, [0, 1, 2, 3]).intra)
    assert np.isnan(diversity(AXES, [0, 0, 0, 0]).inter)


@pytest.mark.parametrize("block", [7, 10**6])
def test_blocks_change_nothing_and_a_loop_agrees(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    vectors = generator.normal(size=(60, 6)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = generator.integers(0, 7, 60)
    means, variances, centres = [], [], []
    for item in range(7):
        own = vectors[labels == item].astype(np.float64)
        apart = [np.linalg.norm(own[i] - own[j]) for i in range(len(own)) for j in range(i)]
        means.append(np.mean(apart))
        variances.append(np.var(apart))
        centres.append(own.mean(axis=0) / np.linalg.norm(own.mean(axis=0)))
    between = np.mean([np.linalg.norm(centres[i] - centres[j]) for i in range(7) for j in range(i)])
    values = np.linalg.svd(vectors.astype(np.float64), compute_uv=False)
    monkeypatch.setattr(module, "BLOCK", block)
    got = diversity(vectors, labels)
    want = (np.mean(means), between, np.mean(means) / between, np.mean(variances))
    assert (got.intra, got.inter, got.density, got.cluster_diversity) == pytest.approx(want, abs=1e-6)
    assert got.spectral_decay == pytest.approx(-np.log(6 * values / values.sum()).mean(), abs=1e-9)


def test_what_cannot_be_measured_is_refused() -> None:
    with pytest.raises(InvalidParameter, match="one value a vector"):
        diversity(AXES, [0])
    with pytest.raises(InvalidParameter, match="skip"):
        spectral_decay(AXES, skip=4)
    with pytest.raises(InvalidParameter, match="differ from 0"):
        spectral_decay(0 * AXES)
