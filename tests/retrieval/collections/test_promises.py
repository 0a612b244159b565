"""Promises of the same rows in every source: equal thresholds, and decisions by the lines that the command prints."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable
from pathlib import Path

import faiss
import numpy as np
import pytest
from click.testing import CliRunner

from index.search.distance import plain_distance
from retrieval import Promise
from retrieval.cli.main import group
from retrieval.collections import Columns
from retrieval.promise.metric import Metric

from .conftest import FILES, SOURCES, Place, write_faiss, write_postgres
from .postgres_server import PASSWORD
from .rows import Rows, many_rows

WORDS = ("--items", "--vectors", "--groups", "--where")


def options(columns: Columns) -> list[str]:
    """Return columns as options of the command."""
    values = zip(WORDS, (columns.items, columns.vectors, columns.groups, columns.where), strict=True)
    return [word for option, value in values if value is not None for word in (option, value)]


def run(*words: str) -> str:
    done = CliRunner().invoke(group, ["promise", *words], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.output


@pytest.fixture(scope="module")
def many() -> Rows:
    return many_rows()


@pytest.fixture(scope="module")
def many_at(
    tmp_path_factory: pytest.TempPathFactory, many: Rows, request: pytest.FixtureRequest
) -> Callable[[str], Place]:
    """Return a function that writes the rows into a kind of source, once."""
    written: dict[str, Place] = {}

    def place(kind: str) -> Place:
        if kind not in written and kind == "postgres":
            written[kind] = write_postgres(request.getfixturevalue("server"), many, "many")
        elif kind not in written:
            written[kind] = FILES[kind](tmp_path_factory.mktemp(kind), many)
        return written[kind]

    return place


@pytest.mark.parametrize("kind", SOURCES)
def test_promise_of_any_source_has_the_thresholds_of_its_arrays(
    kind: str, many_at: Callable[[str], Place], many: Rows, tmp_path: Path
) -> None:
    place, columns = many_at(kind)
    output = run(place, *options(columns), "--target-fpir", "0.1", "-o", str(tmp_path / "p.promise"))
    promise, rows = Promise.load(tmp_path / "p.promise"), many.sorted()
    arrays = Promise.measure(rows.vectors, rows.items, groups=rows.groups, target_fpir=0.1)
    for got, expected in zip(promise.levels, arrays.levels, strict=True):
        assert (got.score is None) == (expected.score is None)
        if got.score is not None and expected.score is not None:
            distances = promise.metric.distances(got.score.threshold), arrays.metric.distances(expected.score.threshold)
            np.testing.assert_allclose(*distances, atol=1e-6)
        if got.item_distance is not None and expected.item_distance is not None:
            np.testing.assert_allclose(got.item_distance.threshold, expected.item_distance.threshold, atol=1e-6)
    has_search = kind in ("postgres", "qdrant", "milvus", "faiss")
    assert ("Its own search misses 0.0% of nearest photos." in output) == has_search
    assert PASSWORD not in output


@pytest.mark.parametrize("kind", SOURCES)
def test_the_lines_that_promise_prints_for_a_source_decide_by_its_own_search(
    kind: str, many_at: Callable[[str], Place], many: Rows, tmp_path: Path
) -> None:
    place, columns = many_at(kind)
    output = run(place, *options(columns), "--target-fpir", "0.1", "-o", str(tmp_path / "p.promise"))
    lines = output.split("Decide by it:\n\n")[1].split("\n\nMeasure again")[0]
    for vector, decision in ((many.vectors[5], "match"), (np.eye(16, dtype=np.float32)[3], "no_match")):
        names: dict[str, object] = {"vector": vector}
        with contextlib.ExitStack() as stack:
            exec(lines, names)  # noqa: S102 - the lines that users paste
            for opened in ("client", "connection", "arrays"):
                if hasattr(names.get(opened), "close"):
                    stack.callback(names[opened].close)  # type: ignore[attr-defined]
        answer = names["answer"]
        assert (getattr(answer, "decision", ""), kind) == (decision, kind)
        assert getattr(answer, "item_id", "") == (many.items[5] if decision == "match" else None)


@pytest.mark.parametrize("kind", ["postgres", "qdrant", "milvus", "faiss"])
def test_scores_that_are_not_of_the_metric_that_a_source_names_are_refused(
    kind: str, many_at: Callable[[str], Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Metric, "scores", lambda _, distances: 1 - np.asarray(distances) / 2)
    place, columns = many_at(kind)
    done = CliRunner().invoke(group, ["promise", place, *options(columns)])
    assert "are not the " in str(done.exception)
    assert "Search by cosine" in str(done.exception)


def test_a_search_that_misses_near_photos_is_reported(many: Rows, tmp_path: Path) -> None:
    place, columns = write_faiss(tmp_path, many, recipe="IDMap,IVF16,Flat")  # of 16 cells, it searches one
    told = re.search(r"Its own search misses (\d+\.\d)% of nearest photos", run(place, *options(columns)))
    assert told
    index, rows = faiss.read_index(str(tmp_path / "photos.faiss")), many.sorted()
    nearest = [int(np.argsort(plain_distance(vector, rows.vectors))[1]) for vector in rows.vectors]
    missed = [row not in ids for row, ids in zip(nearest, index.search(rows.vectors, 21)[1], strict=True)]
    assert float(told[1]) == pytest.approx(100 * np.mean(missed), abs=0.06)
    assert np.mean(missed) > 0.05
