"""Bound what an AVIF file costs to decode, from the sizes that its AV1 streams state.

The decoder allocates what a stream states, whatever size the container states, so each coded item is looked into before
anything is decoded. Accepted are still photos: one frame an item, all items of the file together at most twice the
limit of pixels (the photo, its transparency and a gain map, or the tiles of a grid).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from .errors import ImageTooLarge, ImageUnsupported
from .tiff import check_exif_data

SEQUENCE_HEADER = 1
FRAMES = (3, 6, 7)  # a frame header, a frame, a repeated frame header
REMEDY = "Convert it to JPEG or PNG"


def check_avif(data: bytes, max_pixels: int) -> None:
    """Check the AV1 streams of an AVIF file.

    Raises
    ------
    ImageTooLarge, ImageUnsupported
        If a stream states too many pixels, or more than one frame.
    ValueError, IndexError
        If the file is damaged.
    """
    boxes = list(_boxes(data))
    if any(kind == b"moov" for kind, _ in boxes):
        raise ImageUnsupported("the image is animated", remedy="Send one frame of it")
    total = 0
    inside = list(_boxes(_only(boxes, b"meta")[4:]))
    for exif in _items(data, inside, b"Exif"):
        check_exif_data(exif[4:])  # after an offset
    for stream in _items(data, inside, b"av01"):
        stated, possible = _pixels(stream)
        total += possible
        if stated > max_pixels or total > 2 * max_pixels:
            raise ImageTooLarge(
                f"the AV1 streams of the image have more pixels than its limit of {max_pixels:,}", remedy=REMEDY
            )


def _boxes(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Yield the type and content of each box."""
    at = 0
    while at < len(data):
        size, start = int.from_bytes(data[at : at + 4]), at + 8
        if size == 1:
            size, start = int.from_bytes(data[at + 8 : at + 16]), at + 16
        end = at + size if size else len(data)
        if not start <= end <= len(data):
            raise ValueError("a box of the file is cut off")
        yield data[at + 4 : at + 8], data[start:end]
        at = end


def _only(boxes: list[tuple[bytes, bytes]], wanted: bytes) -> bytes:
    found = [content for kind, content in boxes if kind == wanted]
    if len(found) != 1:
        raise ValueError(f"the file has {len(found)} boxes {wanted.decode()}, one is needed")
    return found[0]


def _items(data: bytes, boxes: list[tuple[bytes, bytes]], kind: bytes) -> Iterator[bytes]:
    """Yield the bytes of each item of a type."""
    wanted = _ids(_only(boxes, b"iinf"), kind)
    inside = b"".join(content for name, content in boxes if name == b"idat")
    seen, left = set(), len(data)
    for item, in_meta, extents in _locations(_only(boxes, b"iloc")):
        if item not in wanted:
            continue
        left -= sum(length for _, length in extents)
        if item in seen or left < 0 or not all(length for _, length in extents):
            raise ValueError("the places of its items overlap")
        seen.add(item)
        source = inside if in_meta else data
        if any(offset + length > len(source) for offset, length in extents):
            raise ValueError("an item reaches beyond the end of the file")
        yield b"".join(source[offset : offset + length] for offset, length in extents)


def _ids(box: bytes, wanted: bytes) -> set[int]:
    """Return the ids of the items of a type."""
    ids = set()
    for kind, entry in _boxes(box[6 if box[0] == 0 else 8 :]):
        if kind != b"infe" or entry[0] not in (2, 3):
            raise ValueError("an entry of its list of items is of an unknown kind")
        wide = 4 if entry[0] == 3 else 2
        if entry[6 + wide : 10 + wide] == wanted:
            ids.add(int.from_bytes(entry[4 : 4 + wide]))
    return ids


def _locations(box: bytes) -> Iterator[tuple[int, bool, list[tuple[int, int]]]]:
    """Yield each item's id, whether it lies in the box `meta`, and its extents (offset, length)."""
    bits = Bits(box)
    version = bits.read(8)
    bits.read(24)
    offset_size, length_size, base_size, index_size = (8 * bits.read(4) for _ in range(4))
    wide = 32 if version == 2 else 16
    for _ in range(bits.read(wide)):
        item = bits.read(wide)
        method = bits.read(16) & 15 if version else 0
        reference = bits.read(16)
        if version > 2 or method > 1 or reference:
            raise ValueError("an item lies outside of the file")
        base, extents = bits.read(base_size), []
        for _ in range(bits.read(16)):
            bits.read(index_size if version else 0)
            offset = base + bits.read(offset_size)
            extents.append((offset, bits.read(length_size)))
        yield item, method == 1, extents


def _pixels(stream: bytes) -> tuple[int, int]:
    """Return the pixels that a stream states for its frame, and the most that the frame may have."""
    sizes = []
    frames = at = 0
    while at < len(stream):
        header = stream[at]
        at += 2 if header & 4 else 1
        size = len(stream) - at
        if header & 2:
            size, at = _leb128(stream, at)
        if size < 0 or at + size > len(stream):
            raise ValueError("its AV1 stream is cut off")
        kind = header >> 3 & 15
        frames += kind in FRAMES
        if kind == SEQUENCE_HEADER:
            sizes.append(_sequence_size(Bits(stream[at : at + size])))
        at += size
    if frames > 1:
        raise ImageUnsupported("the image has several AV1 frames in an item", remedy=REMEDY)
    if not sizes or not frames:
        raise ValueError("its AV1 stream has no frame")
    return max(stated for stated, _ in sizes), max(possible for _, possible in sizes)


def _leb128(stream: bytes, at: int) -> tuple[int, int]:
    """Read a number in groups of 7 bits; return it and where it ends."""
    value = 0
    for place in range(8):
        byte = stream[at + place]
        value |= (byte & 127) << 7 * place
        if byte < 128:
            return value, at + place + 1
    raise ValueError("a number in its AV1 stream is too long")


def _sequence_size(bits: Bits) -> tuple[int, int]:
    """Return the stated pixels of a sequence header, and the most a frame may state instead of them."""
    bits.read(4)  # profile, still picture
    reduced = bits.read(1)
    if reduced:
        bits.read(5)  # level
    else:
        _skip_operating_points(bits)
    wide, high = bits.read(4) + 1, bits.read(4) + 1
    stated = (bits.read(wide) + 1) * (bits.read(high) + 1)
    return stated, stated if reduced else 1 << wide + high


def _skip_operating_points(bits: Bits) -> None:
    delay_bits = 0
    if bits.read(1):  # timing
        bits.read(64)
        if bits.read(1):
            zeros = 0
            while zeros < 32 and not bits.read(1):
                zeros += 1
            bits.read(zeros if zeros < 32 else 0)
        if bits.read(1):  # model of the decoder
            delay_bits = bits.read(5) + 1
            bits.read(42)
    delays = bits.read(1)
    for _ in range(bits.read(5) + 1):
        bits.read(12)
        if bits.read(5) > 7:
            bits.read(1)  # tier
        if delay_bits and bits.read(1):
            bits.read(2 * delay_bits + 1)
        if delays and bits.read(1):
            bits.read(4)


@dataclass
class Bits:
    """Reads numbers of any count of bits from bytes."""

    data: bytes
    at: int = 0

    def read(self, count: int) -> int:
        """Return the next `count` bits as a number."""
        end = self.at + count
        if end > 8 * len(self.data):
            raise ValueError("a header of the file is cut off")
        part = self.data[self.at // 8 : -(-end // 8)]
        self.at = end
        return int.from_bytes(part) >> -end % 8 & (1 << count) - 1
