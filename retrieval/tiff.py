"""Bound what the directories of a TIFF file, or of EXIF data, cost to read."""

from __future__ import annotations

import io
import math
import struct
from collections.abc import Iterator

from PIL import Image
from PIL.JpegImagePlugin import JpegImageFile

from .errors import ImageTooLarge, ImageUnsupported

MAX_PARTS = 2**14  # strips or tiles; Pillow spends about 0.1 ms on each
TILE_SIDES = (322, 323)
PARTS = (273, 324)  # tags for the offsets of strips and of tiles
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 6: 1, 7: 1, 8: 2, 9: 4, 10: 8, 11: 4, 12: 8, 13: 4, 16: 8}  # bytes of a value
DIRECTORIES = (34665, 34853, 40965)  # tags for the offsets of further directories: EXIF, GPS, interoperability
SLACK = 2**20  # bytes that the values of a directory may overlap: some cameras write odd ones
HEAD = 2**18  # bytes that contain the header of most JPEGs
RESOLUTION = b"\xff\xe0\0\x10JFIF\0\1\1\1\0\x48\0\x48\0\0"  # a segment of a JPEG
REMEDY = "Convert it to JPEG or PNG"


def check_directories(data: bytes) -> None:
    """Check the first directory and those of EXIF data, before Pillow copies their values.

    Raises
    ------
    ImageTooLarge, ImageUnsupported
        If the values overlap so that copies of them are larger than the file, or there are too many strips or tiles.
    """
    if data[:2] not in (b"II", b"MM"):
        return  # Pillow reads no directory
    if b"+" in data[2:4]:
        raise ImageUnsupported("the image has a BigTIFF directory", remedy=REMEDY)
    order = "<" if data[:2] == b"II" else ">"
    waiting, seen, left = [int.from_bytes(data[4:8], "little" if order == "<" else "big")], set[int](), len(data)
    while waiting:
        if (at := waiting.pop()) in seen:
            continue
        seen.add(at)
        for tag, kind, count, value in _entries(data, at, order):
            size = SIZES.get(kind, 0) * count
            if size > 4 and value + size <= len(data):  # Pillow stops at one that reaches beyond the end
                left -= size
            if tag in DIRECTORIES:
                waiting.append(value)
            if left < -SLACK:
                raise ImageTooLarge("the values in a directory of the image overlap", remedy=REMEDY)
            if tag in PARTS and count > MAX_PARTS:
                raise ImageTooLarge(f"the image has {count:,} strips or tiles, the limit is {MAX_PARTS:,}")


def check_jpeg(data: bytes) -> None:
    """Check the directories of a JPEG, which Pillow reads when it opens one whose header states no resolution."""
    if len(data) > HEAD or b"Exif\0\0" in data or b"MPF\0" in data:  # searching a whole large file takes longer
        try:
            _check_header(data[:HEAD])
        except (SyntaxError, OSError):  # the header is longer
            _check_header(data)


def _check_header(data: bytes) -> None:
    with JpegImageFile(io.BytesIO(data[:2] + RESOLUTION + data[2:])) as image:
        check_directories(image.info.get("mp", b""))
        check_exif(image)


def check_exif(image: Image.Image) -> None:
    """Check the EXIF data of an opened image, before its orientation is read."""
    exif = image.info.get("exif")
    text = image.info.get("Raw profile type exif")  # of a PNG, in hexadecimal digits
    if exif is None and text is not None:
        exif = bytes.fromhex("".join(text.split("\n")[3:]))
    if exif:
        check_exif_data(exif)


def check_exif_data(data: bytes) -> None:
    """Check the directories of EXIF data, with or without its mark."""
    while data.startswith(b"Exif\0\0"):
        data = data[6:]
    check_directories(data)


def _entries(data: bytes, at: int, order: str) -> Iterator[tuple[int, int, int, int]]:
    """Yield tag, type, count and value of each entry that lies in the file."""
    if at + 2 <= len(data):
        number = struct.unpack_from(order + "H", data, at)[0]
        for place in range(at + 2, min(at + 2 + 12 * number, len(data) - 11), 12):
            yield struct.unpack_from(order + "HHII", data, place)


def check_parts(image: Image.Image, max_pixels: int) -> None:
    """Check the strips and tiles of an opened TIFF, before any pixel is decoded."""
    tags = getattr(image, "tag_v2", {})
    tile = [int(tags.get(tag, 0)) for tag in TILE_SIDES]
    if math.prod(tile) > max_pixels:
        raise ImageTooLarge(f"a tile of the image has more than {max_pixels:,} pixels")
    planes = min(int(tags.get(277, 1)), 4)
    width, height = image.size
    tiles = math.prod(-(-side // max(part, 1)) for side, part in zip((width, height), tile, strict=True))
    for tag, most in zip(PARTS, (height, tiles), strict=True):
        offsets = tags.get(tag, ())
        if isinstance(offsets, tuple) and len(offsets) > most * planes:
            raise ImageTooLarge(f"the image has {len(offsets):,} strips or tiles for {width}×{height} pixels")
