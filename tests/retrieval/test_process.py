"""Pauses of the garbage collector."""

from __future__ import annotations

import gc

import pytest

from retrieval.process import no_collection


def test_a_pause_leaves_the_collector_as_it_was_also_after_an_error() -> None:
    assert gc.isenabled()
    with no_collection():
        assert not gc.isenabled()
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ValueError, match="stop"), no_collection():
        raise ValueError("stop")
    assert gc.isenabled()
    gc.disable()
    try:
        with no_collection():
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_pauses_that_overlap_end_with_the_collector_enabled() -> None:
    first, second = no_collection(), no_collection()
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    assert gc.isenabled()
