"""Comparing only the candidates that may decide an answer changes no answer."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index import snapshot
from index.gallery import Gallery
from index.photos import NONE
from index.search import exact
from index.search.exact import contenders, first_of_items
from index.snapshot import Snapshot

from ..vectors import DIM, unit

pytestmark = pytest.mark.usefixtures("few_own_queries")

PHOTOS, ITEMS = 240, 12


@given(
    seed=st.integers(0, 2**32 - 1), queries=st.integers(1, 4), width=st.integers(1, 30), k=st.sampled_from((1, 3, 40))
)
def test_the_nearest_photos_of_the_nearest_items_are_kept(seed: int, queries: int, width: int, k: int) -> None:
    """Try distances between their bounds and at a bound, and equal distances."""
    generator = np.random.default_rng(seed)
    items = generator.integers(0, 6, (queries, width)).astype(np.int32)
    distances = generator.integers(0, 8, (queries, width)) / 4.0
    least = distances - generator.integers(0, 3, (queries, width)) / 4
    most = distances + generator.integers(0, 3, (queries, width)) / 4
    missing = generator.random((queries, width)) < 0.2
    least[missing] = most[missing] = np.inf
    chosen = contenders(items, least, most, k)
    assert not chosen[missing].any()
    for row in range(queries):
        best: dict[int, int] = {}
        for place in np.lexsort((np.arange(width), distances[row])).tolist():
            if not missing[row, place]:
                best.setdefault(int(items[row, place]), place)
        assert chosen[row, list(best.values())[:k]].all()


@given(
    seed=st.integers(0, 2**32 - 1), queries=st.integers(1, 4), pairs=st.integers(0, 30), k=st.sampled_from((1, 3, 9))
)
def test_the_nearest_photo_of_each_item_is_that_of_a_loop(seed: int, queries: int, pairs: int, k: int) -> None:
    """Many distances are equal: the smaller position is first, of an item and of two items."""
    generator = np.random.default_rng(seed)
    rows, positions = generator.integers(0, queries, pairs), generator.permutation(100)[:pairs]
    items, distances = generator.integers(0, 6, 100)[positions], generator.integers(0, 4, pairs) / 4.0
    nearest, apart, counts = first_of_items(rows, items, positions, distances, (queries, k))
    for row in range(queries):
        best: dict[int, tuple[float, int]] = {}
        for place in np.lexsort((positions, distances)).tolist():
            if rows[place] == row:
                best.setdefault(int(items[place]), (float(distances[place]), int(positions[place])))
        first = list(best.values())[:k]
        missing = k - len(first)
        assert nearest[row].tolist() == [position for _, position in first] + [NONE] * missing
        assert apart[row].tolist() == [distance for distance, _ in first] + [np.inf] * missing
        assert counts[row] == len(first)


def test_other_candidates_are_left_out() -> None:
    items = np.array([[5, 5, 5, 8, 8, 9]], np.int32)
    distances = np.array([[0.1, 0.2, 0.4, 0.3, 0.35, 0.5]])
    chosen = contenders(items, distances - 0.05, distances + 0.05, 2)
    np.testing.assert_array_equal(chosen, [[True, True, False, True, True, False]])


@pytest.fixture(scope="module", params=["flat", "fp16", "ivf"])
def gallery(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Gallery]:
    """Return photos that are copies, nearly copies or others, partly in an index and partly after it."""
    generator = np.random.default_rng(5)
    vectors = unit(40, 6)[generator.integers(0, 40, PHOTOS)] + generator.choice(
        (0, 1e-6, 1e-3, 0.3), (PHOTOS, 1)
    ) * unit(PHOTOS, 7)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    ids, items = [f"p{i}" for i in range(PHOTOS)], [f"i{i}" for i in generator.integers(0, ITEMS, PHOTOS)]
    with Gallery.create(tmp_path_factory.mktemp("contenders") / "g", dim=DIM, embedding_id="e") as opened:
        opened.add(ids[:180], items[:180], vectors[:180])
        opened.rebuild(kind=request.param)
        opened.add(ids[180:], items[180:], vectors[180:])
        opened.remove(photo_ids=ids[::17])
        yield opened


def test_answers_are_those_of_comparing_all_candidates(gallery: Gallery, monkeypatch: pytest.MonkeyPatch) -> None:
    now = gallery.snapshot()
    assert isinstance(now, Snapshot)
    stored = np.flatnonzero(now.live)[::9]
    queries = np.concatenate([unit(20, 8), now.vectors(stored)])
    monkeypatch.setattr(exact, "PAIRS", 50)
    compared: list[int] = []
    read = Snapshot.vectors

    def counted(self: Snapshot, positions: np.ndarray) -> np.ndarray:
        compared.append(len(positions))
        return read(self, positions)

    monkeypatch.setattr(Snapshot, "vectors", counted)
    for k in (1, 4, ITEMS):
        answers, counts = [], []
        for few in (10**9, 0):
            monkeypatch.setattr(snapshot, "FEW", few)
            compared.clear()
            answers.append(now.nearest(queries, k))
            counts.append(sum(compared))
        for first, second in zip(*answers, strict=True):
            np.testing.assert_array_equal(first, second, err_msg=str(k))
        assert counts[1] < counts[0]
