"""Formats of photos that are accepted, and how their files begin.

Pillow decodes all of them except HEIF (HEIC files of phones), which needs pillow-heif, from the extra `sources`. The
photo is the first frame of a GIF, the first page of a TIFF or the primary image of a HEIF. Other animations are
refused.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

from .errors import ImageUnsupported, install_command

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
    may_move: bool = False  # whether a file with several frames is an animation, which is refused


FORMATS = (
    Format("JPEG", "JPEG", (".jpg", ".jpeg"), "image/jpeg", (b"\xff\xd8\xff",)),
    Format("PNG", "PNG", (".png",), "image/png", (b"\x89PNG\r\n\x1a\n",), may_move=True),
    Format("WEBP", "WebP", (".webp",), "image/webp", (b"RIFF",), may_move=True),
    Format("AVIF", "AVIF", (".avif",), "image/avif", brands=(b"avif", b"avis"), may_move=True),
    Format("HEIF", "HEIC", (".heic", ".heif"), "image/heic", brands=(b"heic", b"heix", b"hevc", b"mif1")),
    Format("TIFF", "TIFF", (".tif", ".tiff"), "image/tiff", (b"II*\0", b"MM\0*")),
    Format("BMP", "BMP", (".bmp",), "image/bmp", (b"BM",)),
    Format("GIF", "GIF", (".gif",), "image/gif", (b"GIF87a", b"GIF89a")),
)
SUFFIXES = frozenset(suffix for form in FORMATS for suffix in form.suffixes)
NAMES = f"{', '.join(form.shown for form in FORMATS[:-1])} or {FORMATS[-1].shown}"


def format_of(data: bytes) -> Format | None:
    """Return the format that the beginning of a file suggests, None for any other file; its content is not checked."""
    brands = data[8:BRANDS] if data[4:8] == b"ftyp" else b""
    for form in FORMATS:
        if data.startswith(form.beginnings) or any(brand in brands for brand in form.brands):
            return form
    return None


def prepare(form: Format) -> None:
    """Enable Pillow to decode a format; raise ImageUnsupported if a package is missing."""
    if form.name == "HEIF":
        _register_heif()


@cache
def _register_heif() -> None:
    try:
        import pillow_heif
    except ImportError as error:
        raise ImageUnsupported(
            "HEIC photos need the package pillow_heif", remedy=f"Install it: {install_command('sources')}"
        ) from error
    pillow_heif.register_heif_opener(thumbnails=False, depth_images=False, aux_images=False, decode_threads=1)
