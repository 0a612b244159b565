"""Many queries at once: one pass over the vectors finds what a search for each of them finds."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import index.search.exact
from index.ann.kinds import FLAT, FP16
from index.search.exact import MANY, sweep

from ..vectors import filled, unit


def test_the_nearest_of_all_blocks_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(index.search.exact, "BLOCK", 64)
    vectors, positions = unit(1000), np.arange(0, 1000, 3)
    for queries in (unit(3, 5), unit(MANY, 5)):
        for count in (1, 5, 100):
            found, near, bound = sweep(queries, count, lambda rows: vectors[rows], positions)
            cosines = queries @ vectors[positions].T
            order = np.argsort(-cosines, axis=1)[:, :count]
            assert [set(row) for row in found] == [set(row) for row in positions[order]]
            everywhere = queries @ vectors.T
            np.testing.assert_allclose(near, np.take_along_axis(everywhere, found, axis=1), atol=1e-6)
            np.testing.assert_allclose(bound, np.take_along_axis(cosines, order[:, -1:], axis=1)[:, 0], atol=1e-6)
        found, near, bound = sweep(queries, 400, lambda rows: vectors[rows], positions)
        assert (found == positions).all()
        np.testing.assert_array_equal(near, queries @ vectors[positions].T)
        assert (bound == -np.inf).all()


@pytest.mark.parametrize("kind", [FLAT, FP16])
def test_many_queries_get_the_answers_of_single_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setattr(index.search.exact, "BLOCK", 64)
    queries = unit(MANY + 20, 5)
    with filled(tmp_path / "g", count=400, items=50) as gallery:
        gallery.rebuild(kind=kind)
        gallery.add(["late"], ["late"], queries[:1])
        gallery.remove(photo_ids=["p3", "p200"])
        now = gallery.snapshot()
        together = now.nearest(queries, 5)
        alone = [now.nearest(query[None], 5) for query in queries]
        for one_pass, single in zip(together, zip(*alone, strict=True), strict=True):
            np.testing.assert_array_equal(one_pass, np.concatenate(single))
        assert (together[0][0, 0], together[1][0, 0]) == (400, 0.0)
