"""Photos of a drawn thing: a place behind it, its pose and shadow, something in front, light and camera noise.

Shapes: s = side of a photo in pixels.
"""

from __future__ import annotations

import math

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from PIL.Image import Resampling, Transform

from .things import PALETTE

PLACES = ("wall", "shelf", "wood", "cloth")
SHADOW = [round(0.42 * value) for value in range(256)]
WARMTH = np.array([0.11, 0.02, -0.13], np.float32)  # change of red, green and blue in warmer light


def take_photo(thing: Image.Image | None, size: int, generator: np.random.Generator) -> Image.Image:
    """Return an RGB photo (size, size) of a thing (RGBA) or of an empty place; everything else is drawn at random."""
    photo = _draw_place(size, generator)
    if thing is not None:
        centre = size * (0.5 + generator.uniform(-0.12, 0.12, 2))
        side = size * 0.82 * math.exp(generator.uniform(-0.3, 0.2))
        _put(photo, thing, _corners(centre, side, generator))
        if generator.random() < 0.3:
            _cover(photo, centre, side, generator)
    return _expose(photo, generator)


def _draw_place(size: int, generator: np.random.Generator) -> Image.Image:
    """Return a background."""
    kind = str(generator.choice(PLACES))
    colour = 0.6 * generator.choice(PALETTE) + 90
    y, x = np.mgrid[0:size, 0:size].astype(np.float32) / size
    if kind == "wall":
        field = colour * (1.08 - 0.4 * ((x - 0.5) ** 2 + (y - 0.35) ** 2))[..., None]
    elif kind == "shelf":
        board, edge = np.array((150, 112, 76)) * generator.uniform(0.7, 1.4), generator.uniform(0.68, 0.82)
        field = np.where((y < edge)[..., None], colour, board) * (1.1 - 0.3 * x)[..., None]
        field[np.abs(y - edge) < 0.008] *= 0.55
    elif kind == "wood":
        grain = _clouds(generator, (60, 4), size) + 0.5 * np.sin(40 * y + 3 * _clouds(generator, (5, 3), size))
        field = np.array((172, 126, 84)) * generator.uniform(0.6, 1.3) * (1 + 0.12 * grain)[..., None]
    else:
        weave = 0.06 * np.sin(x * 260) * np.sin(y * 260) + 0.1 * _clouds(generator, (7, 7), size)
        field = colour * (1 + weave)[..., None]
    return Image.fromarray(field.clip(0, 255).astype(np.uint8))


def _clouds(generator: np.random.Generator, cells: tuple[int, int], size: int) -> np.ndarray:
    """Return smooth noise (s, s), about -1 to 1, of (down, across) cells."""
    field = Image.fromarray(generator.uniform(-1, 1, cells).astype(np.float32))
    return np.asarray(field.resize((size, size), Resampling.BICUBIC))


def _corners(centre: np.ndarray, side: float, generator: np.random.Generator) -> np.ndarray:
    """Return the corners (4, 2) of a square, clockwise from the upper left, turned and in a random perspective."""
    angle = generator.normal(0, 0.12)
    turn = np.array([[math.cos(angle), math.sin(angle)], [-math.sin(angle), math.cos(angle)]])
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) / 2 + generator.uniform(-0.05, 0.05, (4, 2))
    return np.asarray(centre + side * corners @ turn)


def _put(photo: Image.Image, thing: Image.Image, corners: np.ndarray) -> None:
    """Paste a thing and its shadow, with the corners of its picture at `corners` (4, 2)."""
    width, height = thing.size
    rows, values = [], []  # of the equations for Pillow's eight coefficients of a perspective
    for (x, y), (u, v) in zip(corners.tolist(), ((0, 0), (width, 0), (width, height), (0, height)), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    coefficients: list[float] = np.linalg.solve(np.array(rows, float), np.array(values, float)).tolist()
    body = thing.transform(photo.size, Transform.PERSPECTIVE, coefficients, Resampling.BILINEAR)
    alpha = body.getchannel("A")
    shadow = alpha.reduce(4).filter(ImageFilter.BoxBlur(3)).resize(photo.size, Resampling.BILINEAR)
    shift = max(1, photo.width // 40)
    photo.paste((20, 18, 22), (shift, shift), mask=shadow.point(SHADOW))
    photo.paste(body, mask=alpha)


def _cover(photo: Image.Image, centre: np.ndarray, side: float, generator: np.random.Generator) -> None:
    """Draw a price tag or a strip of tape over an edge of a thing."""
    draw = ImageDraw.Draw(photo)
    x, y = (centre + side * generator.uniform(0.1, 0.3, 2) * generator.choice([-1, 1], 2)).tolist()
    radius = side * generator.uniform(0.07, 0.13)
    if generator.random() < 0.5:
        colour = tuple(generator.choice(PALETTE).tolist())
        draw.rounded_rectangle((x - radius, y - 0.7 * radius, x + radius, y + 0.7 * radius), radius / 4, fill=colour)
        draw.rectangle((x - 0.7 * radius, y - 0.35 * radius, x + 0.7 * radius, y + 0.35 * radius), fill=(250, 250, 246))
    else:
        lean = generator.uniform(-1.5, 1.5) * radius
        draw.line((x - 3 * radius, y - lean, x + 3 * radius, y + lean), fill=(226, 214, 186), width=round(0.6 * radius))


def _expose(photo: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return the photo in random light, sometimes blurred, with noise."""
    if generator.random() < 0.3:
        photo = photo.filter(ImageFilter.GaussianBlur(generator.uniform(0.4, 1.5) * photo.width / 192))
    across, down, warmth, exposure, contrast = generator.normal(0, 1, 5).tolist()
    ramp = np.linspace(-0.5, 0.5, photo.width, dtype=np.float32)
    light = math.exp(0.15 * exposure) * (1 + 0.2 * (across * ramp[None, :, None] + down * ramp[:, None, None]))
    light = light * (1 + 0.4 * warmth * WARMTH)
    noise = generator.standard_normal((photo.height, photo.width, 3), dtype=np.float32) * generator.uniform(1, 8)
    pixels = (np.asarray(photo, np.float32) * light - 110) * (1 + 0.1 * contrast) + 110 + noise
    return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
