import math
from itertools import product
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from retrieval.errors import InvalidParameter
from retrieval.metrics import consistency
from retrieval.metrics.consistency import f_score, opis, opis_of_ranges, search_curves, utility_curves
from retrieval.metrics.identification import SearchScores

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


def uneven_searches(seed: int, items: int, *, spread: float = 0.3) -> SearchScores:
    """Return searches for items with 1 to 9 photos each, shuffled, some of which are found farther away than others."""
    generator = np.random.default_rng(seed)
    labels = generator.permutation(np.repeat(np.arange(items) * 3 % items, np.arange(items) % 9 + 1))
    hard = generator.uniform(0, spread, items)
    own = 0.4 + hard[labels] + generator.uniform(0, 0.5, len(labels))
    return SearchScores(labels, own, generator.uniform(0.5, 1.5, len(labels)), items)


def test_consistency_is_that_of_loops_over_items() -> None:
    scores = uneven_searches(5, 31)
    found = consistency.consistency(scores, 0.7)
    shares, utility = [], []
    for item in np.unique(scores.labels):
        own = scores.labels == item
        right = (scores.own[own] <= 0.7) & (scores.own[own] < scores.impostor[own])
        quiet = (scores.impostor[own] > 0.7).mean()
        shares.append(right.mean())
        utility.append(0 if quiet + right.mean() == 0 else 2 * quiet * right.mean() / (quiet + right.mean()))
    assert found.tpir == pytest.approx(np.mean(shares))
    assert found.opis == pytest.approx(np.var(utility))
    assert found.never_found == np.mean(np.array(shares) == 0) > 0
    worst = np.sort(shares)
    assert found.worse_half == pytest.approx((worst[:15].sum() + worst[15] / 2) / 15.5)
    assert found.worse_half < found.tpir


def test_opis_by_chance_is_the_mean_over_all_outcomes_of_equal_items() -> None:
    scores = SearchScores(np.array([7, 7, 3]), np.array([0.1, 0.9, 0.2]), np.array([0.5, 1.0, 1.0]), 2)
    rates = consistency.consistency(scores, 0.5)
    tpir, quiet = 0.75, 0.75  # means over the items: (0.5 + 1) / 2 and (0.5 + 1) / 2
    expected = 0.0
    outcomes = list(product(range(3), range(3), range(2), range(2)))  # found and quiet of the one and the other item
    for first, calm, second, other in outcomes:
        chance = np.prod([
            binomial(first, 2, tpir), binomial(calm, 2, quiet), binomial(second, 1, tpir), binomial(other, 1, quiet),
        ])  # fmt: skip
        pair = f_score(np.array([calm / 2, other]), np.array([first / 2, second]))
        expected += float(chance) * float(np.var(pair))
    assert rates.tpir == tpir
    assert rates.opis_by_chance == pytest.approx(expected, rel=0.02)


def binomial(hits: int, count: int, share: float) -> float:
    return math.comb(count, hits) * share**hits * (1 - share) ** (count - hits)


def test_of_items_that_are_alike_opis_is_that_of_chance_and_more_of_others() -> None:
    alike = [consistency.consistency(uneven_searches(seed, 300, spread=0.0), 0.65) for seed in range(5)]
    assert np.mean([each.opis / each.opis_by_chance for each in alike]) == pytest.approx(1, abs=0.06)
    uneven = consistency.consistency(uneven_searches(0, 300, spread=0.6), 0.9)
    assert uneven.opis > 1.3 * uneven.opis_by_chance


def test_systems_are_compared_where_both_find_what_the_weaker_one_finds() -> None:
    """A system that finds nothing has no lower OPIS than one that finds something."""
    strong = uneven_searches(1, 60)
    weak = SearchScores(strong.labels, strong.own + 0.2, strong.impostor + 0.2, strong.gallery_items)
    first, second = consistency.at_equal_tpir([strong, weak], [0.7, 0.7])
    assert first.tpir == pytest.approx(consistency.consistency(weak, 0.7).tpir)
    assert first.tpir == pytest.approx(second.tpir)
    assert 0 < first.tpir < consistency.consistency(strong, 0.7).tpir
    assert first.opis == pytest.approx(second.opis)  # it is the same system with another scale
    assert consistency.consistency(weak, 0.1).opis == 0 < consistency.consistency(strong, 0.7).opis


@given(seed=st.integers(0, 2**32 - 1), tpir=st.floats(0, 1))
def test_the_threshold_of_a_tpir_is_the_least_that_reaches_it(seed: int, tpir: float) -> None:
    scores = uneven_searches(seed, 7)
    threshold = consistency.threshold_at_tpir(scores, tpir)
    reached = consistency.consistency(scores, threshold).tpir
    most = consistency.consistency(scores, 9.0).tpir
    assert reached >= min(tpir, most) - 1e-9
    if tpir > 0:
        assert consistency.consistency(scores, np.nextafter(threshold, -1)).tpir < reached <= most


def test_without_a_mated_search_there_is_no_consistency() -> None:
    scores = SearchScores(np.array([1, 2]), np.full(2, np.inf), np.array([0.3, 0.4]), 2)
    with pytest.raises(InvalidParameter, match="have a mated search"):
        consistency.consistency(scores, 0.5)


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
