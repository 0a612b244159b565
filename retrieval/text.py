"""Text for files and terminals."""

from __future__ import annotations

from collections.abc import Sequence


def as_utf8(text: str) -> str:
    r"""Return a text that UTF-8 can encode: the bytes of a file name that are not UTF-8 become escapes, as \udcff."""
    return text.encode(errors="backslashreplace").decode()


def printable(text: str) -> str:
    r"""Return a text for a terminal, with escapes for characters that it does not print.

    A line break becomes \n, and the byte 27 becomes \x1b.
    """
    return "".join(
        character if character.isprintable() else character.encode("unicode_escape").decode() for character in text
    )


def apart(share: float, limit: float) -> tuple[str, str]:
    """Return two shares as percentages, with as many digits as tell them apart: "5.04%" and "5.00%"."""
    pairs = ((f"{share:.{digits}%}", f"{limit:.{digits}%}") for digits in range(1, 12))
    return next((pair for pair in pairs if pair[0] != pair[1]), (f"{share:.1%}", f"{limit:.1%}"))


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
