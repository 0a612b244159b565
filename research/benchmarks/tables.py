"""Tables of what was measured: what, ours, reference, ratio or difference, bar."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

NONE = "–"


class Row(NamedTuple):
    """One line of a table."""

    what: str
    ours: str
    reference: str = NONE
    compared: str = NONE
    bar: str = NONE


def at_most(value: float, limit: float, told: str) -> str:
    """Return a bar, and whether a value keeps it."""
    return f"≤ {told}: {'held' if value <= limit else '**missed**'}"


def at_least(value: float, limit: float, told: str) -> str:
    """Return a bar, and whether a value reaches it."""
    return f"≥ {told}: {'held' if value >= limit else '**missed**'}"


def ms(seconds: float) -> str:
    """Return seconds as milliseconds."""
    return f"{1e3 * seconds:.1f} ms"


def show(title: str, rows: Sequence[Row]) -> None:
    """Print a table in Markdown."""
    print(f"\n### {title}\n| what | ours | reference | ratio or difference | bar |\n| --- | --- | --- | --- | --- |")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)
