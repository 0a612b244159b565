"""Hostile and odd input, made in memory: images, damage of files, ids and metadata of photos.

Each entry point has one driver: `open_image`, a bundle, a gallery, the HTTP interface and the page.
"""

from __future__ import annotations

import io
import json
import os
import struct
import warnings
import zipfile
import zlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import pytest
from PIL import Image, ImageCms

from retrieval.images import MAX_BYTES
from retrieval.images.guards import MAX_BLOCKS

from .world import draw, encode

ITEM = 3
FLIPS = int(os.environ.get("RETRIEVAL_FLIPS", "30"))  # that each file is damaged; 1,000 in `make reliability`
ACCEPTED = frozenset({200})
DAMAGED = frozenset({400})
LARGE = frozenset({413})
UNSUPPORTED = frozenset({415})
FOREIGN = frozenset({400, 415})  # a format that is not accepted
ANY = ACCEPTED | DAMAGED | LARGE | UNSUPPORTED
DEEP = "PNG of 37 Mpx and 64 bits"
MPX_100, MPX_178, MPX_201, MPX_400 = (10_000, 10_000), (13_400, 13_300), (14_200, 14_200), (20_000, 20_000)


@dataclass(frozen=True)
class Case:
    """A file, the HTTP statuses that a search with it may have, and the plain picture that it must be answered as."""

    name: str
    data: bytes
    statuses: frozenset[int] = ACCEPTED
    like: bytes = b""  # where it is accepted, the nearest item and its distance are this picture's
    kind: str = "image/jpeg"  # what the client says that it is


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


def segment(marker: int, content: bytes) -> bytes:
    """Return a segment of a JPEG file."""
    return struct.pack(">BBH", 0xFF, marker, len(content) + 2) + content


def in_jpeg(*segments: bytes, data: bytes = b"") -> bytes:
    """Return a JPEG file with segments put in front."""
    data = data or encode(picture())
    return data[:2] + b"".join(segments) + data[2:]


def in_png(*chunks: bytes) -> bytes:
    """Return a PNG file with chunks after its header."""
    data = encode(picture(), "PNG")
    return data[:33] + b"".join(chunks) + data[33:]


def riff(*chunks: tuple[bytes, bytes]) -> bytes:
    """Return a WebP file of chunks."""
    body = b"".join(kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) & 1) for kind, data in chunks)
    return b"RIFF" + struct.pack("<I", len(body) + 4) + b"WEBP" + body


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
        "corrupt EXIF": in_jpeg(segment(0xE1, b"Exif\0\0MM\0*\xff\xff\xff\xff" + b"\xff" * 200)),
        "EXIF that points at itself": in_jpeg(
            segment(0xE1, b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x87\x69\0\x04\0\0\0\x01\0\0\0\x08\0\0\0\x08")
        ),
        "100 APP1 segments": in_jpeg(*[segment(0xE1, b"Exif\0\0" + bytes(65_000))] * 100),
        "JPEG and ZIP": jpeg + archive.getvalue(),
        "JPEG with a page as comment": in_jpeg(segment(0xFE, html)),
        "PNG and a page": png + html,
        "PNG called JPEG": png,
        "a secret in its text": in_png(png_chunk(b"tEXt", b"path\0/etc/passwd")),
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
        Case("AVIF", encode(plain, "AVIF")),
        Case("HEIC", heic()),
        Case("8 pixels", encode(plain.resize((8, 8)), "PNG")),
        Case("50 times as long", encode(plain.resize((500, 10)), "PNG")),
    ]


def _bombs() -> list[Case]:
    bit_row = b"\0" * (1 + MPX_400[0] // 8)
    text = zlib.compress(b"a" * 2**28, 9)
    png = encode(picture(), "PNG")
    return [
        Case("bomb of 100 Mpx", claimed_png(*MPX_100), LARGE),
        Case("bomb of 178 Mpx", claimed_png(*MPX_178), LARGE),
        Case("bomb of 400 Mpx", claimed_png(*MPX_400), LARGE),
        Case("bomb of 400 Mpx of 1 bit, all there", _one_bit(MPX_400, bit_row), LARGE),
        Case("JPEG of 201 Mpx", claimed_jpeg(*MPX_201), LARGE),
        Case("JPEG of 4,290 Mpx", claimed_jpeg(65_500, 65_500), LARGE),
        Case("WebP of 268 Mpx", _claimed_webp(16_384, 16_384), LARGE | DAMAGED),
        Case("PNG of 4 Ppx", claimed_png(2**31 - 1, 2**31 - 1), LARGE | DAMAGED),
        Case("zTXt bomb", in_png(png_chunk(b"zTXt", b"Comment\0\0" + text)), like=png),
        Case("iTXt bomb", in_png(png_chunk(b"iTXt", b"Comment\0\x01\0\0\0" + text)), like=png),
        Case("iCCP bomb", in_png(png_chunk(b"iCCP", b"profile\0\0" + text)), like=png),
        Case("IDAT bomb", claimed_png(64, 64, pixels=b"\0" * 100_000_000), like=_black()),
    ]


def heic(**options: Any) -> bytes:
    """Return the picture as a phone writes it."""
    from pillow_heif import from_pillow

    file = io.BytesIO()
    from_pillow(picture()).save(file, quality=95, **options)
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
        Case("JPEG that claims 178 Mpx", claimed_jpeg(*MPX_178), ACCEPTED | DAMAGED | LARGE),  # too large for a server
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
        Case("PNG with bits flipped", png[:60] + flip_bits(png[60:-40], np.random.default_rng(1)) + png[-40:], DAMAGED),
        Case("PNG without pixels", png_of([c for c in png_chunks(png) if c[4:8] != b"IDAT"]), DAMAGED),
        Case("empty", b"", DAMAGED),
        Case("a byte", b"\xff", DAMAGED),
        Case("zeros", bytes(10_000), DAMAGED),
        Case("noise", np.random.default_rng(0).bytes(50_000), DAMAGED),
        Case("60 MiB and a byte", b"\xff" * (MAX_BYTES + 1), LARGE),
    ]


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
        *(Case(kind, encode(picture(), kind), UNSUPPORTED) for kind in ("TIFF", "BMP", "GIF")),
        Case("SVG that reads a file", svg, FOREIGN, kind="image/svg+xml"),
        Case("EPS that reads a file", eps, FOREIGN),
        Case("a page", b"<html><img src=x onerror=alert(1)></html>", FOREIGN, kind="text/html"),
        Case("PDF's magic", b"%PDF-1.7\n1 0 obj<</Type/Catalog>>endobj", FOREIGN),
        Case("AVIF's magic", b"\0\0\0\x20ftypavif\0\0\0\0avifmif1miaf", DAMAGED),
        Case("HEIC's magic", b"\0\0\0\x18ftypheic\0\0\0\0mif1heic", DAMAGED),
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
        Case(
            "animated PNG of 1,000,000 frames",
            in_png(png_chunk(b"acTL", struct.pack(">II", 1_000_000, 0))),
            UNSUPPORTED | DAMAGED,
        ),
    ]


# files whose structure is costly


def directories(size: int) -> bytes:
    """Return EXIF data of directories that start in each other's entries."""
    number = (size - 10) // 12
    entries = (struct.pack(">HHII", 34665, 4, 1, 8 + 12 * (place + 1) % size) for place in range(number))
    return b"MM\0*" + struct.pack(">IH", 8, min(number, 65_535)) + b"".join(entries)


def progressive(side: int, scans: int, *, refined: bool) -> bytes:
    """Return a gray JPEG whose scans of few bytes visit all of its blocks."""
    blocks = (-(-side // 8)) ** 2
    start = b"\xff\xd8" + segment(0xDB, b"\0" + b"\1" * 64)
    start += segment(0xC2, struct.pack(">BHHB", 8, side, side, 1) + b"\1\x11\0")
    start += segment(0xC4, b"\0" + bytes([1, *[0] * 15]) + b"\0")
    start += segment(0xC4, b"\x10" + bytes([1, *[0] * 15]) + b"\xe0")
    start += segment(0xDA, b"\1\1\0\0\0\0") + bytes(-(-blocks // 8))
    bits = ""
    while blocks > 0:
        run = min(max(blocks, 16_384), 32_767)
        bits, blocks = bits + "0" + format(run - 16_384, "014b"), blocks - run
    bits += "1" * (-len(bits) % 8)
    body = int(bits, 2).to_bytes(len(bits) // 8).replace(b"\xff", b"\xff\0")
    scan = segment(0xDA, b"\1\1\0\1\x3f" + (b"\x10" if refined else b"\0")) + body
    return start + scan * scans + b"\xff\xd9"


def filled(start: bytes, part: bytes, end: bytes) -> bytes:
    """Return the largest file that is still read: a part again and again between a start and an end."""
    return start + part * ((MAX_BYTES - len(start) - len(end)) // len(part)) + end


def _costly() -> list[Case]:
    plain = picture(40)
    jpeg, png, webp = (encode(plain, kind) for kind in ("JPEG", "PNG", "WEBP"))
    gif = encode(plain.convert("P"), "GIF")
    table = 13 + (3 << (gif[10] & 7) + 1)
    vp8 = webp[12:16], webp[20 : 20 + int.from_bytes(webp[16:20], "little")]
    exif = b"Exif\0\0"
    colours = (b"\xff\xed\xff\xf0Photoshop 3.0\0" + (b"8BIM\x04\x04" + bytes(6)) * 5458)[:65_534]
    deep = png_chunk(b"IHDR", struct.pack(">IIBBBBB", 6100, 6100, 16, 6, 0, 0, 0))
    rows = png_chunk(b"IDAT", zlib.compress((b"\4" + bytes(48_800)) * 6100, 9))
    return [
        Case("JPEG of directories", in_jpeg(segment(0xE1, exif + directories(65_000)))),
        Case("JPEG of a smaller directory", in_jpeg(segment(0xE1, exif + directories(20_000)))),
        Case("JPEG of 8,000 EXIF segments", in_jpeg(*[segment(0xE1, exif + bytes(1200))] * 8_000)),
        Case("JPEG of comments", filled(jpeg[:2], segment(0xFE, b""), jpeg[2:]), LARGE),
        Case("JPEG of segments", filled(jpeg[:2], segment(0xE5, b""), jpeg[2:]), LARGE),
        Case("JPEG of tables", filled(jpeg[:2], segment(0xDB, b""), jpeg[2:]), LARGE),
        Case("JPEG of fill", filled(jpeg[:2], b"\xff", jpeg[2:]), LARGE),
        Case("JPEG of profiles", filled(jpeg[:2], segment(0xE2, b"ICC_PROFILE\0\1\1"), jpeg[2:]), LARGE),
        Case("JPEG of Photoshop's colours", filled(jpeg[:2], colours, jpeg[2:]), ACCEPTED | LARGE),
        Case("JPEG of stuffing", filled(jpeg[:-2], b"\xff\0", jpeg[-2:]), ACCEPTED | LARGE),
        Case("JPEG of scans", progressive(4992, 1_000, refined=False), LARGE),
        Case("JPEG of refining scans", progressive(4992, 1_000, refined=True), LARGE),
        Case("JPEG of the most scans", progressive(4992, MAX_BLOCKS // 624**2 - 1, refined=True)),
        Case("PNG of directories", in_png(png_chunk(b"eXIf", directories(2**20)))),
        Case("PNG of chunks", filled(png[:33], png_chunk(b"abCd", b""), png[33:]), LARGE),
        Case("PNG of texts", filled(png[:33], png_chunk(b"tEXt", b"k\0"), png[33:]), LARGE),
        Case("PNG of empty pixels", filled(png[:33], png_chunk(b"IDAT", b""), png[33:]), LARGE),
        Case(
            "PNG of a raw profile",
            in_png(png_chunk(b"zTXt", b"Raw profile type exif\0\0" + zlib.compress(b"\n" * 2**28, 9))),
        ),
        Case(DEEP, png_of([deep, rows, png_chunk(b"IEND", b"")])),
        Case("PNG of 49 Mpx in a palette", saved(Image.new("P", (7000, 7000)), "PNG", transparency=0)),
        Case(
            "WebP of directories",
            riff((b"VP8X", b"\x08" + bytes(3) + b"\x3f\0\0" * 2), vp8, (b"EXIF", directories(60_000))),
            DAMAGED,
        ),
        Case("WebP of chunks", filled(webp, b"abcd\0\0\0\0", b""), LARGE),
        Case(
            "WebP of another canvas",
            riff((b"VP8X", b"\2" + bytes(3) + b"\xff\x3f\0" * 2), (b"ANIM", bytes(6)), vp8),
            UNSUPPORTED,
        ),
        Case("TIFF of directories", directories(60_000), UNSUPPORTED),
        Case("AVIF of directories", saved(plain, "AVIF", exif=directories(60_000))),
        Case("HEIC of directories", heic(exif=directories(60_000))),
        Case("GIF of garbage", filled(gif[:table], b"\0", gif[table:]), UNSUPPORTED | LARGE),
        Case("GIF of extensions", filled(gif[:table], b"!\xf9\4" + bytes(5), gif[table:]), UNSUPPORTED | LARGE),
        Case("GIF of comments", filled(gif[:table], b"!\xfe\1a\0", gif[table:]), UNSUPPORTED | LARGE),
        Case("BMP of 25 Mpx", encode(Image.new("1", (5000, 5000)), "BMP"), UNSUPPORTED),
    ]


KINDS: dict[str, Callable[[], list[Case]]] = {
    "accepted": _accepted,
    "bombs": _bombs,
    "lying": _lying,
    "damaged": _damaged,
    "foreign": _foreign,
    "shapes": _shapes,
    "animated": _animated,
    "costly": _costly,
}


@cache
def images(kind: str) -> tuple[Case, ...]:
    """Return the images of a kind."""
    with warnings.catch_warnings(action="ignore"):  # Pillow reads odd EXIF data while it writes it
        return tuple(KINDS[kind]())


# damage


def originals() -> list[bytes]:
    """Return small files of every kind, those first that are accepted over HTTP."""
    image = draw(ITEM, 5)
    exif = Image.Exif()
    exif[0x0112] = 6
    return [
        saved(image, "JPEG"),
        saved(image, "JPEG", progressive=True, exif=exif),
        saved(image.convert("CMYK"), "JPEG"),
        saved(image, "PNG"),
        saved(image.quantize(16), "PNG", transparency=0),
        saved(image.convert("RGBA"), "PNG", exif=exif),
        saved(Image.fromarray(np.asarray(image.convert("L")).astype(np.uint16) * 257), "PNG"),
        saved(image, "WEBP", exif=exif),
        saved(image.convert("RGBA"), "WEBP", lossless=True),
        *(saved(image, kind) for kind in ("AVIF", "TIFF", "BMP", "GIF")),
        heic(),
    ]


def flip_bits(data: bytes, generator: np.random.Generator, *, most: int = 8) -> bytes:
    """Change a few bits."""
    changed = bytearray(data)
    for at in generator.integers(0, len(data), generator.integers(1, most + 1)):
        changed[at] ^= 1 << int(generator.integers(8))
    return bytes(changed)


def overwrite(data: bytes, generator: np.random.Generator) -> bytes:
    """Write extreme numbers, as lengths and sizes are."""
    at = int(generator.integers(0, len(data)))
    extreme = [b"\xff\xff\xff\xff", bytes(4), b"\x7f\xff\xff\xff", b"\0\0\0\x01", generator.bytes(8)]
    new = extreme[int(generator.integers(len(extreme)))]
    return data[:at] + new + data[at + len(new) :]


def truncate(data: bytes, generator: np.random.Generator) -> bytes:
    """Cut a file off."""
    return data[: int(generator.integers(0, len(data)))]


def move_chunks(data: bytes, generator: np.random.Generator) -> bytes:
    """Leave a part out, or write it twice: a chunk of a PNG that has some, else any."""
    chunks = png_chunks(data) if data.startswith(b"\x89PNG") else []
    if chunks:
        at = int(generator.integers(len(chunks)))
        return png_of([*chunks[:at], *[chunks[at]] * (2 * int(generator.integers(2))), *chunks[at + 1 :]])
    first, last = sorted(int(n) for n in generator.integers(0, len(data), 2))
    return data[:first] + data[first:last] * (2 * int(generator.integers(2))) + data[last:]


def splice(data: bytes, generator: np.random.Generator) -> bytes:
    """Go on with another file."""
    others = originals()
    other = others[int(generator.integers(len(others)))]
    return data[: int(generator.integers(len(data)))] + other[int(generator.integers(len(other))) :]


def repeat(data: bytes, generator: np.random.Generator) -> bytes:
    """Repeat a stretch of a file: segments, chunks, boxes and entries in other numbers and places."""
    start = int(generator.integers(len(data)))
    part = data[start : start + int(generator.choice([1, 4, 12, 16, 64, 700]))]
    times = int(generator.choice([2, 50, 5_000, 200_000]))
    return data[:start] + (part * times)[: MAX_BYTES - len(data)] + data[start:]


def damage(data: bytes, generator: np.random.Generator) -> bytes:
    """Return other bytes: a bit flipped, or cut off somewhere."""
    return truncate(data, generator) if generator.random() < 0.2 else flip_bits(data, generator, most=1)


MUTATIONS = (flip_bits, flip_bits, overwrite, truncate, move_chunks, splice)


def mutated_images(count: int, seed: int, *, large: bool = False) -> Iterator[bytes]:
    """Yield images that were changed in one way or two; with `large`, some have as many bytes as are read."""
    generator, files, mutations = np.random.default_rng(seed), originals(), (*MUTATIONS, *[repeat] * large)
    for _ in range(count):
        data = files[int(generator.integers(len(files)))]
        for _ in range(int(generator.integers(1, 3))):
            data = mutations[int(generator.integers(len(mutations)))](data, generator) or b"\0"
        yield data[:MAX_BYTES]


# arrays of galleries and bundles


class Unpickled:
    """An object that ends a test wherever it is unpickled."""

    def __reduce__(self) -> tuple[object, tuple[str]]:
        """Return what pickle would call."""
        return pytest.fail, ("an object was unpickled",)


def npy(array: np.ndarray) -> bytes:
    """Return an array as a file."""
    file = io.BytesIO()
    np.save(file, array)
    return file.getvalue()


def npz(**arrays: np.ndarray) -> bytes:
    """Return arrays as a file."""
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


def npz_of(name: str, content: bytes) -> bytes:
    """Return a file of one array, which may be none."""
    file = io.BytesIO()
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr(f"{name}.npy", content)
    return file.getvalue()


def claimed_npy(count: int, content: bytes = b"") -> bytes:
    """Return a file that claims an array of any length."""
    file = io.BytesIO()
    np.lib.format.write_array_header_1_0(file, {"descr": "<f8", "fortran_order": False, "shape": (count,)})
    return file.getvalue() + content


ARRAYS = {
    "nothing": b"",
    "no array": bytes(100),
    "2^55 bytes": claimed_npy(2**52, bytes(100)),
    "rows that are not there": npy(np.zeros((1, 16), np.float32)).replace(b"(1, 16)", b"(9999999999, 16)"),
    "objects": npy(np.array([Unpickled()], dtype=object)),
}


# photos


PHOTO_IDS = (
    *("../../x", "/etc/passwd", "a\0b", "a\nb", "a\\b", "ä\u202e", "\U0001f34c", "x" * 500, "%2e%2e", "a?b#c"),
    *("-", " ", "."),
)
METADATA = {  # as JSON, of which some is none
    "NaN": '{"x": NaN}',
    "infinity": '{"x": Infinity}',
    "huge power": '{"x": 1e999}',
    "huge number": f'{{"x": {"9" * 400}}}',
    "larger than 64 bits": f'{{"x": {2**63}}}',
    "deep": '{"x": ' + "[" * 150 + "]" * 150 + "}",
    "half a surrogate": '{"x": "\\ud800"}',
    "NUL": '{"x": "\\u0000", "\\u0000": 1}',
    "own fields": '{"item_id": 1, "photo_id": [], "distance": 0, "__class__": "x"}',
    "1 MB": json.dumps({"x": "y" * 2**20}),
    "10,000 keys": json.dumps({f"k{n}": n for n in range(10_000)}),
    "no object": "[1]",
    "a page": '{"x": "<script>alert(1)</script>"}',
}
