"""Explanations of wrong searches, against figures by hand, `identification_rates` and a slow search."""

import numpy as np
import pytest

from index.search.distance import PLAIN, DistanceForm, plain_distance, squared_distance
from retrieval.bundle.density import ADDITIVE, Cohort, LocalDensity
from retrieval.errors import InvalidParameter
from retrieval.metrics.consistency import opis
from retrieval.metrics.identification import identification_rates
from training.evaluation.evaluate import EvaluationSplit, score_split
from training.explain.item_search import ANSWERS, ItemSearch
from training.explain.item_utilities import item_utilities
from training.explain.outcomes import FALSE_ALARM, FOUND, MISIDENTIFIED, MISSED, OUTCOMES, UNMATED, explain

THRESHOLD = 2 * np.sin(np.radians(10) / 2)  # ten degrees apart


def circle(*degrees: float) -> np.ndarray:
    angles = np.radians(np.array(degrees))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def clouds(items: int = 12, photos: int = 5, *, spread: float = 0.5, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(items), photos)
    points = generator.normal(size=(items, 6))[labels] + spread * generator.normal(size=(len(labels), 6))
    return (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32), labels


def all_against_all(count: int) -> EvaluationSplit:
    return EvaluationSplit("unseen", np.arange(count), np.arange(count))


# positions 0 to 4 are the gallery: items 0, 0, 1, 2, 3; positions 5 to 10 ask for items 0, 1, 1, 2, 3, 4
GALLERY = (0, 20, 45, 90, 170)
LABELS = np.array([0, 0, 1, 2, 3, 0, 1, 1, 2, 3, 4])
SCENE = EvaluationSplit("unseen", np.arange(5, 11), np.arange(5))
VECTORS = circle(*GALLERY, 2, 23, 38, 130, 165, 86)


def test_every_outcome_by_hand() -> None:
    found = explain(SCENE, VECTORS, LABELS, threshold=THRESHOLD)
    kinds = [OUTCOMES[kind] for kind in found.outcomes.kind]
    assert kinds == [FOUND, MISIDENTIFIED, FOUND, MISSED, FOUND, UNMATED]
    assert found.outcomes.false_alarm.tolist() == [False, True, False, False, False, True]
    assert found.outcomes.nearest_other.tolist() == [1, 0, 0, 3, 2, 2]
    worst = {kind: [query.photo for query in queries] for kind, queries in found.worst.items()}
    assert worst == {MISIDENTIFIED: [6], MISSED: [8], FALSE_ALARM: [10]}
    query = found.worst[MISIDENTIFIED][0]  # 23°: nearest is item 0 at 20°, then its own at 45°
    assert [(one.item, one.photo, one.accepted) for one in query.neighbours] == [
        (0, 1, True),
        (1, 2, False),
        (2, 3, False),
        (3, 4, False),
    ]
    assert query.neighbours[0].distance == pytest.approx(2 * np.sin(np.radians(3) / 2), abs=1e-6)
    assert query.own == query.neighbours[1]
    assert found.worst[FALSE_ALARM][0].own is None
    assert [(pair.items, pair.times, pair.first, pair.queries) for pair in found.confused] == [
        ((0, 1), 1, 1, 3),
        ((2, 4), 1, 0, 2),
    ]
    assert found.confused[0].distance == pytest.approx(2 * np.sin(np.radians(3) / 2), abs=1e-6)
    assert [(one.query, one.photo) for one in found.confused[0].examples] == [(6, 1)]


def test_a_distance_exactly_at_the_threshold_is_a_match() -> None:
    exact = float(plain_distance(VECTORS[[6]], VECTORS[[1]])[0])
    for threshold, outcome in ((exact, MISIDENTIFIED), (np.nextafter(exact, 0), MISSED)):
        found = explain(SCENE, VECTORS, LABELS, threshold=float(threshold))
        assert OUTCOMES[found.outcomes.kind[1]] == outcome


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize("corrected", [False, True])
def test_the_counts_are_those_of_the_rates(seed: int, corrected: bool) -> None:
    vectors, labels = clouds(seed=seed)
    distance_form: DistanceForm = LocalDensity.fit(ADDITIVE, 4, Cohort.of(vectors, labels)) if corrected else PLAIN
    split = all_against_all(len(labels))
    scores = score_split(split, vectors, labels, distance_form=distance_form)
    for threshold in np.quantile(scores.impostor, [0.1, 0.5, 1.0]):
        found = explain(split, vectors, labels, threshold=float(threshold), distance_form=distance_form)
        rates = identification_rates(scores, float(threshold))
        n = len(labels)
        assert found.outcomes.count(FOUND) / n == pytest.approx(rates.tpir)
        assert found.outcomes.count(MISIDENTIFIED) / n == pytest.approx(rates.misidentification)
        assert found.outcomes.count(MISSED) / n == pytest.approx(1 - rates.tpir - rates.misidentification)
        assert found.outcomes.false_alarm.mean() == pytest.approx(rates.fpir)
        assert repr(found.rates) == repr(rates)  # NaN where there is no query of an unknown item


@pytest.mark.parametrize("corrected", [False, True])
def test_searches_agree_with_a_slow_one(corrected: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("retrieval.metrics.item_distances.BLOCK", 300)  # several blocks
    vectors, labels = clouds(items=15, seed=3)
    distance_form: DistanceForm = LocalDensity.fit(ADDITIVE, 4, Cohort.of(vectors, labels)) if corrected else PLAIN
    split = all_against_all(len(labels))
    search = ItemSearch(split, vectors, labels, threshold=0.9, distance_form=distance_form)
    answers = search.other_answers()
    density = distance_form.densities(vectors)
    expected, nearest = set(), []
    for query in range(len(labels)):
        squared = squared_distance(vectors[[query]], vectors)
        distances = distance_form.transform(squared, np.full(len(labels), density[query]), density)
        far = {item: distances[(labels == item)].min() for item in set(labels.tolist()) - {labels[query]}}
        ranked = sorted(far, key=far.__getitem__)
        nearest.append(ranked[0])
        expected |= {(query, item, rank) for rank, item in enumerate(ranked[:ANSWERS]) if far[item] <= 0.9}
    assert answers.nearest.tolist() == nearest
    assert set(zip(answers.rows.tolist(), answers.items.tolist(), answers.ranks.tolist(), strict=True)) == expected
    assert len(expected) > 20
    own = search.nearest_photo(7, int(labels[7]))
    assert own is not None
    assert own.photo != 7
    assert labels[own.photo] == labels[7]


def test_the_worst_come_first_and_are_as_many_as_asked_for() -> None:
    vectors, labels = clouds(spread=0.9)
    split = all_against_all(len(labels))
    threshold = float(np.median(score_split(split, vectors, labels).impostor))
    few, many = (explain(split, vectors, labels, threshold=threshold, worst=worst) for worst in (2, 50))
    for kind, queries in few.worst.items():
        assert len(queries) == 2
        assert queries == many.worst[kind][:2]
    lacking = [q.own.distance - min(q.neighbours[0].distance, threshold) for q in many.worst[MISSED] if q.own]
    assert lacking == sorted(lacking, reverse=True)
    assert all(value > 0 for value in lacking)
    assert all(query.outcome != MISIDENTIFIED for query in many.worst[FALSE_ALARM])
    times = [pair.times for pair in many.confused]
    assert times == sorted(times, reverse=True)


@pytest.mark.parametrize("worst", [0, 51])
def test_an_impossible_number_is_refused(worst: int) -> None:
    with pytest.raises(InvalidParameter, match=r"worst must lie between 1 and 50"):
        explain(SCENE, VECTORS, LABELS, threshold=THRESHOLD, worst=worst)


def test_items_of_one_photo_have_no_mate_and_no_utility() -> None:
    vectors = circle(0, 4, 60, 90)
    found = explain(all_against_all(4), vectors, np.arange(4), threshold=THRESHOLD)
    assert found.outcomes.count(UNMATED) == 4
    assert found.utilities is None
    assert np.isnan(found.rates.tpir)
    assert [query.photo for query in found.worst[FALSE_ALARM]] == [0, 1]
    assert [(pair.items, pair.times) for pair in found.confused] == [((0, 1), 2)]


def test_one_item_alone_is_never_confused() -> None:
    found = explain(all_against_all(3), circle(0, 4, 40), np.zeros(3, np.int64), threshold=THRESHOLD)
    assert found.outcomes.nearest_other.tolist() == [-1, -1, -1]
    assert found.confused == ()
    assert found.worst[MISSED][0].photo == 2


def test_utilities_are_those_of_opis() -> None:
    vectors, labels = clouds(spread=0.7)
    split = EvaluationSplit("unseen", np.arange(10, 60), np.arange(5, 60))  # the first item takes no part
    found = item_utilities(split, vectors, labels)
    expected = opis(vectors[5:], labels[5:])
    assert found is not None
    assert found.opis == expected.value
    assert [(one.item, one.utility) for one in found.items] == list(expected.per_class.items())
    assert found.items[0].utility < found.items[-1].utility
    assert all(len(one.curve) == len(found.distances) == len(found.mean) for one in found.items)
    inside = (np.array(found.distances) > found.d_min) & (np.array(found.distances) <= found.d_max)
    for one in found.items:
        assert np.mean(np.array(one.curve)[inside]) == pytest.approx(one.utility, abs=0.05)
        assert {int(labels[photo]) for photo in one.examples} == {one.item}
