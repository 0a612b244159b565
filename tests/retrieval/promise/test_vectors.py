"""Vectors of length one in memory or in a temporary file, means of items, and fingerprints of models."""

from __future__ import annotations

import errno
import gc
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from index.photos import arrays as arrays_module
from retrieval.errors import DataError
from retrieval.promise import vectors as vectors_module
from retrieval.promise.promise import Promise
from retrieval.promise.vectors import fingerprint, is_of_another_model, lengths, scaled

from .shops import Shop, means, promise_of, shop, unit


def test_float32_vectors_of_length_one_are_not_copied() -> None:
    vectors = unit(np.random.default_rng(0).normal(size=(50, 8)))
    assert scaled(vectors, lengths(vectors)) is vectors
    assert scaled(vectors * 2, lengths(vectors * 2)) == pytest.approx(vectors, abs=1e-6)
    assert scaled(vectors[:0], np.zeros(0)).shape == (0, 8)


def test_large_vectors_go_to_a_temporary_file_that_is_gone_afterwards(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(vectors_module, "IN_MEMORY", 1000)
    monkeypatch.setattr(vectors_module, "BLOCK", 64)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    vectors = np.random.default_rng(0).normal(size=(300, 8))
    unit_rows = scaled(vectors, lengths(vectors))
    gc.collect()  # the file object is gone, the map is not
    assert isinstance(unit_rows, np.memmap)
    assert unit_rows == pytest.approx(unit(vectors), abs=1e-7)
    assert list(tmp_path.iterdir()) == []


def test_large_vectors_have_the_same_thresholds(monkeypatch: pytest.MonkeyPatch) -> None:
    here = shop(81, items=40, largest=4)
    vectors = here.vectors.astype(np.float64) * 3
    before = Promise.measure(vectors, here.items)
    monkeypatch.setattr(vectors_module, "IN_MEMORY", 1000)
    after = Promise.measure(vectors, here.items)
    assert after.levels == before.levels
    assert after.largest_gap == before.largest_gap


def test_no_room_for_a_temporary_file_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    class Full:
        def __enter__(self) -> Full:
            return self

        def __exit__(self, *_: object) -> None:
            pass

        def write(self, _: Any) -> int:
            raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(vectors_module, "IN_MEMORY", 10)
    monkeypatch.setattr(tempfile, "TemporaryFile", lambda **_: Full())
    with pytest.raises(DataError, match=r"needs 9,600 bytes in .*: No space left on device.*TMPDIR"):
        scaled(np.ones((300, 8)), np.full(300, np.sqrt(8)))


def test_mean_photos_that_are_forgotten_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    here = shop(82, items=40, largest=4)
    before = promise_of(here)
    monkeypatch.setattr(arrays_module, "KEPT", 100)
    assert promise_of(here).levels == before.levels


def test_the_largest_gap_is_that_of_all_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    here = shop(83, items=40, largest=8)
    before = promise_of(here).largest_gap
    assert 0 < before < 1
    monkeypatch.setattr(vectors_module, "BLOCK", 7)
    assert promise_of(here).largest_gap == pytest.approx(before, abs=1e-6)


def turned(here: Shop, share: float) -> Shop:
    """Return the vectors as another model, or one that differs a little, has them."""
    generator = np.random.default_rng(0)
    other = np.linalg.qr(generator.normal(size=(24, 24)))[0]
    return Shop(unit((1 - share) * here.vectors + share * here.vectors @ other), here.items, here.groups)


def test_a_fingerprint_tells_models_apart_but_no_new_vectors_and_ids() -> None:
    here = shop(84, items=60, largest=6)
    before = fingerprint(means(here))
    assert len(before) == 32
    assert not is_of_another_model(before, means(here))
    assert not is_of_another_model(before, means(turned(here, 0.05)))
    assert is_of_another_model(before, means(turned(here, 1.0)))
    some = [row for row, item in enumerate(here.items) if sorted(set(here.items)).index(item) % 2]
    half = Shop(here.vectors[some], [here.items[row] for row in some], [here.groups[row] for row in some])
    assert not is_of_another_model(before, means(half))
    assert is_of_another_model(before, means(turned(half, 1.0)))
    renamed = Shop(here.vectors, [f"new {item}" for item in here.items], here.groups)
    assert not is_of_another_model(before, means(renamed))  # there is nothing to compare
    assert not is_of_another_model({}, means(here))
