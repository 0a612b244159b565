"""Promises: thresholds of vectors are those of photos in arrays, and decisions are typed, also on odd lists."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.errors import CalibrationError, DataError, InvalidParameter
from retrieval.measuring.measure import measure
from retrieval.measuring.point import PROMISE
from retrieval.promise.metric import METRICS
from retrieval.promise.neighbours import gaps, listed
from retrieval.promise.promise import Promise

from .shops import DIM, Shop, means, promise_of, queries_of, shop, unit


@pytest.fixture(scope="module")
def here() -> Shop:
    return shop(1, numeric=True)


@pytest.fixture(scope="module")
def promise(here: Shop) -> Promise:
    return promise_of(here)


def some_match(here: Shop, promise: Promise) -> np.ndarray:
    """Return a query that matches: a vector of the shop, moved a little."""
    for query in queries_of(here, 60)[2::6]:
        if promise.decide(query, here.neighbours(query, 100)).matched:
            return np.asarray(query)
    raise AssertionError("no query matches")


# thresholds


def test_thresholds_are_those_of_the_same_photos_in_arrays(here: Shop, promise: Promise) -> None:
    for target in (0.05, 0.1):
        measured = promise if target == 0.05 else promise_of(here, target_fpir=target)
        for distance, limit in (
            (NEAREST_PHOTO, measured.level.score),
            (ItemDistance.default(), measured.level.item_distance),
        ):
            point = measure(here.photos, distance, target_fpir=target, origin=PROMISE).required
            assert limit is not None
            threshold = limit.threshold
            if distance == NEAREST_PHOTO:
                threshold = float(METRICS["cosine"].distances(threshold))
            assert threshold == pytest.approx(point.threshold, abs=1e-12)
            assert (limit.fpir, limit.fpir_upper, limit.tpir) == (
                point.rates.fpir_expected,
                point.rates.fpir_upper,
                point.rates.tpir,
            )


def test_shuffled_rows_with_the_same_photo_ids_have_the_same_thresholds(here: Shop) -> None:
    """Of items with more vectors than draws use: without photo_ids, other vectors are drawn."""
    ids = [f"photo {row}" for row in range(len(here.items))]
    order = np.random.default_rng(5).permutation(len(ids)).tolist()
    first = Promise.measure(here.vectors, here.items, groups=here.groups, photo_ids=ids)
    second = Promise.measure(
        here.vectors[order],
        [int(here.items[row]) for row in order],
        groups=[here.groups[row] for row in order],
        photo_ids=[ids[row] for row in order],
    )
    assert first.levels == second.levels
    assert first.fingerprint == second.fingerprint
    assert first.largest_gap == pytest.approx(second.largest_gap)


class Column:
    """A column of a table, of which only `__array__` is known."""

    def __init__(self, values: Any) -> None:
        self.values = values

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Return the values as an array."""
        return np.array(self.values, dtype=dtype)


def rows_of(vectors: np.ndarray) -> np.ndarray:
    """Return an array of objects, as a column of embeddings in a table is."""
    rows = np.empty(len(vectors), dtype=object)
    for place, vector in enumerate(vectors):
        rows[place] = vector
    return rows


def mapped(vectors: np.ndarray, folder: Path) -> np.ndarray:
    np.save(folder / "v.npy", vectors)
    return np.asarray(np.load(folder / "v.npy", mmap_mode="r"))


@pytest.mark.parametrize(
    "form",
    [
        lambda vectors, _: vectors.astype(np.float64),
        lambda vectors, _: vectors.astype(">f4"),
        lambda vectors, _: np.asfortranarray(vectors),
        lambda vectors, _: vectors.tolist(),
        lambda vectors, _: Column(vectors),
        lambda vectors, _: Column(rows_of(vectors)),
        lambda vectors, _: rows_of(vectors),
        lambda vectors, _: [*vectors],
        mapped,
        lambda vectors, _: 7 * vectors,
        lambda vectors, _: vectors.astype(np.float64) * np.linspace(1e-3, 1e3, len(vectors))[:, None],
    ],
)
def test_vectors_of_any_form_and_length_have_the_same_thresholds(
    here: Shop, promise: Promise, tmp_path: Path, form: Callable[[np.ndarray, Path], Any]
) -> None:
    again = Promise.measure(form(here.vectors, tmp_path), Column(here.items), groups=here.groups)
    for before, after in zip(promise.levels, again.levels, strict=True):
        if before.score is not None and before.item_distance is not None:
            assert after.score is not None
            assert after.item_distance is not None
            assert after.score.threshold == pytest.approx(before.score.threshold, abs=1e-6)
            assert after.item_distance.threshold == pytest.approx(before.item_distance.threshold, abs=1e-6)


@pytest.mark.parametrize("kind", [np.float16, np.int8, np.int32, np.uint8])
def test_rounded_vectors_are_measured(here: Shop, kind: type[np.generic]) -> None:
    rounded = (here.vectors * 100 + (128 if kind is np.uint8 else 0)).astype(kind)
    assert Promise.measure(rounded, here.items).level.item_distance is not None


@pytest.mark.parametrize("metric", METRICS)
def test_each_metric_has_the_same_thresholds_as_its_own_scores(here: Shop, promise: Promise, metric: str) -> None:
    again = promise_of(here, metric=metric)
    assert again.level.item_distance == promise.level.item_distance
    assert again.level.score is not None
    assert promise.level.score is not None
    expected = METRICS[metric].scores(METRICS["cosine"].distances([promise.level.score.threshold]))
    assert again.level.score.threshold == pytest.approx(float(expected[0]), abs=1e-9)
    query = some_match(here, promise)
    for k in (5, 100):
        answers = [
            each.decide(query, here.neighbours(query, k, name)) for each, name in ((promise, "cosine"), (again, metric))
        ]
        assert answers[0].decision == answers[1].decision
        assert [match.item_id for match in answers[0].matches] == [match.item_id for match in answers[1].matches]


def test_labelled_queries_and_unknown_ones_are_measured(here: Shop, promise: Promise) -> None:
    generator = np.random.default_rng(6)
    rows = generator.permutation(len(here.items))[:200]
    known = unit(here.vectors[rows] + 0.3 * generator.normal(size=(200, DIM)))
    unknown = unit(generator.normal(size=(40, DIM)))
    vectors = np.concatenate([known, unknown])
    for missing in ("", None, float("nan")):
        labels: list[Any] = [int(here.items[row]) for row in rows.tolist()] + [missing] * 40
        measured = Promise.measure(here.vectors, here.items, groups=here.groups, queries=(vectors, labels))
        assert measured.drawn is not None
        assert {*measured.drawn.by_distance.sources} == {"own", "labelled", "unknown"}
        assert "240" in measured.assumptions[1]
        assert measured.known != promise.known


@pytest.mark.parametrize(
    ("queries", "message"),
    [
        (unit(np.ones((3, DIM))), "queries must be a pair of vectors and items, got 'ndarray'"),
        ((unit(np.ones((1, 5))), [""]), "queries must have 24 numbers each"),
        ((np.zeros((1, DIM)), [""]), "queries must be finite and not zero, got 'query 0 of length 0'"),
        ((np.r_[np.ones((1, DIM)), np.full((1, DIM), np.nan)], ["", ""]), "query 1 of length nan"),
        ((np.ones((1, DIM)), ["no such item"]), "no such item.*Write an empty id"),
        ((np.ones((2, DIM)), [""]), "queries must be one id for each of the 2 vectors"),
    ],
)
def test_wrong_queries_are_refused_by_name(here: Shop, queries: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Promise.measure(here.vectors, here.items, queries=queries)


def test_a_target_that_too_few_items_support_is_refused_with_the_number_of_items(here: Shop, promise: Promise) -> None:
    with pytest.raises(CalibrationError, match=r"an FPIR of 0\.001 needs about 999 items, and there are 120: add"):
        Promise.measure(here.vectors, here.items, target_fpir=0.001)
    assert [level.target_fpir for level in promise.levels] == [0.05, 0.01, 0.001]
    for level in promise.levels:
        assert (level.items_needed > 0) == (level.score is None and level.item_distance is None)
        assert level.items_needed == 0 or level.items_needed >= 1 / level.target_fpir - 1
    with pytest.raises(CalibrationError, match=r"19 items, and a threshold is measured on at least 20"):
        Promise.measure(unit(np.random.default_rng(0).normal(size=(40, 8))), np.arange(40) % 19)
    with pytest.raises(CalibrationError, match=r"0 items"):
        Promise.measure(np.zeros((0, 8)), [], metric="ip")


@pytest.mark.parametrize("target", [0, 1, -0.1, float("nan")])
def test_a_target_outside_of_0_and_1_is_refused(here: Shop, target: float) -> None:
    with pytest.raises(InvalidParameter, match="target_fpir must be a number between 0 and 1"):
        Promise.measure(here.vectors, here.items, target_fpir=target)


# decisions


def test_decisions_by_long_lists_are_those_of_a_full_search(here: Shop, promise: Promise) -> None:
    limit, ids, matched = promise.level.item_distance, np.unique(here.items), 0
    assert limit is not None
    queries = queries_of(here, 60)
    table = here.search(queries)
    answers = promise.decide(queries, [here.neighbours(query, len(here.items)) for query in queries])
    for row, answer in enumerate(answers):
        distances = table.distances[row]
        if np.abs(distances - limit.threshold).min() < 1e-3:
            continue
        within = table.items[row][distances <= limit.threshold]
        if distances[0] <= limit.threshold and answer.reason != "twins":
            assert [match.item_id for match in answer.matches] == ids[within].tolist()
            assert answer.item_id == ids[table.items[row][0]]
            matched += 1
        assert answer.matched <= bool(distances[0] <= limit.threshold)
        assert not answer.neighbours_short
    assert matched > 10


@pytest.mark.parametrize("k", [1, 2, 5, 10, 20, 50])
def test_a_short_list_never_matches_what_a_full_search_does_not(here: Shop, promise: Promise, k: int) -> None:
    for query in queries_of(here, 60, seed=k):
        short, full = (promise.decide(query, here.neighbours(query, n)) for n in (k, len(here.items)))
        if short.matched:
            assert full.item_id == short.item_id
            assert full.decision == short.decision or full.reason == "twins"
            assert {match.item_id for match in short.matches} <= {match.item_id for match in full.matches}
        else:
            assert short.matches == ()


def test_a_first_place_that_another_item_may_deserve_is_no_match() -> None:
    """An item's mean lies on the query, and its photos are not in the list: only a bound says that they are farther."""
    generator = np.random.default_rng(2)
    here, reasons = shop(1, largest=6, noise=0.9), set()
    promise = promise_of(here, target_fpir=0.3)
    for _ in range(400):
        row = int(generator.integers(len(here.items)))
        query = unit(here.vectors[[row]] + 0.15 * generator.normal(size=(1, DIM)))[0]
        answer = promise.decide(query, here.neighbours(query, 1))
        reasons.add(answer.reason)
        if answer.reason == "short_list":
            assert (answer.decision, answer.item_id, answer.matches) == ("no_match", None, ())
            assert answer.neighbours_short
            assert answer.score is not None
    assert {"", "short_list", "beyond_threshold"} <= reasons


def test_ids_of_any_type_are_the_same_items(here: Shop, promise: Promise) -> None:
    query = some_match(here, promise)
    neighbours = here.neighbours(query, 40)
    expected = promise.decide(query, neighbours)
    assert expected.matched
    kinds: list[Callable[[str], Any]] = [int, float, np.int64, np.float32, np.str_, str]
    for kind in kinds:
        assert promise.decide(query, [(kind(item), score) for item, score in neighbours]) == expected


@pytest.mark.parametrize(
    "form",
    [
        list,
        tuple,
        iter,
        lambda pairs: (pair for pair in pairs),
        lambda pairs: [list(pair) for pair in pairs],
        lambda pairs: zip(*zip(*pairs, strict=True), strict=True),
        lambda pairs: [(item, np.float64(score)) for item, score in pairs],
    ],
)
def test_neighbours_of_any_form_are_decided_alike(here: Shop, promise: Promise, form: Callable[[Any], Any]) -> None:
    query = some_match(here, promise)
    neighbours, expected = here.neighbours(query, 40), promise.decide(query, here.neighbours(query, 40))
    assert promise.decide(query, form(neighbours)) == expected
    assert promise.decide(query.tolist(), neighbours).item_id == expected.item_id
    assert promise.decide([query.tolist()], [neighbours])[0].item_id == expected.item_id  # type: ignore[call-overload]


def test_scores_in_float32_decide_alike_away_from_copies(here: Shop, promise: Promise) -> None:
    query = some_match(here, promise)
    neighbours = here.neighbours(query, 40)
    rounded = [(item, np.float32(score)) for item, score in neighbours]
    first, second = promise.decide(query, neighbours), promise.decide(query, rounded)  # type: ignore[arg-type]
    assert (first.decision, first.item_id) == (second.decision, second.item_id)
    assert second.p_value == pytest.approx(first.p_value, abs=1e-2)
    assert type(second.score) is float


def test_no_neighbours_are_no_match(promise: Promise) -> None:
    answer = promise.decide(np.ones(DIM), [])
    assert (answer.decision, answer.item_id, answer.score, answer.p_value) == ("no_match", None, None, None)
    assert (answer.reason, answer.neighbours_short) == ("no_neighbours", True)
    assert promise.decide(np.ones((2, DIM)), [[], []]) == [answer, answer]
    assert not promise.decide(np.ones((0, DIM)), [])


WRONG: list[tuple[Any, str]] = [
    ([("7", float("nan"))], "have scores of the cosine similarity, from -1 to 1, got .'7', nan"),
    ([("7", 1.5)], "have scores of the cosine similarity, from -1 to 1"),
    ([("7", -37.5)], "have scores of the cosine similarity"),
    ([("7", float("inf"))], "have scores of the cosine similarity"),
    ([(0.9, 7)], "have scores of the cosine similarity"),
    ([("7", None)], "be pairs of an item id and a score, got .'7', None"),
    ([("7", "much")], "be pairs of an item id and a score"),
    ([("7", 0.5, {})], "be pairs of an item id and a score"),
    (["7", "8"], "be pairs of an item id and a score"),
    ([7, 8], "be pairs of an item id and a score"),
    ([[("7", 0.5), ("8", 0.4)]], "be pairs of an item id and a score"),
    ([("7", 0.5), (None, 0.4)], "name the item of each vector, got .*in place 1"),
    ([("7", 0.5), (float("nan"), 0.4)], "name the item of each vector"),
    ([(" ", 0.5)], "name the item of each vector"),
    ({"7": 0.5}, "be a list of pairs"),
    ("7", "be a list of pairs"),
    (None, "be a list of pairs"),
    (5, "be a list of pairs"),
    ([(f"new {n}", 0.3) for n in range(10)], "name items of the collection.*measure the promise again"),
]


@pytest.mark.parametrize(("neighbours", "message"), WRONG)
def test_wrong_neighbours_are_refused_by_name(promise: Promise, neighbours: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=f"neighbours must {message}"):
        promise.decide(np.ones(DIM), neighbours)


@pytest.mark.parametrize(
    ("vectors", "neighbours", "message"),
    [
        (np.ones(DIM - 1), [], "vectors must have 24 numbers, got 23. Embed the query with the model"),
        (np.zeros(DIM), [], "vectors must be finite and not zero, got 'query 0 of length 0'"),
        (np.full(DIM, np.nan), [], "vectors must be finite and not zero"),
        (np.r_[1, np.full(DIM - 1, np.inf)], [], "vectors must be finite and not zero"),
        (np.full(DIM, 1e300), [], "vectors must be finite and not zero"),
        (np.stack([np.ones(DIM), np.zeros(DIM)]), [[], []], "query 1 of length 0"),
        (np.ones((2, DIM)), [[]], "neighbours must be a list for each of the 2 queries, got 1"),
        (np.ones((1, DIM)), [("7", 0.5)], "neighbours must be a list of pairs|neighbours must be pairs"),
        (np.ones((1, 1, DIM)), [[]], "vectors must be numbers"),
        (5.0, [], "vectors must be numbers"),
        (["a"] * DIM, [], "vectors must be numbers"),
        ([[1.0], [1.0, 2.0]], [[], []], "vectors must be numbers of equal dimensions"),
        (None, [], "vectors must be numbers"),
    ],
)
def test_wrong_queries_of_decisions_are_refused_by_name(
    promise: Promise, vectors: Any, neighbours: Any, message: str
) -> None:
    with pytest.raises(InvalidParameter, match=message):
        promise.decide(vectors, neighbours)


OTHER_SCORES: dict[str, Callable[[Any], Any]] = {
    "1 - cosine": lambda cosine: 1 - cosine,
    "distance": lambda cosine: np.sqrt(2 - 2 * cosine),
    "negative": lambda cosine: -cosine,
    "negative distance": lambda cosine: cosine - 1,
    "inner product": lambda cosine: 30 * cosine,
    "sigmoid": lambda cosine: 1 / (1 + np.exp(-cosine)),
    "half": lambda cosine: (1 + cosine) / 2,
}


@pytest.mark.parametrize("name", OTHER_SCORES)
@pytest.mark.parametrize("largest", [1, 12])
def test_scores_of_another_metric_are_refused(name: str, largest: int) -> None:
    wrong = OTHER_SCORES[name]
    here = shop(21, largest=largest, noise=0.4 if name != "sigmoid" else 0.1)
    promise = promise_of(here, target_fpir=0.1) if largest > 1 else promise_of(here)
    for query in queries_of(here, 12)[2::3]:
        neighbours = [(item, wrong(score)) for item, score in here.neighbours(query, 30)]
        with pytest.raises(InvalidParameter, match=r"neighbours must have (scores|the nearest first)"):
            promise.decide(query, neighbours)


def test_true_scores_somewhat_nearer_than_any_draw_are_decided(here: Shop, promise: Promise) -> None:
    """The draws are a sample: a valid query may be nearer to its neighbours' photos, beyond their average, than any."""
    known, tried = means(here), 0
    for query in queries_of(here, 30)[2::3]:
        neighbours = here.neighbours(query, 12)
        gap = float(np.median(gaps(query.astype(np.float64), listed(neighbours, METRICS["cosine"]), known)[0]))
        if gap > 0.05:
            assert replace(promise, largest_gap=(gap - 0.02) / 1.4).decide(query, neighbours)
            tried += 1
    assert tried > 3


@pytest.mark.parametrize("count", [4, 12, 30])
def test_a_photo_that_stands_under_many_items_is_no_wrong_score(count: int) -> None:
    here = shop(22)
    placeholder = unit(np.ones((1, DIM)))
    names = sorted(set(here.items))[:count]
    vectors = np.concatenate([here.vectors, np.repeat(placeholder, count, axis=0)])
    with_placeholder = Shop(vectors, [*here.items, *names], [*here.groups, *[""] * count])
    promise = promise_of(with_placeholder)
    answer = promise.decide(placeholder[0], with_placeholder.neighbours(placeholder[0], 20))
    assert {match.item_id for match in answer.matches} <= set(names)


def test_unordered_neighbours_are_decided(here: Shop, promise: Promise) -> None:
    query = some_match(here, promise)
    neighbours = here.neighbours(query, 40)
    mixed = neighbours[20:] + neighbours[:20]  # of two shards
    assert promise.decide(query, mixed) == promise.decide(query, neighbours)
    with pytest.raises(InvalidParameter, match=r"have the nearest first, where a greater score is nearer"):
        promise.decide(query, neighbours[::-1])
    assert promise.decide(query, [("7", 0.5)] * 5).reason == "beyond_threshold"


def test_the_query_of_another_model_is_refused() -> None:
    here = shop(23, noise=0.3)
    promise = promise_of(here)
    turned = np.linalg.qr(np.random.default_rng(0).normal(size=(DIM, DIM)))[0]
    for query in queries_of(here, 12)[2::3]:
        with pytest.raises(InvalidParameter, match="if the model has changed, measure the promise again"):
            promise.decide(turned @ query, here.neighbours(query, 30))


# perhaps, twins, and scores alone


def test_an_item_a_little_beyond_the_threshold_is_a_question(here: Shop, promise: Promise) -> None:
    limit = promise.level.item_distance
    assert limit is not None
    query = some_match(here, promise)
    neighbours = here.neighbours(query, len(here.items))
    first = promise.decide(query, neighbours)
    for perhaps, decision, item in ((2.0, "perhaps", first.item_id), (0.0, "no_match", None), (None, "no_match", None)):
        strict = replace(limit, threshold=-1.0, perhaps=perhaps)
        levels = tuple(replace(level, item_distance=strict) for level in promise.levels)
        answer = replace(promise, levels=levels).decide(query, neighbours)
        assert (answer.decision, answer.item_id, answer.reason) == (decision, item, "beyond_threshold")
        assert (answer.score, answer.p_value, answer.matches) == (first.score, first.p_value, ())


def test_two_ids_of_an_item_are_a_question() -> None:
    here, generator = shop(22, noise=0.4, grouped=False), np.random.default_rng(0)
    names = np.unique(here.items)[:10].tolist()
    items = [item + " bis" if item in names and generator.random() < 0.5 else item for item in here.items]
    doubled = Promise.measure(here.vectors, items)
    assert doubled.twins
    assert {*doubled.twins} <= {(name, f"{name} bis") for name in names}
    assert doubled.twins_cost is not None
    both, asked = Shop(here.vectors, items, here.groups), 0
    pairs = {name: pair for pair in doubled.twins for name in pair}
    for row in [row for row, item in enumerate(items) if item in pairs]:
        query, pair = unit(here.vectors[[row]] + 0.03 * generator.normal(size=(1, DIM)))[0], pairs[items[row]]
        answer = doubled.decide(query, both.neighbours(query, 100))
        if answer.reason == "twins":
            assert (answer.decision, answer.matches) == ("perhaps", ())
            assert answer.item_id in pair
            assert replace(doubled, twins=()).decide(query, both.neighbours(query, 100)).reason != "twins"
            asked += 1
    assert asked


def test_the_cost_of_two_ids_is_measured_on_the_labelled_queries_where_there_are_some() -> None:
    here, generator = shop(22, noise=0.4, grouped=False), np.random.default_rng(0)
    names = np.unique(here.items)[:30].tolist()
    items = [item + " bis" if item in names and generator.random() < 0.5 else item for item in here.items]
    rows = generator.permutation(len(items))[:300]
    queries = unit(here.vectors[rows] + 0.1 * generator.normal(size=(300, DIM))), [items[row] for row in rows.tolist()]
    doubled = Promise.measure(here.vectors, items, queries=queries)
    pairs = {name: pair[0] for pair in doubled.twins for name in pair}
    groups = [pairs.get(item, "") for item in items]
    one, two = Promise.measure(here.vectors, items, groups=groups, queries=queries).level.item_distance, doubled.level
    assert two.item_distance is not None
    assert one is not None
    assert one.tpir is not None
    assert two.item_distance.tpir is not None
    assert doubled.twins_cost == pytest.approx(max(0.0, one.tpir - two.item_distance.tpir), abs=1e-9)


def test_without_means_the_score_alone_decides_as_the_file_says(here: Shop, promise: Promise, tmp_path: Path) -> None:
    for metric in METRICS:
        promise_of(here, metric=metric).save(tmp_path / "p", means=False)
        assert [file.name for file in tmp_path.iterdir()] == ["p"]
        alone, values = Promise.load(tmp_path / "p"), json.loads((tmp_path / "p").read_text())
        limit = values["thresholds"][0]["score"]
        compared = {">=": np.greater_equal, "<=": np.less_equal}[values["accept"]]
        for threshold in (
            limit["threshold"],
            np.nextafter(limit["threshold"], 9),
            np.nextafter(limit["threshold"], -9),
        ):
            answer = alone.decide(np.ones(DIM), [("7", float(threshold)), ("new", float(threshold))])
            assert answer.matched == bool(compared(threshold, limit["threshold"]))
            assert len(answer.matches) == 2 * answer.matched
            assert not answer.neighbours_short
        assert alone.decide(np.ones(DIM), []).reason == "no_neighbours"
        worst = METRICS[metric].scores([1.999]).tolist()[0]
        assert alone.decide(np.ones(DIM), [("7", worst)]).decision == "no_match"


def test_a_question_at_score_0_is_one(here: Shop, tmp_path: Path) -> None:
    """A score of 0 up to which to ask is no missing one."""
    promise = replace(promise_of(here), means=None)
    assert promise.level.score is not None
    levels = tuple(replace(each, score=replace(promise.level.score, perhaps=0.0)) for each in promise.levels)
    answer = replace(promise, levels=levels).decide(np.ones(DIM), [("7", 0.01)])
    assert (answer.decision, answer.item_id) == ("perhaps", "7")


def test_a_target_without_a_threshold_decides_nothing(here: Shop, promise: Promise) -> None:
    query = some_match(here, promise)
    strict = replace(promise, target_fpir=0.001)
    for each in (strict, replace(strict, means=None)):
        with pytest.raises(CalibrationError, match=r"an FPIR of 0\.001 needs about"):
            each.decide(query, here.neighbours(query, 40))


def test_p_values_are_those_of_the_draws(here: Shop, promise: Promise) -> None:
    query = some_match(here, promise)
    answer = promise.decide(query, here.neighbours(query, len(here.items)))
    assert answer.p_value is not None
    assert 1 / (1 + promise.items) <= answer.p_value <= 0.05
    far = promise.decide(-query, here.neighbours(-query, 40))
    assert far.p_value is not None
    assert far.p_value > answer.p_value


def test_damaged_promises_are_no_promises(tmp_path: Path) -> None:
    (tmp_path / "p").write_text("{}")
    with pytest.raises(DataError):
        Promise.load(tmp_path / "p")
