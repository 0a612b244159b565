from pathlib import Path

import numpy as np
import pytest

from retrieval import consistency
from retrieval.consistency import f_score, opis, utility_curves
from retrieval.errors import InvalidParameter

CASES = (
    "hand",
    "medium_explicit_range",
    "small",
    "small_N10",
    "small_N1000",
    "small_c2",
    "small_explicit_range",
    "with_singleton_class",
)


def golden(folder: Path, case: str) -> dict[str, np.ndarray]:
    with np.load(folder / "golden" / "opis.npz", allow_pickle=False) as file:
        return {key.split("__")[1]: file[key] for key in file.files if key.startswith(f"{case}__")}


@pytest.mark.data
@pytest.mark.parametrize("case", CASES)
def test_golden_values(test_data: Path, case: str) -> None:
    want = golden(test_data, case)
    given = case == "hand" or "explicit" in case
    for name, epsilon in (("010", 0.1), ("025", 0.25), ("033", 0.33), ("050", 0.5), ("100", 1.0)):
        got = opis(
            want["emb"],
            want["labels"],
            grid=len(want["grid"]),
            epsilon=epsilon,
            distance_range=(float(want["d_min"]), float(want["d_max"])) if given else None,
            c=float(want.get("c", 1.0)),
        )
        assert got.value == pytest.approx(float(want["opis"]), rel=1e-9)
        assert got.d_min == pytest.approx(float(want["d_min"]), rel=1e-12)
        assert got.d_max == pytest.approx(float(want["d_max"]), rel=1e-12)
        if f"eps{name}_opis" in want:
            assert got.epsilon_value == pytest.approx(float(want[f"eps{name}_opis"]), rel=1e-9, abs=1e-15)
    curves = utility_curves(want["emb"], want["labels"], want["grid"], c=float(want.get("c", 1.0)))
    assert np.allclose(curves.specificity, want["specificity"], atol=1e-12)
    assert np.allclose(curves.sensitivity, want["sensitivity"], atol=1e-12)
    assert np.allclose(curves.utility, want["utility"], atol=1e-12)


def slow_opis(vectors: np.ndarray, labels: np.ndarray, low: float, high: float, grid: int) -> float:
    """Return OPIS by looping over pairs, straight from the definition."""
    total, classes = 0.0, [c for c in np.unique(labels) if (labels == c).sum() > 1]
    n = len(labels)
    for j in range(1, grid + 1):
        d = low + (high - low) * j / grid
        utilities = []
        for c in classes:
            tp = fp = p = neg = 0
            for a in range(n):
                for b in range(a + 1, n):
                    inside = int(labels[a] == c) + int(labels[b] == c)
                    near = np.linalg.norm(vectors[a] - vectors[b]) <= d
                    p, tp = p + (inside == 2), tp + (inside == 2 and near)
                    neg, fp = neg + (inside == 1), fp + (inside == 1 and near)
            phi, psi = 1 - fp / neg, tp / p
            utilities.append(2 * phi * psi / (phi + psi) if phi + psi else 0.0)
        total += np.var(utilities)
    return total / grid


@pytest.mark.parametrize("seed", range(3))
def test_equals_a_loop_over_pairs(seed: int) -> None:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(14, 4))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    labels = generator.integers(0, 4, 14)
    got = opis(vectors, labels, distance_range=(0.6, 1.3), grid=5)
    assert got.value == pytest.approx(slow_opis(vectors, labels, 0.6, 1.3, 5), rel=1e-9)


@pytest.mark.parametrize("block", [50, 1000])
def test_blocks_change_nothing(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(0)
    vectors, labels = generator.normal(size=(60, 8)), np.repeat(np.arange(12), 5)
    whole = opis(vectors, labels)
    monkeypatch.setattr(consistency, "BLOCK", block)
    parts = opis(vectors, labels)
    assert parts.value == pytest.approx(whole.value, rel=1e-12)
    assert parts.d_min == pytest.approx(whole.d_min, rel=1e-12)


def test_the_range_is_numpys_quantile_of_the_negative_distances() -> None:
    generator = np.random.default_rng(1)
    vectors, labels = generator.normal(size=(50, 8)), np.repeat(np.arange(10), 5)
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    a, b = np.triu_indices(50, 1)
    negative = np.linalg.norm(unit[a] - unit[b], axis=1)[labels[a] != labels[b]]
    got = opis(vectors, labels, far_range=(0.03, 0.2))
    assert (got.d_min, got.d_max) == pytest.approx(np.quantile(negative, [0.03, 0.2]), rel=1e-12)


def test_a_consistent_world_scores_zero() -> None:
    corners = np.repeat(np.eye(4), 3, axis=0)  # four classes, each in one point, all equally far apart
    got = opis(corners, np.repeat(np.arange(4), 3), distance_range=(0.5, 1.0))
    assert got.value == 0
    assert got.epsilon_value == 0


def test_a_collapsed_model_is_measured_and_useless() -> None:
    got = opis(np.ones((8, 3)), np.repeat([0, 1], 4))
    assert (got.value, got.d_min, got.d_max) == (0, 0, 0)
    assert set(got.per_class.values()) == {0.0}


def test_f_score_by_hand() -> None:
    assert f_score(np.array([1.0, 0.5, 0.0]), np.array([0.5, 0.5, 0.0])) == pytest.approx([2 / 3, 0.5, 0.0])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"grid": 0}, "grid"),
        ({"epsilon": 0.0}, "epsilon"),
        ({"far_range": (0.2, 0.1)}, "far_range"),
        ({"distance_range": (1.0, 0.5)}, "distance range"),
    ],
)
def test_broken_rules_are_named(changes: dict, message: str) -> None:
    vectors = np.random.default_rng(0).normal(size=(8, 3))
    with pytest.raises(InvalidParameter, match=message):
        opis(vectors, np.repeat([0, 1], 4), **changes)


def test_nan_is_refused() -> None:
    vectors = np.ones((4, 2))
    vectors[0, 0] = np.nan
    with pytest.raises(InvalidParameter, match="finite"):
        opis(vectors, [0, 0, 1, 1])
