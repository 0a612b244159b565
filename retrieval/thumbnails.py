"""Thumbnails: small JPEGs of photos, without the metadata of their files."""

from __future__ import annotations

import io

from PIL import Image

from .plain_jpeg import without_metadata

THUMBNAIL_SIDE, THUMBNAIL_BYTES, QUALITIES = 256, 48_000, (85, 60, 30)  # of JPEG: the next one if a thumbnail is larger
LEAST = 0.9  # least longest side of an averaged thumbnail, as a share of THUMBNAIL_SIDE


def thumbnail(image: Image.Image, data: bytes = b"") -> bytes:
    """Return a JPEG of at most 256 pixels per side and 48 kB, without the metadata of the original file.

    `data` is the file that the image was opened from, if there is one. A small JPEG is used without its metadata;
    any other image is encoded.
    """
    if len(data) <= THUMBNAIL_BYTES and data.startswith(b"\xff\xd8"):
        plain = without_metadata(data, longest=THUMBNAIL_SIDE)
        if plain is not None:
            return plain
    small = _smaller(image)
    for quality in QUALITIES:
        out = io.BytesIO()
        small.save(out, "JPEG", quality=quality, comment=b"")
        if out.tell() <= THUMBNAIL_BYTES:
            break
    return out.getvalue()


def _smaller(image: Image.Image) -> Image.Image:
    """Return the image with a longest side of THUMBNAIL_SIDE or a little less, or the image itself if it is small.

    Averaging blocks of whole pixels is up to several times as fast as resampling, so it is used where the longest side
    is then at least LEAST of THUMBNAIL_SIDE.
    """
    longest = max(image.size)
    if longest <= THUMBNAIL_SIDE:
        return image
    factor = -(-longest // THUMBNAIL_SIDE)
    if longest >= factor * LEAST * THUMBNAIL_SIDE:
        return image.reduce(factor)
    width, height = (max(1, round(side * THUMBNAIL_SIDE / longest)) for side in image.size)
    return image.resize((width, height), Image.Resampling.BILINEAR, reducing_gap=2.0)
