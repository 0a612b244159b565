"""Drawn pictures with many corners, and photos of them: warped, darkened and noisy."""

from __future__ import annotations

import numpy as np
from PIL import Image, ImageDraw

SIDES = (320, 240)


def picture(seed: int) -> Image.Image:
    """Return a picture of coloured shapes that no other seed draws."""
    generator = np.random.default_rng(seed)
    image = Image.new("RGB", SIDES, tuple(map(int, generator.integers(0, 256, 3))))
    pencil = ImageDraw.Draw(image)
    for _ in range(60):
        x, y = generator.integers(0, SIDES[0]), generator.integers(0, SIDES[1])
        width, height = generator.integers(8, 50, 2)
        colour = tuple(map(int, generator.integers(0, 256, 3)))
        box = (int(x), int(y), int(x + width), int(y + height))
        (pencil.rectangle, pencil.ellipse)[int(generator.integers(2))](box, fill=colour)
    return image


def photographed(image: Image.Image, seed: int = 0, *, turn: float = 12, zoom: float = 0.8) -> Image.Image:
    """Return a photo of a picture: turned, smaller, darker and with noise."""
    generator = np.random.default_rng(seed)
    small = image.resize((round(image.width * zoom), round(image.height * zoom)), Image.Resampling.BICUBIC)
    turned = small.rotate(turn, Image.Resampling.BICUBIC, expand=True, fillcolor=(90, 120, 60))
    pixels = np.asarray(turned) * 0.8 + generator.normal(0, 4, (turned.height, turned.width, 3))
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
