"""Photos of sprites, with background, neighbours, pose, occlusion, light and camera noise.

Every effect grows with the item's `variation` in [0, 1]: near 0 all photos have the same place and pose, near 1 they
vary freely.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image, ImageDraw, ImageFilter
from PIL.Image import Resampling, Transform

from .designs import PALETTE
from .renderers import perspective, shaded

PLACES = ("studio", "paper", "shelf", "wood", "tiles", "cloth", "lights")
GRAINS = 80  # of noise across a photo, whatever its size
EMPTY = 0.5  # variation of photos without an item
LIGHT = np.array([0.11, 0.02, -0.13], np.float32)  # change of red, green and blue in warmer light
SKIN = ((224, 172, 138), (198, 134, 98), (141, 85, 54), (92, 58, 40))


@dataclass(frozen=True)
class Store:
    """Conditions under which a set of photos is taken."""

    name: str
    role: str
    warmth: float
    exposure: float
    noise: float  # noise of the camera, in grey levels
    variation: float  # factor on the variation of the items


STORES = (
    Store("store_a", "gallery", warmth=-0.15, exposure=0.05, noise=1.5, variation=0.8),
    Store("store_b", "query", warmth=0.3, exposure=-0.05, noise=3.0, variation=1.0),
)


class Studio:
    """Takes photos of `size` pixels, in a fixed set of places."""

    def __init__(self, size: int, generator: np.random.Generator, *, places: int = 42) -> None:
        self.size, self.places = size, places
        side = round(size * 1.4)
        self._places = [_draw_place(PLACES[i % len(PLACES)], side, generator) for i in range(places)]
        grain = generator.standard_normal(
            (round(side * GRAINS / size), round(side * GRAINS / size), 3), dtype=np.float32
        )
        self._noise = np.stack([np.asarray(_scaled(grain[..., channel], side)) for channel in range(3)], axis=2)
        self._noise /= self._noise.std()

    def visit(self, generator: np.random.Generator) -> int:
        """Choose one of the places."""
        return int(generator.integers(len(self._places)))

    def take(
        self,
        views: Sequence[Image.Image],
        neighbours: Sequence[Image.Image],
        *,
        place: int,
        variation: float,
        store: Store,
        generator: np.random.Generator,
    ) -> Image.Image:
        """Return one RGB photo (size, size) of an item from one of its `views`.

        Parameters
        ----------
        views, neighbours:
            Sprites of the item at increasing angles, and of items that may stand next to it.
        place:
            Default place of its photos.
        """
        v = variation * store.variation
        if generator.random() < 0.9 * v:
            place = self.visit(generator)
        photo = self._backdrop(place, v, generator)
        centre = self.size * (0.5 + v * generator.uniform(-0.11, 0.11, 2))
        side = self.size * 0.86 * math.exp(v * generator.uniform(-0.3, 0.25))
        for left in (-1, 1):
            if neighbours and generator.random() < 0.45 * v:
                sprite = neighbours[int(generator.integers(len(neighbours)))]
                neighbour_centre = centre + np.array([left * side * generator.uniform(0.66, 0.84), -0.03 * side])
                self._stand(photo, sprite, _square(neighbour_centre, side * 0.9, 0.05, 0.02, generator))
        spread = 1 + round(v * (len(views) - 1))
        first = (len(views) - spread) // 2
        view = views[first + int(generator.integers(spread))]
        self._stand(photo, view, _square(centre, side, v * 0.3, v * 0.06, generator))
        if generator.random() < 0.4 * v:
            self._obstruct(photo, centre, side, generator)
        return self._expose(photo, v, store, generator)

    def empty(self, place: int, *, store: Store, generator: np.random.Generator) -> Image.Image:
        """Return a photo of a place without an item."""
        return self._expose(self._backdrop(place, EMPTY, generator), EMPTY, store, generator)

    def blank(self, *, store: Store, generator: np.random.Generator) -> Image.Image:
        """Return a photo of a single colour."""
        colour = PALETTE[int(generator.integers(len(PALETTE)))]
        return self._expose(Image.new("RGB", (self.size, self.size), colour), EMPTY, store, generator)

    def noise(self, generator: np.random.Generator) -> Image.Image:
        """Return a photo of random pixels."""
        return Image.fromarray(generator.integers(0, 256, (self.size, self.size, 3), dtype=np.uint8))

    def _backdrop(self, place: int, v: float, generator: np.random.Generator) -> Image.Image:
        picture = self._places[place]
        slack = picture.width - self.size
        x, y = (round(slack * (0.5 + 0.5 * min(1.0, 0.1 + v) * generator.uniform(-1, 1))) for _ in range(2))
        return picture.crop((x, y, x + self.size, y + self.size))

    def _stand(self, photo: Image.Image, sprite: Image.Image, quad: list[tuple[float, float]]) -> None:
        """Paste a sprite with its corners at `quad`, and its shadow under it."""
        coefficients = perspective(quad, sprite.size)
        body = sprite.transform(photo.size, Transform.PERSPECTIVE, coefficients, Resampling.BILINEAR)
        alpha = body.getchannel("A")
        shadow = alpha.reduce(4).filter(ImageFilter.BoxBlur(3)).resize(photo.size, Resampling.BILINEAR)
        shift = max(1, self.size // 40)
        photo.paste((20, 18, 22), (shift, shift), mask=shadow.point(_SHADOW))
        photo.paste(body, mask=alpha)

    def _obstruct(self, photo: Image.Image, centre: np.ndarray, side: float, generator: np.random.Generator) -> None:
        """Cover an edge of the item with a price tag, a strip of tape or a thumb."""
        draw = ImageDraw.Draw(photo)
        x, y = centre + side * generator.uniform(0.1, 0.3, 2) * generator.choice([-1, 1], 2)
        r = side * generator.uniform(0.07, 0.14)
        kind = generator.choice(["tag", "tape", "thumb"])
        if kind == "tag":
            colour = PALETTE[int(generator.integers(len(PALETTE)))]
            draw.rounded_rectangle((x - r, y - 0.7 * r, x + r, y + 0.7 * r), radius=r / 4, fill=colour)
            draw.rectangle((x - 0.7 * r, y - 0.35 * r, x + 0.7 * r, y + 0.35 * r), fill=(250, 250, 246))
            draw.line((x - 0.5 * r, y, x + 0.5 * r, y), fill=(40, 40, 40), width=max(2, round(r / 4)))
        elif kind == "tape":
            lean = generator.uniform(-0.5, 0.5)
            ends = (x - 3 * r, y - 3 * r * lean, x + 3 * r, y + 3 * r * lean)
            draw.line(ends, fill=(226, 214, 186), width=round(0.6 * r))
        else:
            skin = SKIN[int(generator.integers(len(SKIN)))]
            below = (x - 0.7 * r, y, x + 0.7 * r, self.size + r)
            draw.rounded_rectangle(below, radius=0.7 * r, fill=shaded(skin, generator.uniform(0.8, 1.1)))
            draw.ellipse((x - 0.4 * r, y + 0.15 * r, x + 0.4 * r, y + 0.9 * r), fill=shaded(skin, 1.15))

    def _expose(self, photo: Image.Image, v: float, store: Store, generator: np.random.Generator) -> Image.Image:
        """Return the photo at its final size, with random light, occasional blur and noise."""
        if generator.random() < 0.5 * v:
            photo = photo.filter(ImageFilter.GaussianBlur(generator.uniform(0.4, 1.7) * self.size / 192))
        pixels = np.asarray(photo, np.float32)
        across, down, warmth, exposure = generator.normal(0, 1, 4)
        ramp = np.linspace(-0.5, 0.5, self.size, dtype=np.float32)
        light = 1 + 0.25 * v * (across * ramp[None, :, None] + down * ramp[:, None, None])
        light = light * math.exp(store.exposure + 0.2 * v * exposure)
        light = light * (1 + (store.warmth + 0.5 * v * warmth) * LIGHT)
        contrast = 1 + 0.2 * v * generator.uniform(-1, 1)
        x, y = generator.integers(0, len(self._noise) - self.size + 1, 2).tolist()
        noise = self._noise[y : y + self.size, x : x + self.size] * np.float32(store.noise + 7 * v)
        pixels = (pixels * light.astype(np.float32) - 110) * np.float32(contrast) + 110 + noise
        return Image.fromarray(pixels.clip(0, 255).astype(np.uint8))


_SHADOW = [round(0.42 * value) for value in range(256)]


def _square(
    centre: np.ndarray, side: float, turn: float, warp: float, generator: np.random.Generator
) -> list[tuple[float, float]]:
    """Return a square's corners, turned by at most `turn` radians, each moved by at most `warp` sides."""
    angle = generator.uniform(-turn, turn)
    cos, sin = math.cos(angle), math.sin(angle)
    corners = np.array([(-1, -1), (1, -1), (1, 1), (-1, 1)]) / 2 + generator.uniform(-warp, warp, (4, 2))
    turned = corners @ np.array([[cos, sin], [-sin, cos]])
    return [(float(x), float(y)) for x, y in centre + side * turned]


def _draw_place(kind: str, side: int, generator: np.random.Generator) -> Image.Image:
    """Return a background (side, side)."""
    colour = np.array(PALETTE[int(generator.integers(len(PALETTE)))], np.float32)
    y, x = np.mgrid[0:side, 0:side].astype(np.float32) / side
    if kind == "studio":
        grey = generator.uniform(190, 240) + generator.uniform(-8, 8, 3)
        field = grey * (1.05 - 0.35 * ((x - 0.5) ** 2 + (y - 0.35) ** 2))[..., None]
    elif kind == "paper":
        field = (0.55 * colour + 95) * (1.08 - 0.3 * np.abs(y - 0.3))[..., None]
    elif kind == "shelf":
        board = np.array((150, 112, 76), np.float32) * generator.uniform(0.7, 1.4)
        edge = generator.uniform(0.68, 0.82)
        field = np.where((y < edge)[..., None], 0.35 * colour + 120, board) * (1.1 - 0.3 * x)[..., None]
        field[np.abs(y - edge) < 0.008] *= 0.55
    elif kind == "wood":
        grain = _noise(generator, (60, 4), side) + 0.5 * np.sin(40 * y + 3 * _noise(generator, (5, 3), side))
        field = np.array((172, 126, 84), np.float32) * generator.uniform(0.6, 1.3) * (1 + 0.12 * grain)[..., None]
    elif kind == "tiles":
        count = int(generator.integers(4, 8))
        joint = (np.minimum((x * count) % 1, (y * count) % 1) < 0.07)[..., None]
        field = np.where(joint, 235.0, 0.6 * colour + 90) * (1 + 0.04 * _noise(generator, (9, 9), side))[..., None]
    elif kind == "cloth":
        weave = 0.06 * np.sin(x * 260) * np.sin(y * 260) + 0.08 * _noise(generator, (7, 7), side)
        field = (0.7 * colour + 50) * (1 + weave)[..., None]
    else:
        field = np.full((side, side, 3), 34, np.float32) + 0.25 * colour
        for _ in range(26):
            cx, cy, radius = generator.uniform((0, 0, 0.03), (1, 1, 0.12))
            spot = 0.5 * np.array(PALETTE[int(generator.integers(len(PALETTE)))], np.float32)
            field += spot * np.clip((radius - np.hypot(x - cx, y - cy)) * 60, 0, 1)[..., None]
    return Image.fromarray(field.clip(0, 255).astype(np.uint8))


def _noise(generator: np.random.Generator, cells: tuple[int, int], side: int) -> np.ndarray:
    """Return smooth noise (side, side), about -1 to 1, of (down, across) cells."""
    return np.asarray(_scaled(generator.uniform(-1, 1, cells).astype(np.float32), side))


def _scaled(field: np.ndarray, side: int) -> Image.Image:
    """Return an array (h, w) as an image (side, side)."""
    return Image.fromarray(field).resize((side, side), Resampling.BICUBIC)


def turns(variation: float, *, views: int = 5) -> list[float]:
    """Return the angles in radians from which an item is drawn, over a range that grows with its variation."""
    reach = 0.1 + 0.6 * variation
    return np.linspace(-reach, reach, views).tolist()  # type: ignore[no-any-return]
