"""Tables as plain text and as Markdown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence


def text_table(rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return the lines of a text table: heading, rule and rows. All columns but the first `left` are right-aligned."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = [
        "  ".join(
            cell.ljust(width) if place < left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]
    return [lines[0], "  ".join("-" * width for width in widths), *lines[1:]]


def markdown_table(columns: Iterable[str], rows: Iterable[Iterable[str]] = ()) -> list[str]:
    """Return the lines of a Markdown table."""
    columns = list(columns)
    return [markdown_row(columns), markdown_row("---" for _ in columns), *map(markdown_row, rows)]


def markdown_row(cells: Iterable[str]) -> str:
    """Return one line of a Markdown table."""
    return f"| {' | '.join(cells)} |"
