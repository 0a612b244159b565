"""Bound the comments of a GIF: Pillow copies all that it has read for each block of 255 bytes."""

from __future__ import annotations

from .errors import ImageTooLarge

MAX_COMMENT = 2**20
COMMENT = 0xFE


def check_gif(data: bytes) -> None:
    """Check the comments before the first frame; raise ImageTooLarge, or IndexError if the file is cut off."""
    at, comment = 13, 0
    if data[10] & 128:
        at += 3 << (data[10] & 7) + 1  # the palette
    while data[at] not in b",;":
        extension = data[at] == ord("!")
        at += 1  # Pillow skips other bytes
        if not extension:
            continue
        kind = data[at]
        at += 1
        while size := data[at]:
            at += size + 1
            comment += size if kind == COMMENT else 0
            if comment > MAX_COMMENT:
                raise ImageTooLarge(f"the image has comments of more than {MAX_COMMENT:,} bytes")
        at += 1
