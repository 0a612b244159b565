"""Training crops: a random part of a photo, mirrored and recoloured, decided by numbers that are given.

The colour of a pixel x becomes c·b·S·H·x + (1 − c)·b·m, rounded and held within 0..255 once: b is the factor on
brightness, c on contrast (around m, the mean luminance of the crop), S mixes a colour with its luminance, H turns it
around the gray axis. Brightness, contrast and saturation are linear and commute, so one 3×4 matrix says all of them.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image

from retrieval.images import resized
from training.config import Settings

TRIES = 10  # of a crop that fits into the photo
NUMBERS = 2 * TRIES + 8  # in [0, 1) that decide one crop
LUMINANCE = (0.299, 0.587, 0.114)  # ITU-R 601, as JPEG and Pillow
RECOLOURED = 0.8  # share of the crops whose colour changes

Box = tuple[float, float, float, float]


class Augmentation:
    """Random crop (by our own resize), mirror and mild colour, all decided by the numbers it is given."""

    def __init__(self, settings: Settings) -> None:
        self.size = settings.size
        self._crop_area = settings.crop_area
        self._flip = settings.flip
        self._colour = settings.colour

    def __call__(self, image: Image.Image, generator: np.random.Generator) -> np.ndarray:
        """Return uint8 (size, size, 3), decided by a generator."""
        return self.crop(image, generator.random(NUMBERS))

    def crop(self, image: Image.Image, numbers: np.ndarray) -> np.ndarray:
        """Return uint8 (size, size, 3), decided by numbers (NUMBERS,) in [0, 1)."""
        *sides, left, upper, mirror, recolour, bright, contrast, saturation, hue = numbers.tolist()
        box = random_box(image.size, self._crop_area, sides=sides, corner=(left, upper))
        crop = resized(image, self.size, box=box)
        if self._colour and recolour < RECOLOURED:
            factors = (self._factor(bright), self._factor(contrast), self._factor(saturation))
            turn = 2 * math.pi * (2 * hue - 1) * self._colour / 10
            crop = crop.convert("RGB", colour_matrix(factors, turn, mean=luminance(crop)))
        if self._flip and mirror < 0.5:
            crop = crop.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        return np.asarray(crop)

    def _factor(self, number: float) -> float:
        return max(0.0, 1 + (2 * number - 1) * self._colour)


def random_box(size: tuple[int, int], smallest_area: float, *, sides: list[float], corner: tuple[float, float]) -> Box:
    """Return a crop of random area and aspect between 3:4 and 4:3 (the field's RandomResizedCrop).

    `sides` holds an area and an aspect for each try, `corner` where the crop lies, all in [0, 1).
    """
    width, height = size
    for area_number, aspect_number in zip(sides[::2], sides[1::2], strict=True):
        area = (smallest_area + (1 - smallest_area) * area_number) * width * height
        aspect = (4 / 3) ** (2 * aspect_number - 1)
        w, h = math.sqrt(area * aspect), math.sqrt(area / aspect)
        if w <= width and h <= height:
            left, upper = corner[0] * (width - w), corner[1] * (height - h)
            return (left, upper, min(left + w, width), min(upper + h, height))
    side = min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return (left, upper, left + side, upper + side)


def luminance(image: Image.Image) -> float:
    """Return the mean luminance of a square RGB image, in 0..255."""
    red, green, blue = image.reduce(image.width).getpixel((0, 0))  # type: ignore[misc]  # RGB: three values
    return LUMINANCE[0] * red + LUMINANCE[1] * green + LUMINANCE[2] * blue


def colour_matrix(factors: tuple[float, float, float], turn: float, *, mean: float) -> tuple[float, ...]:
    """Return the 3×4 matrix, row by row, of factors on (brightness, contrast, saturation) and a turn of the hue.

    The turn is in radians, from red towards green.
    """
    bright, contrast, saturation = factors
    scale, offset = bright * contrast, bright * (1 - contrast) * mean
    same = (1 - math.cos(turn)) / 3
    across = math.sin(turn) / math.sqrt(3)
    straight, back, on = math.cos(turn) + same, same - across, same + across
    hue = ((straight, back, on), (on, straight, back), (back, on, straight))
    gray = [sum(LUMINANCE[k] * hue[k][j] for k in range(3)) for j in range(3)]
    matrix: list[float] = []
    for row in hue:
        matrix += [scale * (saturation * row[j] + (1 - saturation) * gray[j]) for j in range(3)]
        matrix.append(offset)
    return tuple(matrix)
