"""Rooms, classes and functions stay small enough to be read; `make sizes` prints what is counted here, and more."""

from __future__ import annotations

from collections import Counter

from tools.walks import lengths, modules, public_methods, rooms

TREES = modules()


def above(counts: Counter[str], most: int) -> dict[str, int]:
    return {name: count for name, count in counts.items() if count > most}


def test_no_room_holds_more_than_12_modules() -> None:
    assert above(rooms(TREES), 12) == {}


def test_no_class_has_more_than_25_public_methods() -> None:
    assert above(public_methods(TREES), 25) == {}


def test_no_function_is_longer_than_60_lines() -> None:
    assert above(lengths(TREES), 60) == {}
