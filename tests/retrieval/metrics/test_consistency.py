from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InvalidParameter
from retrieval.metrics import consistency
from retrieval.metrics.consistency import GRID, opis, opis_of_ranges, search_curves, search_opis, utility_curves
from retrieval.metrics.identification import SearchScores, threshold_at_fpir

SMALL = ("small", "small_N10", "small_N1000", "small_c2", "small_explicit_range")
CASES = ("hand", "medium_explicit_range", *SMALL, "with_singleton_class")


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


def slow_opis(vectors: np.ndarray, labels: np.ndarray, far_range: tuple[float, float], grid: int) -> float:
    """Return OPIS in float64 from all distances at once, class by class, straight from the definition."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    distances = np.linalg.norm(unit[:, None] - unit[None], axis=2)
    a, b = np.triu_indices(len(labels), 1)
    apart, same = distances[a, b], labels[a] == labels[b]
    low, high = np.quantile(apart[~same], far_range)
    rows = []
    for c in np.unique(labels):
        if (labels == c).sum() < 2:
            continue
        inside = (labels[a] == c).astype(int) + (labels[b] == c)
        points = low + (high - low) * np.arange(1, grid + 1) / grid
        psi = np.array([(apart[inside == 2] <= d).mean() for d in points])
        phi = np.array([(apart[inside == 1] > d).mean() for d in points])
        rows.append(np.divide(2 * phi * psi, phi + psi, out=np.zeros(grid), where=phi + psi > 0))
    return float(np.var(rows, axis=0).mean())


@given(seed=st.integers(0, 2**32 - 1), dim=st.integers(2, 12), items=st.integers(2, 12))
def test_equals_a_slow_reference(seed: int, dim: int, items: int) -> None:
    generator = np.random.default_rng(seed)
    labels = np.concatenate([np.arange(items), np.arange(items), generator.integers(items, size=4 * items)])
    vectors = generator.normal(size=(items, dim))[labels] + generator.normal(size=(len(labels), dim))
    got = opis(vectors, labels, far_range=(0.0317, 0.2113), grid=20)  # no rank is whole: no tie
    assert got.value == pytest.approx(slow_opis(vectors, labels, (0.0317, 0.2113), 20), rel=1e-4, abs=1e-12)


def test_several_ranges_at_once_equal_each_on_its_own() -> None:
    generator = np.random.default_rng(2)
    vectors, labels = generator.normal(size=(120, 8)), generator.permutation(np.repeat(np.arange(24), 5))
    ranges = [(0.01, 0.1), (0.05, 0.3), (0.001, 0.05)]
    assert opis(vectors, labels, epsilon=0.1) != opis(vectors, labels, epsilon=0.05)
    assert opis_of_ranges(vectors, labels, far_ranges=ranges) == [opis(vectors, labels, far_range=r) for r in ranges]


@pytest.mark.parametrize(("items", "photos"), [(40, 20), (150, 4)])
def test_sampled_pairs_come_near_all_of_them(items: int, photos: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(3)
    labels = np.repeat(np.arange(items), photos)
    vectors = generator.normal(size=(items, 6))[labels] + 0.8 * generator.normal(size=(len(labels), 6))
    whole = opis(vectors, labels)
    monkeypatch.setattr(consistency, "EXACT", 0)
    sample = opis(vectors, labels)
    assert sample.value == pytest.approx(whole.value, rel=0.05)
    assert sample.d_max == pytest.approx(whole.d_max, rel=0.01)
    assert sample == opis(vectors, labels)


def test_search_curves_by_hand() -> None:
    scores = SearchScores(np.array([0, 0, 1]), np.array([0.1, 0.5, np.inf]), np.array([0.4, 0.9, 0.3]), 2)
    curves = search_curves(scores, np.array([0.05, 0.2, 0.4, 0.5]))
    assert curves.classes.tolist() == [0]  # nobody asked for item 1 with a mate in the gallery
    assert curves.specificity[0] == pytest.approx([1, 1, 0.5, 0.5])
    assert curves.sensitivity[0] == pytest.approx([0, 0.5, 0.5, 1])
    assert curves.utility[0] == pytest.approx([0, 2 * 1 * 0.5 / 1.5, 0.5, 2 * 0.5 * 1 / 1.5])


@pytest.mark.parametrize(
    ("searches", "target", "lowest"),
    [(1000, 0.1, 0.01), (200, 0.1, 0.025), (40, 0.1, 0.1), (1000, 0.02, 0.005), (10, 0.1, 0.1)],
    ids=["a tenth of the target", "five errors", "the target", "five errors below it", "never above the target"],
)
def test_search_opis_begins_at_a_tenth_of_the_target_and_at_five_errors_at_least(
    searches: int, target: float, lowest: float
) -> None:
    generator = np.random.default_rng(searches)
    own, impostor = generator.uniform(0, 1, searches), generator.permutation(np.arange(1, searches + 1)) / searches
    scores = SearchScores(generator.permutation(np.arange(searches) // 3), own, impostor, searches)
    found = search_opis(scores, target)
    assert (found.d_min, found.d_max) == tuple(threshold_at_fpir(scores, rate) for rate in (lowest, target))
    accepted = [int((impostor <= distance).sum()) for distance in (found.d_min, found.d_max)]
    assert accepted[0] == max(1, round(lowest * searches))
    curves = search_curves(scores, np.linspace(found.d_min, found.d_max, GRID))
    assert found.value == pytest.approx(np.var(curves.utility, axis=0).mean())


@given(seed=st.integers(0, 2**32 - 1), items=st.integers(1, 9))
def test_search_curves_are_those_of_each_item_on_its_own(seed: int, items: int) -> None:
    generator = np.random.default_rng(seed)
    labels = np.r_[np.arange(items), generator.integers(0, items, 3 * items)]
    own = np.where(generator.random(len(labels)) < 0.2, np.inf, generator.random(len(labels)))
    scores = SearchScores(generator.permutation(labels), own, generator.random(len(labels)), items)
    points = np.sort(generator.random(5))
    curves = search_curves(scores, points)
    mated = [item for item in range(items) if np.isfinite(own[scores.labels == item]).any()]
    assert curves.classes.tolist() == mated
    for row, item in enumerate(mated):
        mine = scores.labels == item
        asked = scores.correct[mine & np.isfinite(own)]
        assert curves.specificity[row] == pytest.approx([(scores.impostor[mine] > p).mean() for p in points])
        assert curves.sensitivity[row] == pytest.approx([(asked <= p).mean() for p in points])


def test_the_worst_class_is_first_and_epsilon_opis_is_the_gap_between_both_ends() -> None:
    """Searches of six items, each at one distance of its own: the utility of one is 0 or 1 at each of 5 thresholds."""
    distances = np.array([0.3, 0.1, 0.5, 0.2, 0.6, 0.4])
    scores = SearchScores(np.array([3, 1, 5, 2, 6, 4]), distances, np.full(6, 9.0), 6)
    points = np.array([0.1, 0.2, 0.3, 0.4, 0.5])
    found = consistency._opis_of(search_curves(scores, points), 0.34, 1.0, 0.1, 0.5)
    assert list(found.per_class) == [6, 5, 4, 3, 2, 1]
    assert list(found.per_class.values()) == pytest.approx([0, 0.2, 0.4, 0.6, 0.8, 1])
    best = np.array([2 / 3, 1, 1, 1, 1])  # of items 1 and 2: half of them is found at first
    worst = np.array([0, 0, 0, 0, 2 / 3])  # of items 5 and 6
    assert found.epsilon_value == pytest.approx(((best - worst) ** 2).mean())
    found_at = (np.sort(distances)[:, None] <= points).astype(float)
    assert found.value == pytest.approx(found_at.var(axis=0).mean())


def test_a_consistent_world_scores_zero() -> None:
    corners = np.repeat(np.eye(4), 3, axis=0)  # four classes, each in one point, all equally far apart
    got = opis(corners, np.repeat(np.arange(4), 3), distance_range=(0.5, 1.0))
    assert got.value == 0
    assert got.epsilon_value == 0


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


@pytest.mark.parametrize("labels", [[0, 1, 2, 3], [7, 7, 7, 7]])
def test_labels_without_two_classes_or_a_pair_are_refused(labels: list[int]) -> None:
    with pytest.raises(InvalidParameter, match="two classes or more, one of them twice"):
        opis(np.eye(4), labels)


@pytest.mark.parametrize("distances", [[], [[0.1, 0.2]], [0.2, 0.1], 0.3])
def test_distances_that_are_no_ascending_list_are_refused(distances: object) -> None:
    with pytest.raises(InvalidParameter, match="a list in ascending order"):
        utility_curves(np.eye(4), [0, 0, 1, 1], distances)  # type: ignore[arg-type]
    assert utility_curves(np.eye(4), [0, 0, 1, 1], [0.2, 0.2]).distances.tolist() == [0.2, 0.2]


def test_a_range_of_one_distance_is_that_distance() -> None:
    vectors, labels = np.random.default_rng(4).normal(size=(12, 3)), np.repeat(np.arange(4), 3)
    found = opis(vectors, labels, distance_range=(0.9, 0.9), grid=3)
    assert found.value == pytest.approx(np.var(utility_curves(vectors, labels, [0.9]).utility))


def test_nan_is_refused() -> None:
    vectors = np.ones((4, 2))
    vectors[0, 0] = np.nan
    with pytest.raises(InvalidParameter, match="finite"):
        opis(vectors, [0, 0, 1, 1])
