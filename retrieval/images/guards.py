"""Reduce a JPEG, PNG or WebP file to what decides its pixels, in one pass, and bound what it costs to decode.

Pillow and its libraries parse metadata at a cost that a file can make large: directories that overlap, floods of
segments, compressed texts, countless scans. They never see it: the pass copies the segments or chunks of the pixels,
reads the orientation from the first directory of the EXIF data or from the XMP data, and drops everything else. It
visits at most MAX_SEGMENTS segments.
"""

from __future__ import annotations

import re
import struct
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import NamedTuple

from retrieval.errors import ImageTooLarge, ImageUnsupported

MAX_SEGMENTS = 8_192  # segments of a JPEG, or chunks of a PNG or WebP; many PNGs have one for each 8 kB
MAX_ENTRIES = 1_024  # of an EXIF directory
MAX_PROFILE = 2**20  # bytes of EXIF data in the text of a PNG, decompressed
MAX_BLOCKS = 16_000_000  # blocks of 8×8 values visited by all scans of a JPEG; 25 megapixels usually take 5 million
MAX_COEFFICIENTS = 180 * 2**20  # bytes that a JPEG of several scans keeps
REMEDY = "Save it as a baseline JPEG or as a PNG, without metadata"
MAX_RAW = 300_000_000  # bytes of the pixels of a PNG, which are filtered one by one
CHANNELS = {2: 3, 4: 2, 6: 4}  # by the colour type of a PNG; 1 for the others
BASELINE = "Save it as a baseline JPEG, not a progressive one, or with fewer pixels"

ORIENTATION = 274
NUMBERS = {3: "H", 4: "I", 8: "h", 9: "i"}  # types of an EXIF value that may hold an orientation
IN_XMP = re.compile(rb'tiff:Orientation(?:="|>)([0-9])')

FRAMES, PROGRESSIVE, OTHER_FRAMES = (0xC0, 0xC1, 0xC2), 0xC2, frozenset(range(0xC3, 0xD0)) - {0xC4, 0xC8, 0xCC}
SCAN, END, FILL = 0xDA, 0xD9, 0xFF
TABLES = frozenset((0xC4, 0xDB, 0xDD))  # Huffman, quantization, restart interval
BARE = frozenset((0, 1, *range(0xD0, 0xD9)))  # no segments: stuffing, TEM, restarts, and the start of an image
HEADERS = frozenset((*range(0xC0, 0xD0), *range(0xDA, 0xFF), FILL))  # markers before the first scan
BETWEEN = frozenset((*TABLES, *range(0xD0, 0xD8), SCAN, 0xFE, FILL))  # markers between scans
MARKER = re.compile(rb"\xff(?:[^\0\xd0-\xd7]|[\xd0-\xd7]\xff\xd9)")  # behind the data of a scan, or a last restart
LOST = bytes(512)  # a lost sector: no encoder writes so many zeros for details, whose codes for nothing are short
RESTART = re.compile(rb"\xff([\xd0-\xd7])")
EXIF, XMP = b"Exif\0\0", b"http://ns.adobe.com/xap/1.0/\0"
PNG_EXIF, PNG_XMP = b"Raw profile type exif", b"XML:com.adobe.xmp"

PNG_KEPT = frozenset((b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND"))
WEBP_KEPT = (b"VP8X", b"ALPH", b"VP8 ", b"VP8L")
WEBP_ALPHA = 0x10  # flag of VP8X


class Plain(NamedTuple):
    """A file without metadata, the EXIF orientation (1 to 8) of its pixels, and how whole a JPEG is."""

    data: bytes
    orientation: int
    is_damaged: bool = False  # whether segments or scans are lost, or lie where they cannot
    scan_end: int = 0  # where the data of the only scan of a baseline JPEG ends, else 0
    has_end: bool = True


def plain_file(form: str, data: bytes) -> Plain:
    """Return the part of a file that decides its pixels; `form` is JPEG, PNG or WEBP.

    Raises
    ------
    ImageTooLarge, ImageUnsupported
        If the file has too many segments or scans, is animated, or is a JPEG of a rare kind.
    ValueError, IndexError, struct.error
        If the file is damaged.
    """
    return READERS[form](data)


def _jpeg(data: bytes) -> Plain:
    data = data.removesuffix(b"\xff")  # half of an end
    kept, exif, xmp, scans, expected = [data[:2]], list[bytes](), b"", _Scans(), 2
    for _ in range(MAX_SEGMENTS):
        at = data.find(b"\xff", expected)
        if at < 0 or at + 4 > len(data) or data[at + 1] == END:
            has_end = at >= 0 and data[at + 1 : at + 2] == bytes((END,))
            plain, damaged = b"".join(kept), scans.damaged or (has_end and at > expected) or not scans.complete
            scan_end = len(plain) if scans.complete and not scans.several else 0
            return Plain(plain, _orientation(b"".join(exif), xmp), damaged, scan_end, has_end)
        kind = data[at + 1]
        scans.damaged |= at > expected or kind not in (BETWEEN if scans.begun else HEADERS)
        expected = at + 1 if kind == FILL else at + 2
        if kind == FILL or kind in BARE:
            continue
        end = at + 2 + int.from_bytes(data[at + 2 : at + 4])
        if kind in OTHER_FRAMES:
            raise ImageUnsupported("the JPEG is lossless, hierarchical or arithmetic", remedy=REMEDY)
        content = data[at + 4 : end]
        if kind == 0xE1 and content.startswith(EXIF):
            exif.append(content[len(EXIF) :])
        elif kind == 0xE1 and content.startswith(XMP):
            xmp = content[len(XMP) :]
        elif kind in FRAMES:
            scans.begin(kind, content)
        elif kind == 0xDD:
            scans.interval = int.from_bytes(content[:2])
        elif kind == SCAN:
            following = MARKER.search(data, end)
            start, end = end, len(data) if following is None else following.start()
            scans.add(content, data[start:end])
        if kind in FRAMES or kind in TABLES or kind == SCAN or _decides_colours(kind, content):
            kept.append(data[at:end])
        expected = end
    raise ImageTooLarge(f"the JPEG has more than {MAX_SEGMENTS:,} segments", remedy=REMEDY)


def _decides_colours(kind: int, content: bytes) -> bool:
    return (kind == 0xE0 and content.startswith(b"JFIF")) or (kind == 0xEE and content.startswith(b"Adobe"))


class _Scans:
    """The scans of a JPEG: their work (each visits all blocks of its components), and what is missing of them."""

    def __init__(self) -> None:
        self.damaged = self.begun = self.several = False
        self.interval = 0  # of restarts, in units of blocks; 0 for none
        self._blocks: dict[int, int] = {}  # of each component
        self._units = 0  # of blocks, in a scan of all components
        self._missing: dict[int, set[int]] = {}  # coefficients of each component that no scan has in full
        self._left = MAX_BLOCKS
        self._progressive = False

    @property
    def complete(self) -> bool:
        """Whether the scans have all coefficients."""
        return self.begun and not any(self._missing.values())

    def begin(self, kind: int, frame: bytes) -> None:
        height, width = struct.unpack_from(">HH", frame, 1)
        self._size = f"{width}×{height}"
        parts = [(frame[at], frame[at + 1] >> 4 or 1, frame[at + 1] & 15 or 1) for at in range(6, len(frame) - 2, 3)]
        if len(parts) > 4 or self._blocks:
            raise ImageUnsupported("the JPEG has more than 4 colours or several frames", remedy=REMEDY)
        most_wide, most_high = (max((part[side] for part in parts), default=1) for side in (1, 2))
        if len(parts) == 1:  # its blocks are not interleaved
            most_wide = most_high = 1
            parts = [(parts[0][0], 1, 1)]
        self._blocks = {
            name: -(-width * wide // (8 * most_wide)) * -(-height * high // (8 * most_high))
            for name, wide, high in parts
        }
        self._units = -(-width // (8 * most_wide)) * -(-height // (8 * most_high))
        self._missing = {name: set(range(64)) for name in self._blocks}
        self._progressive = kind == PROGRESSIVE

    def add(self, scan: bytes, data: bytes) -> None:
        """Count a scan, given its header and data; raise ImageTooLarge if it is one too many."""
        names = scan[1 : 1 + 2 * scan[0] : 2]
        self._left -= sum(self._blocks.get(name, 0) for name in names)
        if self._left < 0:
            raise ImageTooLarge("the scans of the JPEG visit too many blocks of pixels", remedy=REMEDY)
        self.several |= self._progressive or len(names) < len(self._blocks)
        if self.several and 2 * 64 * sum(self._blocks.values()) > MAX_COEFFICIENTS:
            told = f"the image has {self._size} pixels, too many for a JPEG of several scans"
            raise ImageTooLarge(told, remedy=BASELINE)
        first, last, bits = scan[1 + 2 * len(names) :][:3] if self._progressive else (0, 63, 0)
        for name in names if not bits & 15 else b"":  # all bits of these coefficients
            self._missing.get(name, set()).difference_update(range(first, last + 1))
        self.begun = True
        self.damaged |= first > 0 and LOST in data
        if self.interval and not self.several:
            count = -(-self._units // self.interval) - 1
            self.damaged |= RESTART.findall(data) != [bytes((0xD0 + number % 8,)) for number in range(count)]
        else:
            self.damaged |= not self.interval and RESTART.search(data) is not None


def jpeg_size(data: bytes) -> tuple[int, int]:
    """Return the width and height that a JPEG states; (0, 0) if it states none before its first scan."""
    at = 2
    for _ in range(MAX_SEGMENTS):
        kind = data[at + 1] if data[at : at + 1] == b"\xff" and at + 9 < len(data) else SCAN
        if kind == SCAN:
            break
        if kind in FRAMES:
            height, width = struct.unpack_from(">HH", data, at + 5)
            return width, height
        at += 1 if kind == FILL else 2 + int.from_bytes(data[at + 2 : at + 4])
    return 0, 0


def _png(data: bytes) -> Plain:
    width, height, depth, colour = struct.unpack_from(">IIBB", data, 16)
    if width * height * CHANNELS.get(colour, 1) * depth > 8 * MAX_RAW:
        raise ImageTooLarge(
            f"the PNG has {width}×{height} pixels of {depth} bits a channel", remedy="Save it as JPEG, or smaller"
        )
    kept, exif, profile, xmp = [data[:8]], b"", b"", b""
    for kind, start, end in _chunks(data, 8, ">", after=4):
        content = data[start:end] if kind not in PNG_KEPT else b""
        if kind in PNG_KEPT:
            kept.append(data[start - 8 : end + 4])
        elif kind == b"acTL" and int.from_bytes(content[:4]) > 1:
            raise ImageUnsupported("the image is animated", remedy="Send one frame of it")
        elif kind == b"eXIf":
            exif = EXIF + content
        elif kind in (b"tEXt", b"zTXt") and content.startswith(PNG_EXIF + b"\0"):
            profile = _profile(content[len(PNG_EXIF) + 1 :], compressed=kind == b"zTXt")
        elif kind == b"iTXt" and content.startswith(PNG_XMP + b"\0\0"):
            xmp = content
        if kind == b"IEND":
            break
    return Plain(b"".join(kept), _orientation(exif or profile, xmp))


def _profile(text: bytes, *, compressed: bool) -> bytes:
    """Return EXIF data that a PNG holds as hexadecimal digits below three lines; b"" if it does not."""
    try:
        text = zlib.decompressobj().decompress(text[1:], MAX_PROFILE) if compressed else text[:MAX_PROFILE]
        return bytes.fromhex("".join(text.decode("latin-1").split("\n")[3:]))
    except (zlib.error, ValueError):
        return b""


def _webp(data: bytes) -> Plain:
    found: dict[bytes, bytes] = {}
    for kind, start, end in _chunks(data, 12, "<", after=0):
        if kind in (b"ANIM", b"ANMF"):
            raise ImageUnsupported("the image is animated", remedy="Send one frame of it")
        found.setdefault(kind, data[start:end])
    if b"VP8X" in found:
        flags = found[b"VP8X"]
        found[b"VP8X"] = bytes((flags[0] & WEBP_ALPHA,)) + flags[1:]
    body = b"".join(
        kind + struct.pack("<I", len(found[kind])) + found[kind] + b"\0" * (len(found[kind]) & 1)
        for kind in WEBP_KEPT
        if kind in found
    )
    orientation = _orientation(found.get(b"EXIF", b""), found.get(b"XMP ", b""))
    return Plain(b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body, orientation)


def _chunks(data: bytes, at: int, order: str, *, after: int) -> Iterator[tuple[bytes, int, int]]:
    """Yield the kind, start and end of each chunk of a PNG (big-endian) or WebP (little-endian).

    `after` is the size of a checksum. A PNG has the size of a chunk before its kind, a WebP after it.
    """
    number = 0
    while at + 8 <= len(data):
        number += 1
        if number > MAX_SEGMENTS:
            raise ImageTooLarge(f"the file has more than {MAX_SEGMENTS:,} chunks", remedy=REMEDY)
        first, second = data[at : at + 4], data[at + 4 : at + 8]
        kind, size = (second, int.from_bytes(first)) if order == ">" else (first, int.from_bytes(second, "little"))
        yield kind, at + 8, min(at + 8 + size, len(data))
        at += 8 + size + after + (size & 1 if order == "<" else 0)


READERS: Mapping[str, Callable[[bytes], Plain]] = {"JPEG": _jpeg, "PNG": _png, "WEBP": _webp}


def _orientation(exif: bytes, xmp: bytes) -> int:
    """Return the orientation that the first directory of EXIF data states, else the XMP data, else 1."""
    while exif.startswith(EXIF):
        exif = exif[len(EXIF) :]
    stated = _in_directory(exif)
    if stated is None and (match := IN_XMP.search(xmp)):
        stated = int(match[1])
    return stated if stated is not None and 1 <= stated <= 8 else 1


def _in_directory(exif: bytes) -> int | None:
    """Return the value of the orientation, None if there is none."""
    if exif[:4] not in (b"II*\0", b"MM\0*") or len(exif) < 10:
        return None
    order, stated = "<" if exif[:2] == b"II" else ">", None
    at = struct.unpack_from(order + "I", exif, 4)[0]
    if at + 2 > len(exif):
        return None
    number = struct.unpack_from(order + "H", exif, at)[0]
    for place in range(at + 2, min(at + 2 + 12 * min(number, MAX_ENTRIES), len(exif) - 11), 12):
        tag, kind, count = struct.unpack_from(order + "HHI", exif, place)
        if tag == ORIENTATION:
            form = NUMBERS.get(kind) if count == 1 else None
            stated = struct.unpack_from(order + form, exif, place + 8)[0] if form else 0  # not a number: no orientation
    return stated
