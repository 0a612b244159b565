"""Text that can be written to files."""

from __future__ import annotations


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
