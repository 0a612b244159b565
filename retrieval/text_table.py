"""Tables in plain text."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the lines of a table: the first column aligned left, the others right, dashes under the head."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    dashes = ["-" * width for width in widths]
    return ["  ".join(map(_aligned, row, range(len(widths)), widths)).rstrip() for row in (head, dashes, *rows)]


def _aligned(cell: str, column: int, width: int) -> str:
    return cell.rjust(width) if column else cell.ljust(width)
