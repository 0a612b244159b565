"""`retrieval promise` on files: what it prints and writes, and what its check says of a collection that changes."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from retrieval import Promise
from retrieval.cli.main import group
from retrieval.cli.promise import BROKEN

DIM, NOISE = 24, 0.8
SIZES = [3, 1, 5, 2]  # photos of items, in turn


def shop(items: range, *, seed: int = 0) -> tuple[np.ndarray, np.ndarray]:
    """Return vectors of items of uneven sizes in random order, and numeric ids."""
    centres = np.random.default_rng(5).normal(size=(400, DIM))
    generator = np.random.default_rng(seed)
    ids = generator.permutation(np.repeat(list(items), [SIZES[item % 4] for item in items]))
    return centres[ids] + generator.normal(size=(len(ids), DIM)) * NOISE, ids


def save(path: Path, vectors: np.ndarray, items: np.ndarray, **arrays: np.ndarray) -> str:
    np.savez(path, vectors=vectors, items=items, **arrays)
    return str(path)


def run(*words: object) -> Result:
    return CliRunner().invoke(group, ["promise", *map(str, words)])


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "shop.npz", *shop(range(120)))
    return tmp_path


def test_promise_prints_the_table_of_the_thresholds_that_it_writes(here: Path) -> None:
    done = run("shop.npz", "--target-fpir", "0.1", "-o", "shop.promise", "--report", "shop.html")
    assert done.exit_code == 0, done.output
    promise = Promise.load("shop.promise")
    assert (promise.items, promise.target_fpir, promise.name) == (120, 0.1, "shop.npz")
    assert str(promise) in done.output
    assert [f"{level.target_fpir:g}" for level in promise.levels] == ["0.1", "0.05", "0.01", "0.001"]
    assert "10 %" in done.output
    assert "needs 999 items" in done.output
    score = json.loads(Path("shop.promise").read_text())["thresholds"][0]["score"]["threshold"]
    assert f"{np.ceil(score * 1e4) / 1e4:.4f}" in done.output
    assert "Measure again as it grows: retrieval promise check shop.promise shop.npz" in done.output
    assert "What a threshold costs" in Path("shop.html").read_text()


def test_the_lines_that_promise_prints_decide(here: Path) -> None:
    done = run("shop.npz", "-o", "shop.promise")
    lines = done.output.split("Decide by it:\n\n")[1].split("\n\nMeasure again")[0]
    vectors, items = shop(range(120))
    for vector, expected in ((vectors[7], ("match", str(items[7]))), (np.ones(DIM), ("no_match", None))):
        names: dict[str, object] = {"vector": vector}
        exec(lines, names)  # noqa: S102 - the lines that users paste
        names.pop("arrays").close()  # type: ignore[attr-defined]
        answer = names["answer"]
        assert (getattr(answer, "decision", ""), getattr(answer, "item_id", "")) == expected


def test_promise_without_means_decides_by_the_score(here: Path) -> None:
    assert run("shop.npz", "-o", "shop.promise", "--no-means").exit_code == 0
    assert sorted(path.name for path in here.iterdir()) == ["shop.npz", "shop.promise"]
    promise = Promise.load("shop.promise")
    assert promise.level.score is not None
    threshold = promise.level.score.threshold
    scores = {"match": threshold, "no_match": threshold - 0.2}
    for decision, score in scores.items():
        assert promise.decide(np.ones(DIM), [("7", score), ("9", score - 0.1)]).decision == decision


def test_promise_names_pairs_that_look_like_one_item_with_what_they_cost(here: Path) -> None:
    vectors, items = shop(range(120))
    doubled = np.where((items < 24) & (np.arange(len(items)) % 2 == 0), items + 1000, items)
    save(here / "dirty.npz", vectors, doubled)
    done = run("dirty.npz")
    told = re.search(
        r"(\d+) pairs of items look like one item under two ids \((\d+\.\d) points of what is found\)", done.output
    )
    assert told, done.output
    assert int(told[1]) > 3
    assert float(told[2]) > 0
    assert re.search(r"\b(\d+) and 10*\1\b", done.output)


def test_promise_says_what_is_wrong_before_any_number(here: Path) -> None:
    vectors, items = shop(range(60))
    texts = items.astype(str).astype(object)
    texts[items == 6] = np.where(np.arange((items == 6).sum()) % 2, "6 ", "6")
    save(here / "odd.npz", vectors, texts.astype(str))
    done = run("odd.npz")
    assert done.output.startswith("Warning: 1 pair of item ids differs only in spaces"), done.output
    vectors[5] = np.nan
    save(here / "nan.npz", vectors, items)
    refused = run("nan.npz")
    assert "1 vector hold" in str(refused.exception) or "NaN" in str(refused.exception)
    save(here / "few.npz", *shop(range(12)))
    assert "at least 20" in str(run("few.npz").exception)


def test_promise_measures_labelled_queries_as_they_are(here: Path) -> None:
    vectors, items = shop(range(120), seed=3)
    known = items < 90
    labelled = np.where(known, items.astype(str), "")
    save(here / "users.npz", vectors + 0.3, labelled)
    save(here / "ninety.npz", *shop(range(90)))
    own, users = (
        run("ninety.npz", "-o", "own.promise"),
        run("ninety.npz", "--queries", "users.npz", "-o", "users.promise"),
    )
    assert "in photos like yours" in own.output
    assert "in labelled photos of users" in users.output
    assert Promise.load("users.promise").level.item_distance != Promise.load("own.promise").level.item_distance


def test_check_ends_with_0_where_the_promise_is_kept_by_items_of_the_same_kind(here: Path) -> None:
    assert run("shop.npz", "-o", "shop.promise").exit_code == 0
    before = Path("shop.promise").read_bytes()
    save(here / "now.npz", *shop(range(120), seed=1))
    done = run("check", "shop.promise", "now.npz")
    assert done.exit_code == 0, done.output
    assert done.output.count(": kept; a new threshold would be ") == 2
    assert Path("shop.promise").read_bytes() == before


def test_check_ends_with_3_where_items_have_come_that_look_alike(here: Path) -> None:
    assert run("shop.npz", "-o", "shop.promise").exit_code == 0
    vectors, items = shop(range(120))
    twice = (
        np.concatenate([vectors, shop(range(120), seed=2)[0]]),
        np.concatenate([items, shop(range(120), seed=2)[1] + 500]),
    )
    save(here / "now.npz", *twice)
    done = run("check", "shop.promise", "now.npz")
    assert done.exit_code == BROKEN, done.output
    assert "broken: measure it again" in done.output
    assert "retrieval promise now.npz --target-fpir 0.05 -o shop.promise" in done.output


def test_check_refuses_vectors_of_another_model(here: Path) -> None:
    assert run("shop.npz", "-o", "shop.promise").exit_code == 0
    vectors, items = shop(range(120))
    turned = vectors @ np.linalg.qr(np.random.default_rng(1).normal(size=(DIM, DIM)))[0]
    save(here / "other.npz", turned, items)
    assert "are of another model" in str(run("check", "shop.promise", "other.npz").exception)
    save(here / "shorter.npz", vectors[:, :20], items)
    assert "are of another model" in str(run("check", "shop.promise", "shorter.npz").exception)


def test_promise_help_is_of_the_command_that_measures() -> None:
    for words in (["--help"], ["shop.npz", "--help"]):
        done = run(*words)
        assert "promise [OPTIONS] SOURCE" in done.output
        assert " measure " not in done.output.split("\n")[0]


def test_a_file_that_is_no_promise_is_refused_in_a_short_line(here: Path) -> None:
    (here / "photos.parquet").write_bytes(b"PAR1" + bytes(range(128, 256)) * 10_000)
    message = str(run("check", "photos.parquet", "shop.npz").exception)
    assert message.startswith("photos.parquet is not a promise: UnicodeDecodeError")
    assert len(message) < 400


def test_folders_of_the_outputs_are_made(here: Path) -> None:
    assert run("shop.npz", "-o", "new/shop.promise", "--report", "other/shop.html").exit_code == 0
    assert Promise.load("new/shop.promise").items == 120
    assert (here / "other" / "shop.html").is_file()


def test_queries_of_too_few_items_are_said_to_show_no_difference(here: Path) -> None:
    vectors, items = shop(range(120), seed=3)
    save(here / "users.npz", vectors[items < 3], items[items < 3])
    output = run("shop.npz", "--queries", "users.npz").output
    assert "Warning: The queries show 3 items of the collection; from 20 on" in output
