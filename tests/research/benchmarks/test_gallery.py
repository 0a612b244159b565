"""The benchmark of large galleries asks for items that are there, and measures all ways of searching alike."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

from index.distance import plain_distance
from research.benchmarks import gallery
from research.benchmarks.gallery import THRESHOLD, embeddings, in_turns, unit_queries


@pytest.mark.parametrize("count", [10_000, 50_000])
def test_the_items_of_the_queries_are_in_a_gallery_of_any_size(count: int) -> None:
    vectors, _ = next(embeddings(count, 32))
    nearest = [plain_distance(query[None], vectors).min() for query in unit_queries(32, 20)]
    assert max(nearest) < THRESHOLD


def test_searches_are_timed_in_turns_after_a_first_round(monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, int]] = []
    seconds = itertools.count()

    def timed(work: object) -> float:
        work()  # type: ignore[operator]
        return float(next(seconds))

    monkeypatch.setattr(gallery, "timed", timed)
    monkeypatch.setattr(gallery, "ROUNDS", 2)
    ways = [lambda query, name=name: calls.append((name, int(query[0]))) for name in "ab"]
    found = in_turns(ways, [np.array([0]), np.array([1])])
    assert calls == [("a", 0), ("a", 1), ("b", 0), ("b", 1)] * 3
    np.testing.assert_array_equal(found, [[4, 5, 8, 9], [6, 7, 10, 11]])
