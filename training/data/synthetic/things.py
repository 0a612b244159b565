"""Things to draw: four families of them, the designs that tell their items apart, and the renderer.

Points are shares of a square sprite: x across, y down, both in [0, 1]. Shapes: w, h = sides of a part in pixels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFilter, ImageFont, ImageOps
from PIL.Image import Resampling

Colour = tuple[int, int, int]

SPRITE = 176  # pixels
FINE = 2 * SPRITE  # drawn at twice the size, then reduced
APART = 150  # minimum sum of differences of red, green and blue between colours of a design
BRANDS = (
    "Nova", "Lumo", "Tavi", "Orka", "Bruno", "Mira", "Zest", "Alba", "Fjord", "Kiko", "Pax", "Vela", "Juno",
    "Rondo", "Silo", "Tango", "Umbra", "Wilma", "Yuzu", "Echo", "Dune", "Helio", "Iris", "Opal",
)  # fmt: skip
WORDS = (
    "classic", "zero", "citrus", "berry", "mint", "dark", "gold", "sport", "bio", "night", "soft", "extra", "honey",
    "peach", "wild", "ice",
)  # fmt: skip
PALETTE: tuple[Colour, ...] = (
    (28, 46, 88), (38, 84, 160), (94, 160, 214), (20, 110, 116), (72, 176, 166), (172, 220, 200), (30, 84, 56),
    (92, 150, 74), (170, 196, 90), (226, 178, 52), (246, 216, 120), (236, 140, 50), (208, 92, 48), (178, 40, 44),
    (240, 170, 160), (206, 60, 110), (112, 44, 88), (146, 104, 168), (204, 184, 222), (92, 58, 40), (168, 122, 80),
    (222, 200, 164), (250, 246, 232), (150, 154, 160), (70, 76, 84), (34, 32, 36),
)  # fmt: skip
FIXED: Mapping[str, Colour] = {"white": (245, 244, 240), "dark": (45, 45, 50)}

# Where a pattern has its accent colour, for x across and y down in [0, 1] and a number of repeats n.
PATTERNS: Mapping[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]] = {
    "stripes": lambda x, y, n: ((x * n) % 1 < 0.45) & (y >= 0),
    "rings": lambda x, y, n: ((y * n) % 1 < 0.4) & (x >= 0),
    "diagonal": lambda x, y, n: ((x + y) * n) % 1 < 0.45,
    "dots": lambda x, y, n: ((x * n) % 1 - 0.5) ** 2 + ((y * n) % 1 - 0.5) ** 2 < 0.09,
    "checks": lambda x, y, n: ((x * n) % 1 < 0.5) ^ ((y * n) % 1 < 0.5),
    "waves": lambda x, y, n: ((y + 0.05 * np.sin(2 * np.pi * n * x)) * n) % 1 < 0.45,
    "rays": lambda x, y, n: (np.arctan2(y - 0.5, x - 0.5) / np.pi * 2 * n) % 1 < 0.45,
    "split": lambda x, y, n: y > 0.35 + 0.1 * n * (x - 0.5) ** 2,
}


def _round(radius: Callable[[float], float], steps: int = 48) -> list[tuple[float, float]]:
    """Return an outline by its radius at each angle, clockwise from the top."""
    angles = (np.arange(steps) * 2 * np.pi / steps).tolist()
    return [(radius(a) * float(np.sin(a)), -radius(a) * float(np.cos(a))) for a in angles]


EMBLEMS: Mapping[str, list[tuple[float, float]]] = {
    "star": _round(lambda a: 0.42 if round(a * 5 / np.pi) % 2 else 1.0, steps=10),
    "flower": _round(lambda a: 0.7 + 0.3 * float(np.cos(5 * a))),
    "drop": _round(lambda a: 0.62 + 0.38 * max(0.0, float(np.cos(a))) ** 6),
    "moon": _round(lambda a: 0.95 if np.sin(a) < 0.35 else 0.35),
    "leaf": [(0, -1), (0.6, -0.4), (0.6, 0.3), (0, 1), (-0.6, 0.3), (-0.6, -0.4)],
    "bolt": [(0.2, -1), (-0.6, 0.15), (-0.05, 0.15), (-0.3, 1), (0.6, -0.25), (0.05, -0.25)],
    "crown": [(-0.9, -0.5), (-0.4, 0), (0, -0.8), (0.4, 0), (0.9, -0.5), (0.7, 0.7), (-0.7, 0.7)],
    "peak": [(-1, 0.7), (-0.3, -0.6), (0.05, -0.05), (0.3, -0.4), (1, 0.7)],
}


class Part(NamedTuple):
    """A flat piece of a thing: `points` are corners, or left, upper, right and lower of an oval, a box or a hoop."""

    shape: str  # "poly", "blob" (with rounded corners), "oval", "box", "hoop" (the outline of an oval)
    fill: str  # "print", "emblem", a colour of the design, or one of FIXED
    points: tuple[float, ...]


FAMILIES: Mapping[str, tuple[Part, ...]] = {
    "mug": (
        Part("hoop", "body", (0.64, 0.32, 0.97, 0.72)),
        Part("blob", "body", (0.13, 0.2, 0.77, 0.2, 0.76, 0.7, 0.73, 0.9, 0.17, 0.9, 0.14, 0.7)),
        Part("poly", "print", (0.135, 0.34, 0.765, 0.34, 0.755, 0.78, 0.145, 0.78)),
        Part("oval", "trim", (0.13, 0.12, 0.77, 0.3)),
        Part("oval", "dark", (0.17, 0.145, 0.73, 0.275)),
    ),
    "t-shirt": (
        Part("poly", "body", (0.3, 0.14, 0.04, 0.32, 0.14, 0.5, 0.3, 0.4)),
        Part("poly", "body", (0.7, 0.14, 0.96, 0.32, 0.86, 0.5, 0.7, 0.4)),
        Part("poly", "body", (0.28, 0.14, 0.72, 0.14, 0.74, 0.9, 0.26, 0.9)),
        Part("poly", "print", (0.275, 0.32, 0.725, 0.32, 0.735, 0.74, 0.265, 0.74)),
        Part("oval", "trim", (0.38, 0.07, 0.62, 0.22)),
        Part("oval", "dark", (0.41, 0.05, 0.59, 0.18)),
    ),
    "sneaker": (
        Part("blob", "body", (0.08, 0.3, 0.3, 0.34, 0.42, 0.42, 0.62, 0.55, 0.93, 0.6, 0.95, 0.74, 0.06, 0.74)),
        Part("poly", "emblem", (0.22, 0.4, 0.42, 0.46, 0.58, 0.58, 0.54, 0.72, 0.2, 0.72)),
        Part("blob", "trim", (0.74, 0.58, 0.95, 0.62, 0.95, 0.74, 0.7, 0.74)),
        Part("blob", "accent", (0.06, 0.3, 0.18, 0.3, 0.2, 0.72, 0.05, 0.74)),
        Part("box", "label", (0.05, 0.7, 0.96, 0.79)),
        Part("box", "ink", (0.05, 0.77, 0.96, 0.81)),
        Part("poly", "white", (0.38, 0.41, 0.41, 0.4, 0.53, 0.52, 0.5, 0.53)),
        Part("poly", "white", (0.44, 0.37, 0.47, 0.37, 0.6, 0.52, 0.57, 0.54)),
    ),
    "backpack": (
        Part("hoop", "trim", (0.4, 0.02, 0.6, 0.22)),
        Part("blob", "accent", (0.12, 0.5, 0.2, 0.46, 0.2, 0.9, 0.1, 0.88)),
        Part("blob", "accent", (0.88, 0.5, 0.8, 0.46, 0.8, 0.9, 0.9, 0.88)),
        Part("blob", "body", (0.18, 0.14, 0.5, 0.04, 0.82, 0.14, 0.86, 0.92, 0.5, 0.96, 0.14, 0.92)),
        Part("box", "print", (0.25, 0.44, 0.75, 0.87)),
        Part("box", "trim", (0.22, 0.38, 0.78, 0.42)),
        Part("box", "label", (0.34, 0.18, 0.66, 0.3)),
    ),
}


@dataclass(frozen=True)
class Design:
    """Print and colours of an item."""

    body: Colour
    label: Colour
    accent: Colour
    trim: Colour
    pattern: str
    repeats: int
    emblem: str
    brand: str
    word: str

    @property
    def ink(self) -> Colour:
        """Colour of text on the label: black or white, whichever has the higher contrast."""
        return (35, 30, 35) if _brightness(self.label) > 120 else (250, 248, 240)

    def colour(self, fill: str) -> Colour:
        """Return a fixed colour, or one of the design."""
        colour: Colour = FIXED[fill] if fill in FIXED else getattr(self, fill)
        return colour


def draw_design(generator: np.random.Generator) -> Design:
    """Draw a new design."""
    body = _draw_colour(generator)
    label = _draw_colour(generator, apart=[body])
    return Design(
        body=body,
        label=label,
        accent=_draw_colour(generator, apart=[body, label]),
        trim=_draw_colour(generator, apart=[body]),
        pattern=str(generator.choice(list(PATTERNS))),
        repeats=int(generator.integers(2, 6)),
        emblem=str(generator.choice(list(EMBLEMS))),
        brand=str(generator.choice(BRANDS)),
        word=str(generator.choice(WORDS)),
    )


def draw_variants(design: Design, count: int, generator: np.random.Generator) -> list[Design]:
    """Return variants of a design that differ in their words, in their emblems and in one colour, the accent."""
    words = generator.permutation([word for word in WORDS if word != design.word])
    emblems = generator.permutation([name for name in EMBLEMS if name != design.emblem])
    variants: list[Design] = []
    for word, emblem in zip(words[:count].tolist(), emblems[:count].tolist(), strict=True):
        accent = _draw_colour(generator, apart=[design.body, design.label, design.accent])
        variants.append(dataclasses.replace(design, word=word, emblem=emblem, accent=accent))
    return variants


def _draw_colour(generator: np.random.Generator, *, apart: Sequence[Colour] = ()) -> Colour:
    """Return a slightly changed colour of the palette that differs clearly from each colour of `apart`."""
    while True:
        colour = np.clip(np.add(generator.choice(PALETTE), generator.integers(-14, 15, 3)), 0, 255)
        if all(np.abs(colour - other).sum() > APART for other in apart):
            red, green, blue = colour.tolist()
            return red, green, blue


def _brightness(colour: Colour) -> float:
    """Return the perceived brightness of a colour, 0 to 255."""
    return 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]


def draw_thing(family: str, design: Design) -> Image.Image:
    """Return a thing of a family and a design, RGBA (SPRITE, SPRITE): its parts, darker towards their edges."""
    sprite = Image.new("RGBA", (FINE, FINE))
    for part in FAMILIES[family]:
        corners = np.array(part.points).reshape(-1, 2) * FINE
        (left, upper), (right, lower) = corners.min(axis=0).round().astype(int), corners.max(axis=0).round().astype(int)
        mask = Image.new("L", (int(right - left) + 1, int(lower - upper) + 1))
        _draw_shape(ImageDraw.Draw(mask), part.shape, corners - (left, upper))
        small = ImageOps.expand(mask.reduce(4), 6).filter(ImageFilter.BoxBlur(4))
        soft = ImageOps.crop(small, 6).resize(mask.size, Resampling.BILINEAR)
        light = 0.6 + 0.45 / 255 * np.asarray(soft, np.float32)[..., None]
        colours = np.asarray(_filled(design, part.fill, *mask.size))
        shaded = Image.fromarray((colours * light).clip(0, 255).astype(np.uint8))
        sprite.paste(shaded, (int(left), int(upper)), mask=mask)
    return sprite.reduce(2)


def _draw_shape(draw: ImageDraw.ImageDraw, shape: str, corners: np.ndarray) -> None:
    """Draw a shape in white."""
    if shape == "blob":
        for _ in range(3):  # cut the corners (Chaikin, 1974)
            following = np.roll(corners, -1, axis=0)
            corners = np.stack([0.75 * corners + 0.25 * following, 0.25 * corners + 0.75 * following], 1).reshape(-1, 2)
    points = [(x, y) for x, y in corners.tolist()]
    if shape in ("poly", "blob"):
        draw.polygon(points, fill=255)
    elif shape == "oval":
        draw.ellipse(points, fill=255)
    elif shape == "hoop":
        draw.ellipse(points, outline=255, width=round(0.06 * FINE))
    else:
        draw.rounded_rectangle(points, radius=0.03 * FINE, fill=255)


def _filled(design: Design, fill: str, width: int, height: int) -> Image.Image:
    """Return a fill (h, w, 3): a colour, or the pattern with the emblem or with the whole print on it."""
    if fill not in ("print", "emblem"):
        return Image.new("RGB", (width, height), design.colour(fill))
    x, y = (np.arange(width) + 0.5) / height, (np.arange(height) + 0.5) / height
    x = x - (width / height - 1) / 2  # the middle of the pattern is in the middle of the picture
    accented = PATTERNS[design.pattern](x[None, :], y[:, None], design.repeats)
    image = Image.fromarray(np.array([design.label, design.accent], np.uint8)[accented.astype(np.intp)])
    draw, size, middle = ImageDraw.Draw(image), min(width, height), width / 2
    if fill == "emblem":
        _draw_emblem(draw, design, (middle, height / 2), 0.34 * size)
    else:
        draw.rectangle((0, height * 0.42, width, height * 0.9), fill=design.label)
        _draw_emblem(draw, design, (middle, height * 0.22), 0.2 * size)
        for text, place, share in ((design.brand, 0.57, 0.3), (design.word, 0.78, 0.17)):
            font = _font(round(min(share * size, 1.5 * width / len(text))))
            draw.text((middle, height * place), text, font=font, anchor="mm", fill=design.ink)
    return image


def _draw_emblem(draw: ImageDraw.ImageDraw, design: Design, at: tuple[float, float], radius: float) -> None:
    """Draw the emblem of a design on a disc."""
    (x, y), clear = at, abs(_brightness(design.accent) - _brightness(design.ink)) > 60
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=design.ink)
    outline = [(x + 0.78 * radius * u, y + 0.78 * radius * v) for u, v in EMBLEMS[design.emblem]]
    draw.polygon(outline, fill=design.accent if clear else design.label)


@cache
def _font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
