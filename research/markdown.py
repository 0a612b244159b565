"""Tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable


def markdown_table(columns: Iterable[str], rows: Iterable[Iterable[str]] = ()) -> list[str]:
    """Return the lines of a table."""
    columns = list(columns)
    return [markdown_row(columns), markdown_row("---" for _ in columns), *map(markdown_row, rows)]


def markdown_row(cells: Iterable[str]) -> str:
    """Return one line of a table."""
    return f"| {' | '.join(cells)} |"
