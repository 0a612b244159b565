"""Pauses of the garbage collector."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from retrieval.process import no_collection


@pytest.fixture(autouse=True)
def enabled() -> Iterator[None]:
    """Check that a pause leaves the collector as it was."""
    assert gc.isenabled()
    yield
    still = gc.isenabled()
    gc.enable()
    assert still


def test_the_collector_is_enabled_again_after_an_error() -> None:
    def fail() -> None:
        with no_collection():
            assert not gc.isenabled()
            raise KeyError

    with pytest.raises(KeyError):
        fail()
    assert gc.isenabled()


def test_a_disabled_collector_stays_disabled() -> None:
    gc.disable()
    try:
        with no_collection():
            assert not gc.isenabled()
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_overlapping_pauses_last_until_the_last_one_ends() -> None:
    with ExitStack() as first, ExitStack() as second:
        first.enter_context(no_collection())
        second.enter_context(no_collection())
        first.close()
        assert not gc.isenabled()
        second.close()
        assert gc.isenabled()


def test_a_pause_that_ends_while_another_begins_is_not_taken_for_a_disabled_collector(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with ExitStack() as first:
        first.enter_context(no_collection())
        monkeypatch.setattr(gc, "isenabled", lambda: (first.close(), False)[1])  # another thread's, at this moment
        with no_collection():
            first.close()
    monkeypatch.undo()
    assert gc.isenabled()
