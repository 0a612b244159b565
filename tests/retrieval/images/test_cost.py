"""What a file costs to decode or to refuse: at most 2 s of CPU and 300 MB, whatever its structure."""

from __future__ import annotations

import io
import json
import struct
import subprocess
import sys
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from retrieval.errors import ImageRefused, ImageTooLarge, ImageUnreadable, ImageUnsupported
from retrieval.images import MAX_BYTES, isolated, open_image
from retrieval.images.formats import FORMATS
from retrieval.images.guards import MAX_BLOCKS, MAX_SEGMENTS, plain_file

from ...world import draw, encode

pytestmark = pytest.mark.filterwarnings("ignore:Corrupt EXIF data")  # Pillow reads it while it writes it
CPU_S, MEMORY = 2.0, 300 * 2**20
pillow_heif.register_heif_opener()


def directories(size: int) -> bytes:
    """Return EXIF data of directories that start in each other's entries."""
    number = (size - 10) // 12
    entries = (struct.pack(">HHII", 34665, 4, 1, 8 + 12 * (place + 1) % size) for place in range(number))
    return b"MM\0*" + struct.pack(">IH", 8, min(number, 65_535)) + b"".join(entries)


def segment(kind: int, content: bytes) -> bytes:
    return struct.pack(">BBH", 0xFF, kind, len(content) + 2) + content


def chunk(kind: bytes, content: bytes) -> bytes:
    return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    body = b"".join(kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) & 1) for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


JPEG, PNG, WEBP = (encode(draw(1, 1), kind) for kind in ("JPEG", "PNG", "WEBP"))
VP8 = (WEBP[12:16], WEBP[20 : 20 + int.from_bytes(WEBP[16:20], "little")])


def in_jpeg(*segments: bytes) -> bytes:
    return JPEG[:2] + b"".join(segments) + JPEG[2:]


def in_png(*chunks: bytes) -> bytes:
    return PNG[:33] + b"".join(chunks) + PNG[33:]


def progressive(side: int, scans: int, *, refined: bool) -> bytes:
    """Return a gray JPEG whose scans of few bytes visit all of its blocks."""
    blocks = (-(-side // 8)) ** 2
    start = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64)
    start += segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    start += segment(0xC4, b"\0" + bytes([1, *[0] * 15]) + b"\0") + segment(
        0xC4, b"\x10" + bytes([1, *[0] * 15]) + b"\xe0"
    )
    start += segment(0xDA, b"\1\1\0\0\0\0") + bytes(-(-blocks // 8))
    bits = ""
    while blocks > 0:
        run = min(max(blocks, 16_384), 32_767)
        bits, blocks = bits + "0" + format(run - 16_384, "014b"), blocks - run
    bits += "1" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\0")
    scan = segment(0xDA, b"\1\1\0\1\x3f" + (b"\x10" if refined else b"\0")) + body
    return start + scan * scans + b"\xff\xd9"


def encoded(kind: str, **options: Any) -> bytes:
    file = io.BytesIO()
    draw(1, 1).save(file, kind, **options)
    return file.getvalue()


def flood(start: bytes, part: bytes, end: bytes) -> bytes:
    return start + part * ((MAX_BYTES - len(start) - len(end)) // len(part)) + end


def gif_with(part: bytes) -> bytes:
    data = encode(draw(1, 1).convert("P"), "GIF")
    start = 13 + (3 << (data[10] & 7) + 1)
    return flood(data[:start], part, data[start:])


COLOURS = b"\xff\xed\xff\xf0Photoshop 3.0\0" + (b"8BIM\x04\x04" + bytes(6)) * 5458
CASES: dict[str, Callable[[], bytes]] = {
    "jpeg directories": lambda: in_jpeg(segment(0xE1, b"Exif\0\0" + directories(65_000))),
    "jpeg smallest directory": lambda: in_jpeg(segment(0xE1, b"Exif\0\0" + directories(20_000))),
    "jpeg many exif": lambda: in_jpeg(*[segment(0xE1, b"Exif\0\0" + bytes(1200))] * 8_000),
    "jpeg comments": lambda: flood(JPEG[:2], b"\xff\xfe\0\2", JPEG[2:]),
    "jpeg segments": lambda: flood(JPEG[:2], b"\xff\xe5\0\2", JPEG[2:]),
    "jpeg tables": lambda: flood(JPEG[:2], b"\xff\xdb\0\2", JPEG[2:]),
    "jpeg fill": lambda: flood(JPEG[:2], b"\xff", JPEG[2:]),
    "jpeg profiles": lambda: flood(JPEG[:2], segment(0xE2, b"ICC_PROFILE\0\1\1"), JPEG[2:]),
    "jpeg photoshop": lambda: flood(JPEG[:2], COLOURS[:65_534], JPEG[2:]),
    "jpeg stuffing": lambda: flood(JPEG[:-2], b"\xff\0", JPEG[-2:]),
    "jpeg scans": lambda: progressive(4992, 1_000, refined=False),
    "jpeg refinement": lambda: progressive(4992, 1_000, refined=True),
    "jpeg most scans": lambda: progressive(4992, MAX_BLOCKS // 624**2 - 1, refined=True),
    "png directories": lambda: in_png(chunk(b"eXIf", directories(2**20))),
    "png chunks": lambda: flood(PNG[:33], chunk(b"abCd", b""), PNG[33:]),
    "png texts": lambda: flood(PNG[:33], chunk(b"tEXt", b"k\0"), PNG[33:]),
    "png no data": lambda: flood(PNG[:33], chunk(b"IDAT", b""), PNG[33:]),
    "png text bomb": lambda: in_png(chunk(b"zTXt", b"k\0\0" + zlib.compress(bytes(2**28), 9))),
    "png profile bomb": lambda: in_png(chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\n" * 2**28, 9))),
    "png colour bomb": lambda: in_png(chunk(b"iCCP", b"k\0\0" + zlib.compress(bytes(2**28), 9))),
    "png deep": lambda: (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", 5000, 5000, 16, 6, 0, 0, 0))
        + chunk(b"IDAT", zlib.compress((b"\4" + bytes(40_000)) * 5000, 9))
        + chunk(b"IEND", b"")
    ),
    "webp directories": lambda: riff(
        (b"VP8X", b"\x08" + bytes(3) + b"\x3f\0\0" * 2), VP8, (b"EXIF", directories(60_000))
    ),
    "webp chunks": lambda: flood(WEBP, b"abcd\0\0\0\0", b""),
    "webp canvas": lambda: riff((b"VP8X", b"\2" + bytes(3) + b"\xff\x3f\0" * 2), (b"ANIM", bytes(6)), VP8),
    "tiff directories": lambda: directories(60_000),
    "avif directories": lambda: encoded("AVIF", exif=directories(60_000)),
    "heic directories": lambda: encoded("HEIF", exif=directories(60_000)),
    "gif garbage": lambda: gif_with(b"\0"),
    "gif extensions": lambda: gif_with(b"!\xf9\4" + bytes(5)),
    "gif comment": lambda: gif_with(b"!\xfe\1a\0"),
    "bmp": lambda: encode(Image.new("1", (5000, 5000)), "BMP"),
}


def cpu() -> float:
    """Return the CPU seconds of this process and of the decoders that it ended."""
    spent = time.process_time()
    with Path("/proc/self/stat").open(encoding="ascii") as file:
        fields = file.read().rpartition(")")[2].split()
    return spent + (int(fields[13]) + int(fields[14])) / 100


def cost(data: bytes) -> tuple[float, str]:
    """Return the CPU seconds of decoding a file, here and in a decoder of its own, and the refusal if any."""
    isolated._end()
    started, outcome = cpu(), ""
    try:
        open_image(data)
    except (ImageTooLarge, ImageUnreadable, ImageUnsupported) as refusal:
        outcome = refusal.message
    isolated._end()
    return cpu() - started, outcome


@pytest.mark.parametrize("name", CASES)
def test_a_file_made_to_be_costly_takes_less_than_two_seconds(name: str) -> None:
    data = CASES[name]()
    assert len(data) <= MAX_BYTES
    seconds, outcome = cost(data)
    assert seconds < CPU_S, outcome


MEASURE = """
import resource, sys
from retrieval.images import open_image
from retrieval.errors import ImageRefused
data = open(sys.argv[1], "rb").read()
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
try:
    open_image(data)
except ImageRefused:
    pass
print(1024 * (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))
"""


def large(kind: str, mode: str = "RGB", side: int = 5000, **options: Any) -> bytes:
    pixels = np.random.default_rng(0).integers(0, 256, (side // 40, side // 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(pixels).resize((side, side), Image.Resampling.NEAREST).convert(mode).save(file, kind, **options)
    return file.getvalue()


@pytest.mark.slow
@pytest.mark.parametrize(
    "made",
    [
        lambda: large("JPEG", subsampling=0, progressive=True),
        lambda: large("JPEG", "CMYK", progressive=True),
        lambda: large("PNG", "RGBA"),
        lambda: large("WEBP", "RGBA", 3600, lossless=True, method=0, quality=0),
        lambda: large("TIFF", compression="tiff_deflate"),
        CASES["png deep"],
    ],
)
def test_the_largest_photos_take_at_most_300_megabytes(made: Callable[[], bytes], tmp_path: Path) -> None:
    (tmp_path / "photo").write_bytes(made())
    told = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path / "photo")], check=True, capture_output=True, text=True
    )
    assert json.loads(told.stdout) <= MEMORY


def spread(data: bytes, generator: np.random.Generator) -> bytes:
    """Return a file with a stretch of it repeated: segments, chunks, boxes and entries in other numbers and places."""
    start = int(generator.integers(2, len(data)))
    part = data[start : start + int(generator.choice([1, 4, 12, 16, 64, 700]))]
    times = int(generator.choice([2, 50, 5_000, 200_000]))
    repeated = (part * times)[: MAX_BYTES - len(data)]
    return data[:start] + repeated + data[start:]


@pytest.mark.parametrize("kind", [form.name for form in FORMATS])
def test_files_of_a_random_structure_take_less_than_two_seconds(kind: str) -> None:
    generator = np.random.default_rng(len(kind))
    options = {"exif": directories(600)} if kind not in ("GIF", "BMP", "TIFF") else {}
    whole = encoded(kind, **options)
    for number in range(30 if kind in ("JPEG", "PNG", "WEBP") else 6):
        data = whole if number == 0 else spread(whole, generator)
        seconds, outcome = cost(data)
        assert seconds < CPU_S, (number, outcome)


def test_a_jpeg_keeps_its_pixels_without_its_metadata() -> None:
    data = in_jpeg(segment(0xFE, b"secret"), segment(0xE2, b"secret"), segment(0xED, b"secret"))
    plain = plain_file("JPEG", data + b"secret").data
    assert b"secret" not in plain
    assert np.array_equal(np.asarray(Image.open(io.BytesIO(plain))), np.asarray(Image.open(io.BytesIO(JPEG))))


def test_a_file_of_the_most_segments_opens_and_one_more_is_refused() -> None:
    own = plain_segments(JPEG)
    assert open_image(in_jpeg(*[segment(0xFE, b"")] * (MAX_SEGMENTS - own))).size == draw(1, 1).size
    with pytest.raises(ImageTooLarge, match="segments"):
        open_image(in_jpeg(*[segment(0xFE, b"")] * (MAX_SEGMENTS - own + 1)))


def plain_segments(data: bytes) -> int:
    """Return the segments of a baseline JPEG of one scan, with its end."""
    at, number = 2, 2
    while data[at + 1] != 0xDA:
        at += 2 + int.from_bytes(data[at + 2 : at + 4])
        number += 1
    return number


def test_arithmetic_and_lossless_jpegs_are_refused() -> None:
    for kind in (0xC3, 0xC9, 0xCA):
        with pytest.raises(ImageUnsupported, match="arithmetic"):
            open_image(JPEG.replace(b"\xff\xc0", bytes((0xFF, kind)), 1))


def test_a_decoder_that_takes_too_long_is_ended_and_the_next_photo_opens(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(isolated, "CPU_S", 0.01)
        with pytest.raises(ImageTooLarge, match=r"more than 0\.01 s of CPU"):
            open_image(large("TIFF", compression="tiff_deflate"))
    assert open_image(encode(draw(1, 1), "TIFF")).size == draw(1, 1).size


def test_a_decoder_is_used_again(monkeypatch: pytest.MonkeyPatch) -> None:
    isolated._end()
    open_image(encode(draw(1, 1), "GIF"))
    monkeypatch.setattr(isolated, "_started", lambda: pytest.fail("a second process was started"))
    with pytest.raises(ImageRefused):
        open_image(encode(draw(1, 1), "TIFF")[:200])
    assert open_image(encode(draw(1, 1), "BMP")).size == draw(1, 1).size


def test_a_heic_without_its_package_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pillow_heif.py").write_text("raise ImportError")
    monkeypatch.syspath_prepend(tmp_path)
    isolated._end()
    with pytest.raises(ImageUnsupported, match="HEIC photos need the package pillow_heif") as refused:
        open_image(encode(draw(1, 1), "HEIF"))
    assert refused.value.remedy == "Install it: pip install -c constraints.txt '.[sources]'"
    isolated._end()
