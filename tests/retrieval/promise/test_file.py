"""The file of a promise: it returns what was saved, to the last digit, and refuses what was not saved by name."""

from __future__ import annotations

import errno
import io
import json
import os
import zipfile
from collections.abc import Callable, Iterator
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.files import pack_arrays
from retrieval.errors import DataError, RetrievalError
from retrieval.promise import file as file_module
from retrieval.promise.contents import Contents
from retrieval.promise.promise import Promise

from .shops import DIM, Shop, promise_of, queries_of, shop

NAME = "Läden 🛒 東京"


@pytest.fixture(scope="module")
def here() -> Shop:
    return shop(31, items=40, largest=4)


@pytest.fixture(scope="module")
def promise(here: Shop) -> Promise:
    twins = (("ä1", "b\ud800"), ("c", '"\\\n'))
    return replace(promise_of(here), name=NAME, twins=twins, twins_cost=0.125, warnings=("„wrong“", "\ud83d"))


@pytest.fixture
def saved(promise: Promise, tmp_path: Path) -> Path:
    promise.save(tmp_path / "p")
    return tmp_path / "p"


def assert_equal(first: Contents, second: Contents, *, means: bool = True) -> None:
    """Compare two promises field by field; arrays have no single truth."""
    for field in fields(Contents):
        before, after = getattr(first, field.name), getattr(second, field.name)
        if field.name == "means":
            assert (after is not None) == means
            for name in ("ids", "means", "groups", "cosines") if means else ():
                kept = getattr(after, name)
                assert kept.dtype == getattr(before, name).dtype
                assert (kept == getattr(before, name)).all()
        elif field.name.startswith("p_values"):
            assert before.items == after.items
            assert (before.shares == after.shares).all()
            assert np.abs(before.distances - after.distances).max() < 1e-12
        elif field.name != "drawn":
            assert before == after


@pytest.mark.parametrize("means", [True, False])
def test_a_promise_returns_from_its_file_to_the_last_digit(
    promise: Promise, here: Shop, tmp_path: Path, means: bool
) -> None:
    path = tmp_path / f"{NAME}.promise"
    promise.save(path, means=means)
    again = Promise.load(str(path))
    assert_equal(promise, again, means=means)
    before = promise if means else replace(promise, means=None)
    for query in queries_of(here, 12):
        for k in (3, 100):
            assert before.decide(query, here.neighbours(query, k)) == again.decide(query, here.neighbours(query, k))
    again.save(tmp_path / "q", means=means)
    values, later = json.loads(path.read_text()), json.loads((tmp_path / "q").read_text())
    assert values["p_values"].pop("scores") == pytest.approx(later["p_values"].pop("scores"), abs=1e-12)
    assert values == later


def test_saving_without_means_deletes_older_means(saved: Path, promise: Promise) -> None:
    promise.save(saved, means=False)
    assert [each.name for each in saved.parent.iterdir()] == ["p"]


def test_a_link_to_a_promise_is_read(saved: Path, promise: Promise) -> None:
    (saved.parent / "link").symlink_to(saved)
    (saved.parent / "link.npz").symlink_to(f"{saved}.npz")
    assert Promise.load(saved.parent / "link").levels == promise.levels


@pytest.mark.parametrize("at", [1, 2])
def test_a_full_disk_leaves_the_files_that_were_there(
    promise: Promise, saved: Path, monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    before = {each.name: each.read_bytes() for each in saved.parent.iterdir()}
    calls, sync = [], os.fsync

    def full(handle: int) -> None:
        calls.append(handle)
        if len(calls) == at:
            raise OSError(errno.ENOSPC, "No space left on device")
        sync(handle)

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        replace(promise, name="new").save(saved)
    assert {each.name: each.read_bytes() for each in saved.parent.iterdir()} == before


# files that are none


def refused(path: Path, message: str = "") -> None:
    with pytest.raises(DataError, match=message or None):
        Promise.load(path)


def test_what_is_no_file_is_refused_by_name(tmp_path: Path, saved: Path) -> None:
    refused(tmp_path / "nothing", "nothing is not a file")
    refused(tmp_path, "is not a file")
    os.mkfifo(tmp_path / "pipe")
    refused(tmp_path / "pipe", "pipe is not a file")
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    refused(tmp_path / "loop", "loop")
    refused(Path("/dev/zero"), "is not a file")
    refused(saved / "below", "below")
    refused(tmp_path / ("n" * 300), "n")


def test_a_file_that_cannot_be_read_is_refused_by_name(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def denied(self: Path) -> bytes:
        raise PermissionError(errno.EACCES, "Permission denied", str(self))

    monkeypatch.setattr(Path, "read_bytes", denied)
    refused(saved, "cannot be read: .*Permission denied")


BEGINNINGS = [
    "",
    "{",
    "[]",
    "null",
    "3",
    '"a"',
    "{}",
    '{"format": null}',
    '{"format": 1}',
    '{"format": []}',
    "\x00",
    "\xff",
]
DEEP = ["[" * 100_000, '{"a":' * 50_000, '{"format": NaN}', f'{{"format": "{"9" * 5000}"}}', '{"format": 1e999}']


@pytest.mark.parametrize("text", [*BEGINNINGS, *DEEP])
def test_other_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "p").write_text(text, encoding="latin-1")
    refused(tmp_path / "p")


def test_a_later_version_is_named(saved: Path) -> None:
    values = json.loads(saved.read_text())
    for later in (2, 10**30, "7"):
        saved.write_text(json.dumps(values | {"format": later}))
        refused(saved, "written by a later version")


def test_too_large_files_are_not_read(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_module, "LARGEST", (100, 10**9))
    refused(saved, "and at most 100 are read")
    monkeypatch.setattr(file_module, "LARGEST", (10**9, 100))
    refused(saved, r"p.npz has .* bytes, and at most 100 are read")


def test_truncated_files_are_refused(saved: Path) -> None:
    for path in (saved, Path(f"{saved}.npz")):
        data = path.read_bytes()
        for length in (0, 1, len(data) // 2, len(data) - 3):
            path.write_bytes(data[:length])
            refused(saved)
        path.write_bytes(data)
    assert Promise.load(saved)


OTHERS: list[Any] = [
    None,
    "a",
    "1",
    [],
    {},
    [[1]],
    True,
    -1,
    0,
    1.5,
    1e308,
    10**400,
    float("nan"),
    float("inf"),
    "\ud800",
]


def places(values: Any, before: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of each value in JSON, of lists the first only."""
    yield before
    if isinstance(values, dict):
        for key in values:
            yield from places(values[key], (*before, key))
    elif isinstance(values, list):
        for number in range(min(1, len(values))):
            yield from places(values[number], (*before, number))


def changed(text: str, place: tuple[Any, ...], value: Any) -> str:
    values = json.loads(text)
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    inner[place[-1]] = value
    return json.dumps(values)


def removed(text: str, place: tuple[Any, ...]) -> str:
    values = json.loads(text)
    inner = values
    for key in place[:-1]:
        inner = inner[key]
    del inner[place[-1]]
    return json.dumps(values)


def test_any_value_that_is_replaced_or_missing_is_refused_or_decides(saved: Path, here: Shop) -> None:
    """Each value of the JSON by each other kind of value: a typed error, or a promise that answers or refuses typed."""
    text, refusals, loaded = saved.read_text(), 0, set()
    query = queries_of(here, 1)[0]
    neighbours, every = here.neighbours(query, 5), [place for place in places(json.loads(text)) if place]
    for place in every:
        for value in OTHERS:
            saved.write_text(changed(text, place, value), encoding="utf-8")
            try:
                promise = Promise.load(saved)
            except DataError:
                refusals += 1
                continue
            loaded.add(place)
            try:
                str(promise)
                promise.decide(query, neighbours)
            except RetrievalError:
                pass
        saved.write_text(removed(text, place))
        try:
            Promise.load(saved)
        except DataError:
            refusals += 1
    assert refusals > 10 * len(every)
    assert {"metric", "accept", "items", "dimension", "target_fpir"}.isdisjoint(place[0] for place in loaded)


def test_a_value_that_contradicts_the_others_is_refused(saved: Path) -> None:
    text = saved.read_text()
    for place, value in (
        (("items",), 3),
        (("dimension",), DIM + 1),
        (("metric",), "l3"),
        (("target_fpir",), 0.07),
        (("p_values", "scores"), [0.1]),
        (("thresholds", 0, "score", "threshold"), float("nan")),
        (("item_distance", "nearest"), -1),
        (("accept",), "<="),
    ):
        saved.write_text(changed(text, place, value))
        refused(saved, "damaged|not a promise")


# means


def with_means(saved: Path, data: bytes) -> None:
    """Put other means beside a promise, and their hash into it."""
    import hashlib

    Path(f"{saved}.npz").write_bytes(data)
    digest = hashlib.sha256(data).hexdigest()
    saved.write_text(changed(saved.read_text(), ("means_sha256",), digest))


def test_means_that_are_missing_or_of_another_promise_are_refused(saved: Path, promise: Promise) -> None:
    replace(promise, items=7).save(saved.parent / "q")
    Path(f"{saved}.npz").write_bytes(b"" + Path(f"{saved}.npz").read_bytes() + b"\0")
    refused(saved, "p.npz does not belong to .*p, or was changed")
    Path(f"{saved}.npz").unlink()
    refused(saved, "p.npz is missing: .*measure the promise again without means")
    Path(f"{saved}.npz").mkdir()
    refused(saved, "p.npz is missing")


def bomb() -> bytes:
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("means.npy", bytes(2**28))
    return file.getvalue()


def arrays_of(promise: Promise) -> dict[str, Any]:
    assert promise.means is not None
    return {name: getattr(promise.means, name) for name in ("ids", "means", "groups", "cosines")}


def pickled(promise: Promise) -> bytes:
    file = io.BytesIO()
    np.savez(file, **(arrays_of(promise) | {"ids": np.array([{"a": 1}] * promise.items, dtype=object)}))
    return file.getvalue()


HOSTILE: dict[str, Callable[[Promise], bytes]] = {
    "empty": lambda _: b"",
    "no archive": lambda _: b"PK\x03\x04" + bytes(100),
    "bomb": lambda _: bomb(),
    "pickled": pickled,
    "no arrays": lambda _: pack_arrays({}),
    "one array": lambda promise: pack_arrays({"means": arrays_of(promise)["means"]}),
    "numbers as ids": lambda promise: pack_arrays(arrays_of(promise) | {"ids": np.arange(promise.items)}),
    "texts as means": lambda promise: pack_arrays(arrays_of(promise) | {"means": np.full((promise.items, DIM), "1")}),
    "NaN": lambda promise: pack_arrays(arrays_of(promise) | {"means": np.full((promise.items, DIM), np.nan)}),
    "zeros": lambda promise: pack_arrays(arrays_of(promise) | {"means": np.zeros((promise.items, DIM))}),
    "infinite": lambda promise: pack_arrays(arrays_of(promise) | {"means": np.full((promise.items, DIM), np.inf)}),
    "large cosines": lambda promise: pack_arrays(arrays_of(promise) | {"cosines": np.full(promise.items, 2.0)}),
    "no cosines": lambda promise: pack_arrays(arrays_of(promise) | {"cosines": np.full(promise.items, np.nan)}),
    "too few": lambda promise: pack_arrays({name: each[1:] for name, each in arrays_of(promise).items()}),
    "uneven": lambda promise: pack_arrays(arrays_of(promise) | {"groups": np.zeros(3, np.int64)}),
    "one number": lambda promise: pack_arrays(arrays_of(promise) | {"means": np.float32(1)}),
    "equal ids": lambda promise: pack_arrays(arrays_of(promise) | {"ids": np.full(promise.items, "a")}),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_means_are_refused(saved: Path, promise: Promise, name: str) -> None:
    with_means(saved, HOSTILE[name](promise))
    refused(saved, "is damaged")
