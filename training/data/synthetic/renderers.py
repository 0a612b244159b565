"""Renderers that turn a flat design into a body: solid of revolution, carton or cutout.

Coordinates are shares of a square sprite: x across, y down, both in [0, 1]. A sprite is RGBA of SPRITE pixels.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageOps
from PIL.Image import Resampling, Transform

from .designs import Colour, Design, artwork, crest, pattern_image

SPRITE = 208  # pixels
FINE = 2 * SPRITE  # drawn at twice the size, then reduced
FIXED: dict[str, Colour] = {
    "white": (245, 244, 240), "dark": (45, 45, 50), "metal": (190, 195, 200), "wood": (176, 130, 84),
    "glass": (205, 228, 232), "grey": (130, 134, 140), "card": (186, 150, 108),
}  # fmt: skip

Point = tuple[float, float]


def fill_colour(design: Design, fill: str) -> Colour:
    """Return the colour of a fill: a part of the design (body, label, accent, cap, ink), or a fixed one."""
    if fill in FIXED:
        return FIXED[fill]
    colour: Colour = getattr(design, fill)
    return colour


def printed(design: Design, fill: str, width: int, height: int, *, front: float = 1.0) -> Image.Image:
    """Return a fill as an image (height, width): "art", "crest", "pattern" or a colour."""
    if fill == "art":
        return artwork(design, width, height, front=front)
    if fill == "crest":
        return crest(design, width, height)
    if fill == "pattern":
        return Image.fromarray(pattern_image(design, width, height))
    return Image.new("RGB", (width, height), fill_colour(design, fill))


def shaded(colour: Colour, factor: float) -> Colour:
    """Return a colour made lighter or darker."""
    red, green, blue = (min(255, round(channel * factor)) for channel in colour)
    return (red, green, blue)


@dataclass(frozen=True)
class Part:
    """A flat piece: `points` are corners, or left, upper, right, lower if `shape` is oval or box."""

    shape: str  # "poly", "blob" (its corners rounded), "oval", "box", "hoop" (an oval's outline)
    points: tuple[float, ...]
    fill: str


@dataclass(frozen=True)
class Lathe:
    """A solid of revolution: half widths down its axis, and bands of fill."""

    profile: tuple[Point, ...]  # (y, half width)
    bands: tuple[tuple[float, float, str], ...]  # (y from, y to, fill)
    lid: str = "cap"  # the ellipse seen from above
    gloss: float = 0.5
    behind: tuple[Part, ...] = ()

    turns = True  # looks different from other sides

    @cached_property
    def geometry(self) -> tuple[Any, ...]:
        """Angle, texture row, mask (an image), lid, light and highlight of each pixel (h, w)."""
        tilt = 0.16  # tilt of the camera
        heights, widths = (np.array(column) for column in zip(*self.profile, strict=True))
        reach = math.ceil(widths.max() * FINE) / FINE
        x = np.arange(-reach + 0.5 / FINE, reach, 1 / FINE)[None, :]
        y = ((np.arange(FINE) + 0.5) / FINE)[:, None]
        half = np.interp(y, heights, widths)
        for _ in range(3):  # the front of a ring is seen lower than its axis
            depth = np.sqrt(1 - np.clip(x / half, -1, 1) ** 2)
            row = y - tilt * half * depth
            half = np.interp(row, heights, widths)
        u = np.clip(x / half, -1, 1)
        inside = (np.abs(x) <= half) & (row >= heights[0]) & (row <= heights[-1])
        lid = (x / widths[0]) ** 2 + ((y - heights[0]) / (tilt * widths[0])) ** 2 <= 1
        light = 0.5 + 0.55 * np.clip(0.9 * depth - 0.45 * u, 0, 1)
        spark = self.gloss * np.exp(-(((u + 0.5) / 0.12) ** 2)) * 110
        mask = Image.fromarray(((inside | lid) * 255).astype(np.uint8))
        rows = np.clip((row * FINE).astype(np.intp), 0, FINE - 1)
        return (
            np.arcsin(u),
            rows,
            mask,
            lid & ~inside,
            light[..., None].astype(np.float32),
            spark[..., None].astype(np.float32),
        )

    def render(self, design: Design, yaws: Sequence[float]) -> list[Image.Image]:
        """Return a sprite of a design for each angle (radians)."""
        angle, rows, inside, lid, light, spark = self.geometry
        wrap = self._wrap(design)
        left = (FINE - angle.shape[1]) // 2
        sprites = []
        for yaw in yaws:
            columns = (((angle + yaw) / (2 * np.pi) + 0.5) % 1 * wrap.shape[1]).astype(np.intp)
            pixels = wrap[rows, columns] * light + spark
            pixels[lid] = shaded(fill_colour(design, self.lid), 0.8)
            body = Image.fromarray(pixels.clip(0, 255).astype(np.uint8))
            sprite = draw_parts(design, self.behind, reduced=False)
            sprite.paste(body, (left, 0), mask=inside)
            sprites.append(sprite.reduce(2))
        return sprites

    def _wrap(self, design: Design) -> np.ndarray:
        """Return the texture around the body: uint8 (FINE, columns, 3)."""
        columns = round(2 * np.pi * max(width for _, width in self.profile) * FINE)
        wrap = np.empty((FINE, columns, 3), dtype=np.uint8)
        wrap[:] = design.body
        for top, bottom, fill in self.bands:
            band = slice(round(top * FINE), round(bottom * FINE))
            wrap[band] = np.asarray(printed(design, fill, columns, band.stop - band.start, front=0.3))
        return wrap


@dataclass(frozen=True)
class Carton:
    """A carton, seen slightly from above; `gable` is the height of a milk carton's roof."""

    width: float
    height: float
    depth: float
    gable: float = 0.0
    top: str = "label"

    turns = True

    def render(self, design: Design, yaws: Sequence[float]) -> list[Image.Image]:
        """Return a sprite of a design for each angle (radians)."""
        front = artwork(design, FINE, round(FINE * self.height / self.width))
        return [self._render(design, front, yaw) for yaw in yaws]

    def _render(self, design: Design, front: Image.Image, yaw: float) -> Image.Image:
        sprite = Image.new("RGBA", (FINE, FINE))
        w, h, d, ridge = self.width / 2, self.height / 2, self.depth / 2, self.height / 2 + self.gable
        turn = yaw + (0.3 if yaw >= 0 else -0.3)
        x, near, far = (-w, -d, d) if turn > 0 else (w, d, -d)  # the visible side, from left to right
        back, height = (0.0, ridge) if self.gable else (-d, h)
        above = Image.new("RGB", (8, 8), fill_colour(design, self.top))
        aside = Image.fromarray(pattern_image(design, 120, 200))
        faces: list[tuple[Image.Image, float, list[tuple[float, float, float]]]] = [
            (above, 1.06, [(-w, height, back), (w, height, back), (w, h, d), (-w, h, d)]),
            (above, 0.66, [(x, height, back)] * 2 + [(x, h, far), (x, h, near)]),
            (above, 0.9, [(-w, ridge + 0.05, 0), (w, ridge + 0.05, 0), (w, ridge, 0), (-w, ridge, 0)]),
            (aside, 0.7, [(x, h, near), (x, h, far), (x, -h, far), (x, -h, near)]),
            (front, 1.0, [(-w, h, d), (w, h, d), (w, -h, d), (-w, -h, d)]),
        ]
        seen = faces if self.gable else [faces[0], *faces[3:]]
        for texture, light, corners in seen:
            paste_quad(sprite, texture, [_seen(corner, turn) for corner in corners], light)
        return sprite.reduce(2)


def _seen(corner: tuple[float, float, float], turn: float, pitch: float = 0.22) -> Point:
    """Return the projection in pixels of a corner (right, up, towards the camera) of a turned body."""
    x, y, z = corner
    x, z = x * math.cos(turn) + z * math.sin(turn), z * math.cos(turn) - x * math.sin(turn)
    y, z = y * math.cos(pitch) - z * math.sin(pitch), z * math.cos(pitch) + y * math.sin(pitch)
    scale = FINE * 3 / (3 - z)
    return (FINE / 2 + scale * x, FINE / 2 - scale * y)


def paste_quad(canvas: Image.Image, texture: Image.Image, quad: Sequence[Point], light: float) -> None:
    """Paste an image with its corners, clockwise from the upper left, at `quad`."""
    mask = Image.new("L", canvas.size)
    ImageDraw.Draw(mask).polygon([*quad], fill=255)
    if len(set(quad)) < 4:  # a triangle has one colour
        canvas.paste(shaded(texture.getpixel((0, 0)), light), mask=mask)  # type: ignore[arg-type]
        return
    lit = texture.point(lambda value: min(255, round(value * light)))
    coefficients = perspective(quad, texture.size)
    canvas.paste(lit.transform(canvas.size, Transform.PERSPECTIVE, coefficients, Resampling.BILINEAR), mask=mask)


def perspective(quad: Sequence[Point], size: tuple[int, int]) -> list[float]:
    """Return Pillow's eight coefficients that map an image's corners to `quad` (clockwise from the upper left).

    The corners are one pixel inside the image, because sampling outside of it returns black.
    """
    width, height = size
    rows, values = [], []
    for (x, y), (u, v) in zip(quad, ((1, 1), (width - 1, 1), (width - 1, height - 1), (1, height - 1)), strict=True):
        rows += [[x, y, 1, 0, 0, 0, -u * x, -u * y], [0, 0, 0, x, y, 1, -v * x, -v * y]]
        values += [u, v]
    solved: list[float] = np.linalg.solve(np.array(rows, float), np.array(values, float)).tolist()
    return solved


@dataclass(frozen=True)
class Cutout:
    """Flat pieces on top of each other, shaded at the edges."""

    parts: tuple[Part, ...]

    turns = False

    def render(self, design: Design, yaws: Sequence[float]) -> list[Image.Image]:
        """Return the sprite of a design for each angle; all are the same, because it has only one side."""
        return [draw_parts(design, self.parts)] * len(yaws)


def draw_parts(design: Design, parts: Sequence[Part], *, reduced: bool = True) -> Image.Image:
    """Return flat pieces drawn in order, each darker towards its edge."""
    sprite = Image.new("RGBA", (FINE, FINE))
    for part in parts:
        box = _pixel_box(part)
        mask = Image.new("L", (box[2] - box[0], box[3] - box[1]))
        _draw_shape(ImageDraw.Draw(mask), part, box)
        small = ImageOps.expand(mask.reduce(4), 6).filter(ImageFilter.BoxBlur(4))
        soft = ImageOps.crop(small, 6).resize(mask.size, Resampling.BILINEAR)
        light = 0.6 + 0.45 / 255 * np.asarray(soft, np.float32)[..., None]
        colours = np.asarray(printed(design, part.fill, *mask.size))
        sprite.paste(Image.fromarray((colours * light).clip(0, 255).astype(np.uint8)), box, mask=mask)
    return sprite.reduce(2) if reduced else sprite


def _pixel_box(part: Part) -> tuple[int, int, int, int]:
    across, down = part.points[::2], part.points[1::2]
    left, upper, right, lower = (round(v * FINE) for v in (min(across), min(down), max(across), max(down)))
    return left, upper, right + 1, lower + 1


def _draw_shape(draw: ImageDraw.ImageDraw, part: Part, box: tuple[int, int, int, int]) -> None:
    """Draw a piece in white, its box's corner at the origin."""
    across, down = ([round(v * FINE) for v in part.points[i::2]] for i in (0, 1))
    corners = [(x - box[0], y - box[1]) for x, y in zip(across, down, strict=True)]
    if part.shape == "poly":
        draw.polygon(corners, fill=255)
    elif part.shape == "blob":
        draw.polygon(_rounded(corners), fill=255)
    elif part.shape == "oval":
        draw.ellipse(corners, fill=255)
    elif part.shape == "hoop":
        draw.ellipse(corners, outline=255, width=round(0.045 * FINE))
    else:
        draw.rounded_rectangle(corners, radius=0.03 * FINE, fill=255)


def _rounded(corners: Sequence[tuple[float, float]], rounds: int = 3) -> list[Point]:
    """Return a closed outline with its corners cut (Chaikin, 1974)."""
    points = np.array(corners, float)
    for _ in range(rounds):
        following = np.roll(points, -1, axis=0)
        points = np.stack([0.75 * points + 0.25 * following, 0.25 * points + 0.75 * following], axis=1).reshape(-1, 2)
    return [(float(x), float(y)) for x, y in points]
