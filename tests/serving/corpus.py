"""Hostile and odd images, made in memory, each with what the server must do with it."""

from __future__ import annotations

import io
import struct
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from PIL import Image, ImageCms

from ..world import draw, encode

ITEM = 3
ACCEPTED = frozenset({200})
DAMAGED = frozenset({400})
LARGE = frozenset({413})
UNSUPPORTED = frozenset({415})
FOREIGN = frozenset({400, 415})  # a format that is not accepted
MPX_100, MPX_178, MPX_400 = (10_000, 10_000), (13_400, 13_300), (20_000, 20_000)


@dataclass(frozen=True)
class Case:
    """A file, the statuses that it may be answered with, and the plain picture that it must be answered as."""

    name: str
    data: bytes
    statuses: frozenset[int] = ACCEPTED
    like: bytes = b""  # where it is accepted, the nearest item and its distance are this picture's
    kind: str = "image/jpeg"  # what the client says that it is


@cache
def corpus() -> tuple[Case, ...]:
    """Return all cases; their names are unique."""
    return (*_accepted(), *_bombs(), *_lying(), *_damaged(), *_foreign(), *_shapes(), *_animated())


def picture(side: int = 160) -> Image.Image:
    """Return a picture of an item that the test gallery holds."""
    return draw(ITEM, 5).resize((side, side), Image.Resampling.NEAREST)


def saved(image: Image.Image, kind: str, **options: Any) -> bytes:
    """Return an image as a file."""
    file = io.BytesIO()
    image.save(file, kind, **options)
    return file.getvalue()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    """Return a chunk of a PNG file."""
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


def png_chunks(data: bytes) -> list[bytes]:
    """Return the chunks of a PNG file, which may be cut off."""
    chunks, at = [], 8
    while at + 4 <= len(data):
        (length,) = struct.unpack_from(">I", data, at)
        chunks.append(data[at : at + 12 + length])
        at += 12 + length
    return chunks


def png_of(chunks: Sequence[bytes]) -> bytes:
    """Return a PNG file of chunks."""
    return b"\x89PNG\r\n\x1a\n" + b"".join(chunks)


def claimed_png(width: int, height: int, *, depth: int = 8, colour: int = 2, pixels: bytes = b"\0" * 100) -> bytes:
    """Return a PNG file that claims any size."""
    head = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    return png_of([png_chunk(b"IHDR", head), png_chunk(b"IDAT", zlib.compress(pixels, 9)), png_chunk(b"IEND", b"")])


def claimed_jpeg(width: int, height: int, data: bytes = b"") -> bytes:
    """Return a JPEG file whose frame header claims any size."""
    data = data or encode(picture())
    at = data.index(b"\xff\xc0") + 5
    return data[:at] + struct.pack(">HH", height, width) + data[at + 4 :]


def with_segment(data: bytes, marker: int, content: bytes, *, times: int = 1) -> bytes:
    """Return a JPEG file with segments put in front."""
    segment = b"\xff" + bytes([marker]) + struct.pack(">H", len(content) + 2) + content
    return data[:2] + segment * times + data[2:]


def with_chunk(data: bytes, kind: bytes, content: bytes) -> bytes:
    """Return a PNG file with a chunk after its header."""
    head, *rest = png_chunks(data)
    return png_of([head, png_chunk(kind, content), *rest])


def _accepted() -> list[Case]:
    plain = picture()
    jpeg, png = encode(plain), encode(plain, "PNG")
    gray = plain.convert("L")
    deep = Image.fromarray(np.asarray(gray).astype(np.uint16) * 257)
    glass = plain.convert("RGBA")
    glass.putalpha(Image.linear_gradient("L").resize(plain.size))
    shown = Image.alpha_composite(Image.new("RGBA", plain.size, (255, 255, 255, 255)), glass).convert("RGB")
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    html = b"<html><script>alert(1)</script><!--"
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as files:
        files.writestr("../../etc/passwd", "root::0:0")
    as_plain = {
        "progressive JPEG": saved(plain, "JPEG", progressive=True, quality=95),
        "CMYK JPEG": saved(plain.convert("CMYK"), "JPEG", quality=95),
        "WebP": saved(plain, "WEBP", lossless=True),
        "palette PNG": encode(plain.quantize(256), "PNG"),
        "opaque alpha PNG": encode(plain.convert("RGBA"), "PNG"),
        "sRGB profile": saved(plain, "JPEG", icc_profile=profile, quality=95),
        "profile of garbage": saved(plain, "JPEG", icc_profile=bytes(range(256)) * 4, quality=95),
        "corrupt EXIF": with_segment(jpeg, 0xE1, b"Exif\0\0MM\0*\xff\xff\xff\xff" + b"\xff" * 200),
        "EXIF that points at itself": with_segment(
            jpeg, 0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x87\x69\0\x04\0\0\0\x01\0\0\0\x08\0\0\0\x08"
        ),
        "100 APP1 segments": with_segment(jpeg, 0xE1, b"Exif\0\0" + bytes(65_000), times=100),
        "JPEG and ZIP": jpeg + archive.getvalue(),
        "JPEG with a page as comment": with_segment(jpeg, 0xFE, html),
        "PNG and a page": png + html,
        "PNG called JPEG": png,
        "a secret in its text": with_chunk(png, b"tEXt", b"path\0/etc/passwd"),
    }
    cases = [Case(name, data, like=png) for name, data in as_plain.items()]
    return [
        *cases,
        Case("JPEG called PDF", jpeg, like=png, kind="application/pdf"),
        Case("16-bit gray PNG", encode(deep, "PNG"), like=encode(gray, "PNG")),
        Case("gray JPEG", saved(gray, "JPEG", quality=95), like=encode(gray, "PNG")),
        Case("1-bit PNG", encode(plain.convert("1"), "PNG"), like=encode(plain.convert("1").convert("RGB"), "PNG")),
        Case("alpha PNG", encode(glass, "PNG"), like=encode(shown, "PNG")),
        Case("alpha WebP", saved(glass, "WEBP", lossless=True), like=encode(shown, "PNG")),
        Case("8 pixels", encode(plain.resize((8, 8)), "PNG")),
        Case("50 times as long", encode(plain.resize((500, 10)), "PNG")),
    ]


def _bombs() -> list[Case]:
    bit_row = b"\0" * (1 + MPX_400[0] // 8)
    text = zlib.compress(b"a" * 100_000_000, 9)
    png = encode(picture(), "PNG")
    return [
        Case("bomb of 100 Mpx", claimed_png(*MPX_100), LARGE),
        Case("bomb of 178 Mpx", claimed_png(*MPX_178), LARGE),
        Case("bomb of 400 Mpx", claimed_png(*MPX_400), LARGE),
        Case("bomb of 400 Mpx of 1 bit, all there", _one_bit(MPX_400, bit_row), LARGE),
        Case("JPEG of 100 Mpx", claimed_jpeg(*MPX_100), LARGE),
        Case("JPEG of 4,290 Mpx", claimed_jpeg(65_500, 65_500), LARGE),
        Case("WebP of 268 Mpx", _claimed_webp(16_384, 16_384), LARGE | DAMAGED),
        Case("PNG of 4 Ppx", claimed_png(2**31 - 1, 2**31 - 1), LARGE | DAMAGED),
        Case("zTXt bomb", with_chunk(png, b"zTXt", b"Comment\0\0" + text), like=png),
        Case("iTXt bomb", with_chunk(png, b"iTXt", b"Comment\0\x01\0\0\0" + text), like=png),
        Case("iCCP bomb", with_chunk(png, b"iCCP", b"profile\0\0" + text), like=png),
        Case("IDAT bomb", claimed_png(64, 64, pixels=b"\0" * 100_000_000), like=_black()),
    ]


def heic() -> bytes:
    """Return the picture as a phone writes it."""
    from pillow_heif import from_pillow

    file = io.BytesIO()
    from_pillow(picture()).save(file, quality=95)
    return file.getvalue()


def _one_bit(size: tuple[int, int], row: bytes) -> bytes:
    packed = zlib.compressobj(9)
    pixels = b"".join(packed.compress(row * 1000) for _ in range(size[1] // 1000)) + packed.flush()
    head = struct.pack(">IIBBBBB", *size, 1, 0, 0, 0, 0)
    return png_of([png_chunk(b"IHDR", head), png_chunk(b"IDAT", pixels), png_chunk(b"IEND", b"")])


def _black() -> bytes:
    return encode(Image.new("RGB", (64, 64)), "PNG")


def _claimed_webp(width: int, height: int) -> bytes:
    exif = Image.Exif()
    exif[0x010E] = "so that the file has an extended header"
    data = bytearray(saved(picture(), "WEBP", exif=exif))
    at = data.index(b"VP8X") + 12
    data[at : at + 6] = (width - 1).to_bytes(3, "little") + (height - 1).to_bytes(3, "little")
    return bytes(data)


def _lying() -> list[Case]:
    """Return files whose headers do not fit their pixels."""
    png = encode(picture(), "PNG")
    return [
        Case("PNG that claims more rows", claimed_png(4000, 4000), DAMAGED),
        Case("PNG of no width", claimed_png(0, 40), FOREIGN),
        Case("PNG of 3 bits", claimed_png(40, 40, depth=3), FOREIGN),
        Case("PNG whose pixels claim 4 GB", png[:33] + b"\xff\xff\xff\xff" + png[37:], ACCEPTED | DAMAGED, like=png),
        Case("PNG whose text claims 2 GB", png[:33] + b"\x7f\xff\xff\xfftEXt" + png[33:], DAMAGED),
        Case("PNG whose checksum is wrong", png[:29] + bytes(4) + png[33:], DAMAGED),
        Case("JPEG that claims 24 Mpx", claimed_jpeg(6000, 4000), ACCEPTED | DAMAGED),  # libjpeg fills it with gray
        Case("JPEG of no height", claimed_jpeg(40, 0), FOREIGN),
        Case("palette PNG without palette", claimed_png(40, 40, colour=3), DAMAGED),
    ]


def _damaged() -> list[Case]:
    kinds = [(kind, encode(picture(), kind)) for kind in ("JPEG", "PNG", "WEBP")]
    cases = [
        Case(f"{kind} cut at {share:.0%}", data[: int(share * len(data))], DAMAGED)
        for kind, data in kinds
        for share in (0.01, 0.3, 0.6, 0.9)
    ]
    jpeg, png = (data for _, data in kinds[:2])
    scan = jpeg.index(b"\xff\xda")
    return [
        *cases,
        Case("JPEG without its last 100 bytes", jpeg[:-100], DAMAGED),
        Case("JPEG without tables", jpeg.replace(b"\xff\xdb", b"\xff\xec"), DAMAGED),
        Case("JPEG without scan", jpeg[:scan] + b"\xff\xd9", DAMAGED),
        Case("PNG with bits flipped", _flipped(png, slice(60, len(png) - 40)), DAMAGED),
        Case("PNG without pixels", png_of([c for c in png_chunks(png) if c[4:8] != b"IDAT"]), DAMAGED),
        Case("empty", b"", DAMAGED),
        Case("a byte", b"\xff", DAMAGED),
        Case("zeros", bytes(10_000), DAMAGED),
        Case("noise", np.random.default_rng(0).bytes(50_000), DAMAGED),
        Case("10 MB and a byte", b"\xff" * (10 * 2**20 + 1), LARGE),
    ]


def _flipped(data: bytes, where: slice) -> bytes:
    generator, damaged = np.random.default_rng(1), bytearray(data)
    for at in generator.integers(where.start, where.stop, 20):
        damaged[at] ^= 1 << int(generator.integers(8))
    return bytes(damaged)


def _foreign() -> list[Case]:
    """Return formats that are not accepted, called JPEG."""
    svg = b"""<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY x SYSTEM "file:///etc/passwd">]>
<svg xmlns="http://www.w3.org/2000/svg" width="40" height="40"><text y="20">&x;</text>
<image href="http://192.0.2.1/secret.png"/></svg>"""
    eps = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 40 40\n(/etc/passwd) (r) file\nshowpage\n"
    saves: dict[str, Callable[[], bytes]] = {
        kind: lambda kind=kind: saved(picture(), kind) for kind in ("PDF", "ICO", "TGA", "PPM", "JPEG2000", "EPS")
    }
    return [
        *(Case(f"{kind} called JPEG", make(), FOREIGN) for kind, make in saves.items()),
        *(Case(kind, encode(picture(), kind), UNSUPPORTED) for kind in ("AVIF", "TIFF", "BMP", "GIF")),
        Case("HEIC", heic(), UNSUPPORTED),
        Case("SVG that reads a file", svg, FOREIGN, kind="image/svg+xml"),
        Case("EPS that reads a file", eps, FOREIGN),
        Case("a page", b"<html><img src=x onerror=alert(1)></html>", FOREIGN, kind="text/html"),
        Case("PDF's magic", b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj", FOREIGN),
        Case("AVIF's magic", b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miaf", UNSUPPORTED),
        Case("HEIC's magic", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", UNSUPPORTED),
        Case("TIFF's magic", b"II*\0\x08\0\0\0", UNSUPPORTED),
        Case("BMP's magic", b"BM", UNSUPPORTED),
        Case("GIF's magic", b"GIF89a", UNSUPPORTED),
        Case("an address", b"http://192.0.2.1/secret.png", FOREIGN),
        Case("a path", b"/etc/passwd", FOREIGN),
    ]


def _shapes() -> list[Case]:
    return [
        Case("1 pixel", encode(Image.new("RGB", (1, 1)), "PNG"), UNSUPPORTED),
        Case("7 pixels", encode(Image.new("RGB", (7, 7)), "PNG"), UNSUPPORTED),
        Case("1 by 60,000", encode(Image.new("L", (1, 60_000)), "PNG"), UNSUPPORTED),
        Case("4,000 by 3", encode(Image.new("RGB", (4000, 3))), UNSUPPORTED),
        Case("51 times as long", encode(picture().resize((510, 10)), "PNG"), UNSUPPORTED),
    ]


def _animated() -> list[Case]:
    frames: dict[str, Any] = {"save_all": True, "append_images": [picture().rotate(90)]}
    return [
        Case("animated GIF", saved(picture(), "GIF", **frames), UNSUPPORTED),
        Case("animated AVIF", saved(picture(), "AVIF", **frames), UNSUPPORTED),
        Case("animated WebP", saved(picture(), "WEBP", **frames), UNSUPPORTED),
        Case("animated PNG", saved(picture(), "PNG", **frames), UNSUPPORTED),
        Case("animated PNG of 1,000,000 frames", _frames(1_000_000), UNSUPPORTED | DAMAGED),
    ]


def _frames(count: int) -> bytes:
    return with_chunk(encode(picture(), "PNG"), b"acTL", struct.pack(">II", count, 0))
