"""Formats of photos, and how their files begin.

JPEG, PNG and WebP are checked and decoded in the process that needs them (`guards`). The others are decoded in a
process with limits (`isolated`): Pillow decodes all of them except HEIF (HEIC files of phones), which needs
pillow-heif, from the extra `sources`. TIFF, BMP and GIF are not taken over HTTP. The photo is the first frame of a GIF,
the first page of a TIFF or the primary image of a HEIF. Other animations are refused.
"""

from __future__ import annotations

from dataclasses import dataclass

BRANDS = 64  # bytes in which an ISO file names its brands


@dataclass(frozen=True)
class Format:
    """A format."""

    name: str  # in Pillow
    shown: str  # in messages
    suffixes: tuple[str, ...]
    media_type: str
    beginnings: tuple[bytes, ...] = ()
    brands: tuple[bytes, ...] = ()  # of an ISO file


SENT = (
    Format(
        "JPEG", "JPEG", (".jpg", ".jpeg", ".jpe", ".jfif", ".jif", ".pjpeg", ".pjp"), "image/jpeg", (b"\xff\xd8\xff",)
    ),
    Format("PNG", "PNG", (".png",), "image/png", (b"\x89PNG\r\n\x1a\n",)),
    Format("WEBP", "WebP", (".webp",), "image/webp", (b"RIFF",)),
)
FORMATS = (
    *SENT,
    Format("AVIF", "AVIF", (".avif",), "image/avif", brands=(b"avif", b"avis")),
    Format("HEIF", "HEIC", (".heic", ".heif", ".hif"), "image/heic", brands=(b"heic", b"heix", b"hevc", b"mif1")),
    Format("TIFF", "TIFF", (".tif", ".tiff"), "image/tiff", (b"II*\0", b"MM\0*")),
    Format("BMP", "BMP", (".bmp",), "image/bmp", (b"BM",)),
    Format("GIF", "GIF", (".gif",), "image/gif", (b"GIF87a", b"GIF89a")),
)
SUFFIXES = frozenset(suffix for form in FORMATS for suffix in form.suffixes)
SENT_SUFFIXES = frozenset(suffix for form in SENT for suffix in form.suffixes)


def names(formats: tuple[Format, ...]) -> str:
    """Return the names of formats: "JPEG, PNG or WebP"."""
    return f"{', '.join(form.shown for form in formats[:-1])} or {formats[-1].shown}"


NAMES = names(SENT)
PHONES = ("HEIF", "AVIF")  # taken over HTTP, too, with the extra `sources`


def format_of(data: bytes) -> Format | None:
    """Return the format that the beginning of a file suggests, None for any other file; its content is not checked."""
    brands = data[8:BRANDS] if data[4:8] == b"ftyp" else b""
    for form in FORMATS:
        if data.startswith(form.beginnings) or any(brand in brands for brand in form.brands):
            return form
    return None
