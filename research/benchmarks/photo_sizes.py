"""Photos of 2 and 12 megapixels made from small ones, with the noise of a sensor, in several formats."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.formats import FORMATS, prepare

SIZES = {"2 MP": (1632, 1224), "12 MP": (4000, 3000)}
NOISE = 6.0  # standard deviation of the luminance
SETTINGS: dict[str, dict[str, int]] = {"JPEG": {"quality": 88}, "PNG": {}, "WEBP": {"quality": 85}, "HEIF": {}}


def enlarged(photo: Path, size: tuple[int, int]) -> Image.Image:
    """Return a photo enlarged to a size in pixels, with noise."""
    width, height = size
    image = Image.open(photo).convert("RGB").resize(size, Image.Resampling.BICUBIC)
    noise = np.random.default_rng(0).normal(0, NOISE, (height, width, 1))
    return Image.fromarray(np.clip(np.asarray(image) + noise, 0, 255).astype(np.uint8))


def encoded(image: Image.Image, form: str) -> bytes:
    """Return an image as a file of a format of SETTINGS; a JPEG has EXIF data, as those of phones."""
    prepare(next(known for known in FORMATS if known.name == form))
    out = io.BytesIO()
    if form == "JPEG":
        exif = Image.Exif()
        exif[0x0112], exif[0x010F] = 1, "A camera"  # upright
        image.save(out, form, exif=exif, **SETTINGS[form])
    else:
        image.save(out, form, **SETTINGS[form])
    return out.getvalue()
