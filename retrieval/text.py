"""Text that can be written to files."""

from __future__ import annotations


def as_utf8(text: str) -> str:
    r"""Return a text that UTF-8 can encode: the bytes of a file name that are not UTF-8 become escapes, as \udcff."""
    return text.encode(errors="backslashreplace").decode()
