"""Small files that would cost much memory or time to decode: refused before Pillow opens or decodes them."""

from __future__ import annotations

import io
import struct

import numpy as np
import pytest
from numpy.typing import NDArray
from PIL import Image

from retrieval import avif as avif_items
from retrieval import images
from retrieval.avif import Bits, _sequence_size, check_avif
from retrieval.errors import ImageRefused, ImageTooLarge, ImageUnsupported
from retrieval.images import open_image
from retrieval.tiff import MAX_PARTS

from ..world import encode

Tag = tuple[int, int, list[int]]
SIZE = 64


def avif(size: int = SIZE, mode: str = "RGB") -> bytes:
    return encode(Image.new(mode, (size, size)), "AVIF")


def claiming(data: bytes, side: int) -> bytes:
    """Return an AVIF whose container states another size than its stream."""
    changed = bytearray(data)
    at = changed.find(b"ispe")
    while at >= 0:
        changed[at + 8 : at + 16] = struct.pack(">II", side, side)
        at = changed.find(b"ispe", at + 4)
    return bytes(changed)


def tiff(*tags: Tag, width: int = 16, height: int = 16) -> bytes:
    """Return a TIFF of gray pixels with these tags; values beyond four bytes follow the directory."""
    plain: list[Tag] = [(256, 4, [width]), (257, 4, [height]), (258, 3, [8]), (259, 3, [1]), (262, 3, [1])]
    every = sorted([*plain, (277, 3, [1]), *tags])
    base, entries, extra = 8 + 2 + 12 * len(every) + 4, b"", b""
    for tag, kind, values in every:
        raw = struct.pack(f"<{len(values)}{'HI'[kind - 3]}", *values)
        if len(raw) > 4:
            raw, extra = struct.pack("<I", base + len(extra)), extra + raw
        entries += struct.pack("<HHI", tag, kind, len(values)) + raw.ljust(4, b"\0")
    return b"II*\0\x08\0\0\0" + struct.pack("<H", len(every)) + entries + bytes(4) + extra


def overlapping(number: int = 100, size: int = 60_000) -> bytes:
    """Return a directory whose values are all the same bytes."""
    entries = b"".join(struct.pack("<HHII", 40_000 + at, 7, size, 8) for at in range(number))
    return (b"II*\0\x08\0\0\0" + struct.pack("<H", number) + entries + bytes(4)).ljust(size + 8, b"\0")


@pytest.fixture
def undecoded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if Pillow opens anything."""

    def opened(*_: object, **__: object) -> None:
        pytest.fail("Pillow opened the file")

    monkeypatch.setattr(Image, "open", opened)


@pytest.mark.usefixtures("undecoded")
def test_an_avif_whose_stream_is_larger_than_its_header_says_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    limited = {"AVIF": lambda data: check_avif(data, max_pixels=255 * 256)}
    monkeypatch.setattr(images, "CHECKS", limited)
    with pytest.raises(ImageTooLarge, match="AV1 streams"):
        open_image(claiming(avif(256), SIZE))


@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA"])
def test_the_pixels_of_an_avif_are_bounded_exactly(mode: str) -> None:
    data = avif(256, mode)
    check_avif(data, 256 * 256)
    assert open_image(data).size == (256, 256)
    with pytest.raises(ImageTooLarge):
        check_avif(data, 256 * 256 - 1)


def test_the_streams_of_an_avif_are_bounded_together(monkeypatch: pytest.MonkeyPatch) -> None:
    data, plain = avif(256), avif_items._items
    check_avif(data, 256 * 256)
    monkeypatch.setattr(avif_items, "_items", lambda *given: 3 * list(plain(*given)))
    with pytest.raises(ImageTooLarge):
        check_avif(data, 256 * 256)


def test_an_avif_without_one_list_of_items_is_refused() -> None:
    for name, told in ((b"moov", "animated"), (b"free", "0 boxes meta")):
        with pytest.raises(ImageRefused, match=told):
            open_image(avif().replace(b"meta", name, 1))


def test_a_cut_or_overlapping_avif_is_refused() -> None:
    data = avif()
    for end in range(40, len(data), 7):
        with pytest.raises(ImageRefused):
            open_image(data[:end])


def test_a_second_frame_in_an_avif_stream_is_refused() -> None:
    data = bytearray(avif())
    start = data.index(b"mdat") + 4
    at = data.index(b"\x32", start)  # the frame, with its size
    extra = bytes(data[at:])
    assert extra
    whole = bytes(data) + extra
    length = len(data) - start
    head = bytearray(whole)
    head[start - 8 : start - 4] = struct.pack(">I", length + 8 + len(extra))
    place = head.index(struct.pack(">I", length), head.index(b"iloc"))
    head[place : place + 4] = struct.pack(">I", length + len(extra))
    with pytest.raises(ImageUnsupported, match="several AV1 frames"):
        check_avif(bytes(head), 10**6)


def test_a_stream_that_may_change_its_size_is_bounded_by_the_largest() -> None:
    def header(reduced: int) -> Bits:
        start = f"0000{reduced}" + ("00000" if reduced else "0" + "0" + "00000" + "0" * 12 + "00000")
        bits = f"{start}{15:04b}{14:04b}{63:016b}{31:015b}"
        return Bits(int(bits.ljust(-(-len(bits) // 8) * 8, "0"), 2).to_bytes(-(-len(bits) // 8)))

    assert _sequence_size(header(1)) == (64 * 32, 64 * 32)
    assert _sequence_size(header(0)) == (64 * 32, 2**31)


@pytest.mark.usefixtures("undecoded")
def test_a_tiff_of_countless_strips_or_tiles_is_refused() -> None:
    with pytest.raises(ImageTooLarge, match="strips or tiles, the limit"):
        open_image(tiff((273, 4, [8] * (MAX_PARTS + 1)), (278, 4, [1])))
    with pytest.raises(ImageTooLarge, match="strips or tiles, the limit"):
        open_image(tiff((322, 3, [8]), (323, 3, [8]), (324, 4, [8] * (MAX_PARTS + 1))))


def test_a_tiff_has_at_most_a_strip_a_row_and_the_tiles_that_cover_it() -> None:
    assert open_image(tiff((273, 4, [8] * 16), (278, 4, [1]), (279, 4, [16] * 16))).size == (16, 16)
    for tags in (
        [(273, 4, [8] * 17), (278, 4, [1]), (279, 4, [16] * 17)],
        [(322, 3, [8]), (323, 3, [8]), (324, 4, [8] * 5), (325, 4, [64] * 5)],
    ):
        with pytest.raises(ImageRefused):
            open_image(tiff(*tags))


@pytest.mark.usefixtures("undecoded")
def test_directories_whose_values_overlap_are_refused() -> None:
    with pytest.raises(ImageTooLarge, match="overlap"):
        open_image(overlapping())
    jpeg = io.BytesIO()
    Image.new("RGB", (SIZE, SIZE)).save(jpeg, "JPEG", exif=b"Exif\0\0" + overlapping())
    with pytest.raises(ImageTooLarge, match="overlap"):
        open_image(jpeg.getvalue())


@pytest.mark.usefixtures("undecoded")
def test_exif_data_of_an_avif_is_checked_before_it_is_opened() -> None:
    file = io.BytesIO()
    Image.new("RGB", (SIZE, SIZE)).save(file, "AVIF", exif=overlapping())
    with pytest.raises(ImageTooLarge, match="overlap"):
        open_image(file.getvalue())


@pytest.mark.usefixtures("undecoded")
def test_exif_data_of_a_heic_is_checked_before_it_is_opened() -> None:
    pillow_heif = pytest.importorskip("pillow_heif")
    made = pillow_heif.from_pillow(Image.new("RGB", (SIZE, SIZE)))
    for exif in (overlapping(), b"Exif\0\0" + overlapping()):
        file = io.BytesIO()
        made.save(file, exif=exif)
        with pytest.raises(ImageTooLarge, match="overlap"):
            open_image(file.getvalue())


@pytest.mark.parametrize("kind", ["PNG", "WEBP"])
def test_exif_data_whose_values_overlap_is_refused(kind: str) -> None:
    file = io.BytesIO()
    Image.new("RGB", (SIZE, SIZE)).save(file, kind, exif=overlapping())
    with pytest.raises(ImageTooLarge, match="overlap"):
        open_image(file.getvalue())


def with_comment(blocks: int) -> bytes:
    data = encode(Image.new("P", (SIZE, SIZE)), "GIF")
    start = 13 + (3 << (data[10] & 7) + 1 if data[10] & 128 else 0)
    return data[:start] + b"!\xfe" + (b"\xff" + bytes(255)) * blocks + b"\0" + data[start:]


def test_a_gif_with_a_comment_opens() -> None:
    assert open_image(with_comment(10)).size == (SIZE, SIZE)


@pytest.mark.usefixtures("undecoded")
def test_a_gif_with_a_comment_beyond_the_limit_is_refused() -> None:
    with pytest.raises(ImageTooLarge, match="comments"):
        open_image(with_comment(5_000))


@pytest.mark.parametrize("dtype", [np.uint16, np.int32])
def test_sixteen_bits_are_rounded_as_exact_division_rounds(dtype: type) -> None:
    values: NDArray[np.generic] = np.arange(65_536).reshape(1024, 64).astype(dtype)
    seen = np.asarray(open_image(Image.fromarray(values)))
    assert np.array_equal(seen[..., 0], (values.astype(np.float64) / 257).round().astype(np.uint8))
