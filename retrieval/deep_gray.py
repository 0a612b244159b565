"""Conversion of 16-bit gray images to RGB."""

from __future__ import annotations

import numpy as np
from PIL import Image

from .errors import ImageUnsupported

ROWS = 256  # converted at once


def from_deep(image: Image.Image) -> Image.Image:
    """Convert a 16-bit gray image to RGB. Pillow's own conversion clips most values to white."""
    if not image.mode.startswith("I"):
        raise ImageUnsupported(f"images of mode {image.mode} are not accepted", remedy="Save it with 8 bits")
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ImageUnsupported("the image has more than 16 bits a channel", remedy="Save it with 8 bits")
    pixels = np.empty(values.shape, np.uint8)
    for row in range(0, len(values), ROWS):
        pixels[row : row + ROWS] = (values[row : row + ROWS].astype(np.uint32) + 128) // 257  # rounded
    return Image.fromarray(pixels).convert("RGB")
