"""Thumbnails: small JPEGs of photos, without the metadata of their files."""

from __future__ import annotations

import io
import re

from PIL import Image

THUMBNAIL_SIDE, THUMBNAIL_BYTES, QUALITIES = 256, 48_000, (85, 60, 30)  # of JPEG: the next one if a thumbnail is larger
JFIF = b"\xff\xe0\0\x10JFIF\0\1\1\0\0\1\0\1\0\0"
FRAME, TABLES, SCAN = 0xC0, frozenset((0xC4, 0xDB, 0xDD)), 0xDA  # baseline; Huffman, quantization, restart interval
LEFT_OUT = frozenset((0xE0, 0xE2, 0xED, 0xFE))  # JFIF, colour profile, Photoshop, comment
GRAY, COLOUR, RGB = 1, 3, (82, 71, 66)  # numbers of components, and those of a file with red, green and blue
PRINTABLE = bytes(ord("t") if 32 <= value < 127 or value in b"\t\n\r" else 0 for value in range(256))
TEXT = 24 * b"t"  # text of this length, translated by PRINTABLE, is hardly ever in the data of an image
MARKER = re.compile(rb"\xff[^\0\xd0-\xd7]")  # in the data of a scan, except restarts
END = b"\xff\xd9"
LEAST = 0.9  # least longest side of an averaged thumbnail, as a share of THUMBNAIL_SIDE


def thumbnail(image: Image.Image, data: bytes = b"") -> bytes:
    """Return a JPEG of at most 256 pixels per side and 48 kB, without the metadata of the original file.

    `data` is the file that the image was opened from, if there is one. A small JPEG is used without its metadata;
    any other image is encoded.
    """
    if len(data) <= THUMBNAIL_BYTES and data.startswith(b"\xff\xd8"):
        plain = without_metadata(data, longest=THUMBNAIL_SIDE)
        if plain is not None:
            return plain
    small = _smaller(image)
    for quality in QUALITIES:
        out = io.BytesIO()
        small.save(out, "JPEG", quality=quality, comment=b"")
        if out.tell() <= THUMBNAIL_BYTES:
            break
    return out.getvalue()


def _smaller(image: Image.Image) -> Image.Image:
    """Return the image with a longest side of THUMBNAIL_SIDE or a little less, or the image itself if it is small.

    Averaging blocks of whole pixels is faster than resampling, so it is used where the longest side
    is then at least LEAST of THUMBNAIL_SIDE.
    """
    longest = max(image.size)
    if longest <= THUMBNAIL_SIDE:
        return image
    factor = -(-longest // THUMBNAIL_SIDE)
    if longest >= factor * LEAST * THUMBNAIL_SIDE:
        return image.reduce(factor)
    width, height = (max(1, round(side * THUMBNAIL_SIDE / longest)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)


def without_metadata(data: bytes, *, longest: int = 65535) -> bytes | None:
    """Return a baseline JPEG without its metadata, or None if that needs decoding.

    Decoding is needed for other kinds of JPEG, for damaged files, for a side of more than `longest` pixels, for other
    colours than gray and YCbCr, for text among the pixels, and for EXIF data or a colour transformation (Adobe) that
    may change how the pixels are shown. Data after the end of the image is left out. Only text is found in the data of
    the pixels; other data that is hidden there stays.
    """
    kept, at = [data[:2], JFIF], 2
    while data[at : at + 1] == b"\xff" and at + 4 <= len(data):
        kind, end = data[at + 1], at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if kind == SCAN:
            last = MARKER.search(data, end)
            if last is None or last[0] != END or TEXT in data[end : last.start()].translate(PRINTABLE):
                return None
            return b"".join((*kept, data[at : last.end()]))
        if kind == FRAME and not _is_usual(data[at:end], longest):
            return None
        if kind == FRAME or kind in TABLES:
            kept.append(data[at:end])
        elif kind not in LEFT_OUT:
            return None
        at = end
    return None


def _is_usual(frame: bytes, longest: int) -> bool:
    """Return whether a frame is gray or YCbCr, by its description, and has no side of more than `longest` pixels.

    A file without JFIF and Adobe segments whose components are named R, G and B has no YCbCr.
    """
    sides = int.from_bytes(frame[5:7]), int.from_bytes(frame[7:9])
    components = tuple(frame[10::3])
    return max(sides) <= longest and len(components) in (GRAY, COLOUR) and components != RGB
