"""Designs that distinguish the items of a family: colours, pattern, emblem and words, and their flat drawings.

Shapes: w, h = pixels of an artwork; every image is uint8 (h, w, 3).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageDraw, ImageFont

Colour = tuple[int, int, int]
Points = list[tuple[float, float]]

BRANDS = (
    "Nova", "Lumo", "Tavi", "Orka", "Bruno", "Mira", "Zest", "Alba", "Fjord", "Kiko", "Pax", "Vela", "Juno",
    "Rondo", "Silo", "Tango", "Umbra", "Wilma", "Yuzu", "Echo", "Dune", "Helio", "Iris", "Opal",
)  # fmt: skip
FLAVOURS = (
    "classic", "zero", "citrus", "berry", "mint", "dark", "gold", "sport", "bio", "night", "soft", "extra",
    "honey", "peach", "wild", "ice",
)  # fmt: skip
PALETTE: tuple[Colour, ...] = (
    (28, 46, 88), (38, 84, 160), (94, 160, 214), (170, 208, 228), (20, 110, 116), (72, 176, 166),
    (172, 220, 200), (30, 84, 56), (92, 150, 74), (170, 196, 90), (104, 108, 52), (226, 178, 52),
    (246, 216, 120), (236, 140, 50), (208, 92, 48), (178, 40, 44), (226, 92, 92), (240, 170, 160),
    (206, 60, 110), (112, 44, 88), (146, 104, 168), (204, 184, 222), (92, 58, 40), (168, 122, 80),
    (222, 200, 164), (250, 246, 232), (236, 236, 238), (150, 154, 160), (70, 76, 84), (34, 32, 36),
)  # fmt: skip
COLOURED = ("accent", "cap", "label")  # the colours in which siblings differ
LAYOUTS = ("band", "oval", "badge", "bare")

# Where a pattern is in its accent colour, for x across and y down in [0, 1] and a number of repeats n.
PATTERNS: Mapping[str, Callable[[np.ndarray, np.ndarray, int], np.ndarray]] = {
    "plain": lambda x, y, n: (y > 0.9) & (x >= 0) & (n > 0),
    "stripes": lambda x, y, n: ((x * n) % 1 < 0.45) & (y >= 0),
    "rings": lambda x, y, n: ((y * n) % 1 < 0.4) & (x >= 0),
    "diagonal": lambda x, y, n: ((x + y) * n) % 1 < 0.45,
    "dots": lambda x, y, n: ((x * n) % 1 - 0.5) ** 2 + ((y * n) % 1 - 0.5) ** 2 < 0.09,
    "checks": lambda x, y, n: ((x * n) % 1 < 0.5) ^ ((y * n) % 1 < 0.5),
    "chevrons": lambda x, y, n: ((y + np.abs((x * n) % 1 - 0.5)) * n) % 1 < 0.45,
    "waves": lambda x, y, n: ((y + 0.05 * np.sin(2 * np.pi * n * x)) * n) % 1 < 0.45,
    "rays": lambda x, y, n: (np.arctan2(y - 0.5, x - 0.5) / np.pi * 2 * n) % 1 < 0.45,
    "split": lambda x, y, n: y > 0.35 + 0.1 * n * (x - 0.5) ** 2,
    "diamonds": lambda x, y, n: np.abs((x * n) % 1 - 0.5) + np.abs((y * n) % 1 - 0.5) < 0.3,
}


@dataclass(frozen=True)
class Design:
    """Print and colours of an item."""

    body: Colour
    label: Colour
    accent: Colour
    cap: Colour
    pattern: str
    repeats: int
    layout: str
    emblem: str
    brand: str
    flavour: str

    @property
    def ink(self) -> Colour:
        """Colour of the text on the label."""
        return ink_on(self.label)


def luminance(colour: Colour) -> float:
    """Return the perceived brightness of a colour, 0 to 255."""
    return 0.3 * colour[0] + 0.59 * colour[1] + 0.11 * colour[2]


def ink_on(paper: Colour) -> Colour:
    """Return black or white, whichever has the higher contrast."""
    return (35, 30, 35) if luminance(paper) > 120 else (250, 248, 240)


def draw_colour(generator: np.random.Generator, *, apart: Sequence[Colour] = ()) -> Colour:
    """Return a slightly changed colour of the palette that differs clearly from each colour of `apart`."""
    while True:
        colour = _moved(PALETTE[int(generator.integers(len(PALETTE)))], generator)
        if all(sum(abs(one - other) for one, other in zip(colour, known, strict=True)) > 150 for known in apart):
            return colour


def _moved(colour: Colour, generator: np.random.Generator) -> Colour:
    red, green, blue = np.clip(np.add(colour, generator.integers(-14, 15, 3)), 0, 255).tolist()
    return (red, green, blue)


def draw_design(generator: np.random.Generator, *, body: Colour) -> Design:
    """Return a new design for the colour of a body."""
    label = draw_colour(generator, apart=[body])
    return Design(
        body=body,
        label=label,
        accent=draw_colour(generator, apart=[body, label]),
        cap=draw_colour(generator, apart=[body]),
        pattern=str(generator.choice(list(PATTERNS))),
        repeats=int(generator.integers(2, 6)),
        layout=str(generator.choice(LAYOUTS)),
        emblem=str(generator.choice(list(EMBLEMS))),
        brand=str(generator.choice(BRANDS)),
        flavour=str(generator.choice(FLAVOURS)),
    )


def draw_sibling(design: Design, generator: np.random.Generator) -> Design:
    """Return a design of the same brand with another word, emblem and one or two colours."""
    others = [getattr(design, name) for name in ("body", *COLOURED)]
    changed: dict[str, Any] = {
        "flavour": str(generator.choice([f for f in FLAVOURS if f != design.flavour])),
        "emblem": str(generator.choice([e for e in EMBLEMS if e != design.emblem])),
    }
    for part in generator.choice(COLOURED, int(generator.integers(1, 3)), replace=False).tolist():
        changed[part] = draw_colour(generator, apart=others)
    return dataclasses.replace(design, **changed)


def draw_line(count: int, generator: np.random.Generator) -> list[Design]:
    """Return a new design and its siblings, `count` different designs in all."""
    body = _moved(PALETTE[int(generator.integers(len(PALETTE)))], generator)
    designs = [draw_design(generator, body=body)]
    while len(designs) < count:
        sibling = draw_sibling(designs[0], generator)
        if sibling not in designs:
            designs.append(sibling)
    return designs


def pattern_image(design: Design, width: int, height: int) -> np.ndarray:
    """Return the pattern (height, width, 3)."""
    x, y = (np.arange(width) + 0.5) / height, (np.arange(height) + 0.5) / height
    x = x - (width / height - 1) / 2  # the middle of the pattern in the middle of the picture
    mask = PATTERNS[design.pattern](x[None, :], y[:, None], design.repeats)
    return np.array([design.label, design.accent], np.uint8)[mask.astype(np.intp)]


def crest(design: Design, width: int, height: int) -> Image.Image:
    """Return the pattern (height, width) with the emblem in the middle."""
    image = Image.fromarray(pattern_image(design, width, height))
    emblem(ImageDraw.Draw(image), design, (width / 2, height / 2), min(width, height) * 0.34)
    return image


def artwork(design: Design, width: int, height: int, *, front: float = 1.0) -> Image.Image:
    """Return a printed label (height, width), with words and emblem in the middle share `front`."""
    image = Image.fromarray(pattern_image(design, width, height))
    draw = ImageDraw.Draw(image)
    across, middle = width * front, width / 2
    size = min(across, height)
    box = (middle - across * 0.46, height * 0.3, middle + across * 0.46, height * 0.84)
    if design.layout == "band":
        draw.rectangle((0, height * 0.34, width, height * 0.8), fill=design.label)
        draw.rectangle((0, height * 0.34, width, height * 0.37), fill=design.accent)
        draw.rectangle((0, height * 0.77, width, height * 0.8), fill=design.accent)
    elif design.layout == "oval":
        draw.ellipse(box, fill=design.label, outline=design.ink, width=max(1, round(size * 0.02)))
    elif design.layout == "badge":
        draw.rounded_rectangle(box, radius=size * 0.1, fill=design.body, outline=design.label, width=3)
    emblem(draw, design, (middle, height * 0.2), size * 0.19)
    paper = design.body if design.layout == "badge" else design.label
    ink = ink_on(paper)
    write(draw, design.brand, (middle, height * 0.53), size * 0.3, across * 0.84, ink, paper)
    write(draw, design.flavour, (middle, height * 0.7), size * 0.14, across * 0.6, ink, paper)
    return image


def write(
    draw: ImageDraw.ImageDraw, text: str, at: tuple[float, float], size: float, width: float, ink: Colour, halo: Colour
) -> None:
    """Draw a word centred at a point, at most `width` wide, in Pillow's default font."""
    size = min(size, 1.7 * width / max(1, len(text)))
    font = ImageFont.load_default(max(6, round(size)))
    draw.text(at, text, font=font, anchor="mm", fill=ink, stroke_width=size * 0.12, stroke_fill=halo)


def emblem(draw: ImageDraw.ImageDraw, design: Design, at: tuple[float, float], radius: float) -> None:
    """Draw the design's emblem on a disc around a point."""
    x, y = at
    draw.ellipse((x - radius, y - radius, x + radius, y + radius), fill=design.ink)
    outline = [(x + 0.78 * radius * u, y + 0.78 * radius * v) for u, v in EMBLEMS[design.emblem]]
    inside = design.accent if abs(luminance(design.accent) - luminance(design.ink)) > 60 else design.label
    draw.polygon(outline, fill=inside)


def _polar(radius: Callable[[float], float], steps: int = 48) -> Points:
    angles = np.arange(steps) * 2 * np.pi / steps
    return [(radius(a) * float(np.sin(a)), -radius(a) * float(np.cos(a))) for a in angles.tolist()]


EMBLEMS: Mapping[str, Points] = {
    "star": _polar(lambda a: 0.42 if round(a * 5 / np.pi) % 2 else 1.0, steps=10),
    "flower": _polar(lambda a: 0.7 + 0.3 * float(np.cos(5 * a))),
    "drop": _polar(lambda a: 0.62 + 0.38 * max(0.0, float(np.cos(a))) ** 6),
    "leaf": [(0, -1), (0.6, -0.4), (0.6, 0.3), (0, 1), (-0.6, 0.3), (-0.6, -0.4)],
    "bolt": [(0.2, -1), (-0.6, 0.15), (-0.05, 0.15), (-0.3, 1), (0.6, -0.25), (0.05, -0.25)],
    "crown": [(-0.9, -0.5), (-0.4, 0), (0, -0.8), (0.4, 0), (0.9, -0.5), (0.7, 0.7), (-0.7, 0.7)],
    "peak": [(-1, 0.7), (-0.3, -0.6), (0.05, -0.05), (0.3, -0.4), (1, 0.7)],
    "heart": [
        (0.058 * 16 * np.sin(a) ** 3, -0.058 * (13 * np.cos(a) - 5 * np.cos(2 * a) - 2 * np.cos(3 * a)))
        for a in np.arange(32) * np.pi / 16
    ],
    "fish": [(-1, -0.5), (-0.5, -0.1), (0.2, -0.55), (1, 0), (0.2, 0.55), (-0.5, 0.1), (-1, 0.5)],
    "moon": _polar(lambda a: 0.95 if np.sin(a) < 0.35 else 0.35),
    "cross": [(-0.3, -0.9), (0.3, -0.9), (0.3, -0.3), (0.9, -0.3), (0.9, 0.3), (0.3, 0.3), (0.3, 0.9),
              (-0.3, 0.9), (-0.3, 0.3), (-0.9, 0.3), (-0.9, -0.3), (-0.3, -0.3)],
    "ring": _polar(lambda a: 0.8 if int(a * 6 / np.pi) % 2 else 0.55),
}  # fmt: skip
