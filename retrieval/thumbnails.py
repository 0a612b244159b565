"""Thumbnails: small JPEGs of photos, without the metadata of their files."""

from __future__ import annotations

import io

from PIL import Image

from .plain_jpeg import without_metadata

THUMBNAIL_SIDE, THUMBNAIL_BYTES, QUALITIES = 256, 48_000, (85, 60, 30)  # of JPEG: the next one if a thumbnail is larger


def thumbnail(image: Image.Image, data: bytes = b"") -> bytes:
    """Return a JPEG of at most 256 pixels per side and 48 kB, without the metadata of the original file.

    `data` is the file that the image was opened from, if there is one. A small JPEG is used without its metadata;
    any other image is encoded.
    """
    if len(data) <= THUMBNAIL_BYTES and data.startswith(b"\xff\xd8"):
        plain = without_metadata(data, longest=THUMBNAIL_SIDE)
        if plain is not None:
            return plain
    small, longest = image, max(image.size)
    if longest > THUMBNAIL_SIDE:
        width, height = (max(1, round(side * THUMBNAIL_SIDE / longest)) for side in image.size)
        small = image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
    for quality in QUALITIES:
        out = io.BytesIO()
        small.save(out, "JPEG", quality=quality, comment=b"")
        if out.tell() <= THUMBNAIL_BYTES:
            break
    return out.getvalue()
