"""Tables in plain text."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], *, left: int = 1) -> list[str]:
    """Return the lines of a table: the first `left` columns aligned left, the others right, dashes under the head."""
    widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
    dashes = ["-" * width for width in widths]
    return [
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, dashes, *rows)
    ]
