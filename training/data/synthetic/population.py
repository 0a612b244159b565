"""Population that catalogue items and unknown items are drawn from.

A *line* is a design with its variants: items of one shape and brand that differ in an emblem, a word and one or two
colours. The shape (family), the design and the size of each line are drawn independently.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from PIL import Image

from .designs import Design, draw_line, draw_sibling
from .families import FAMILIES, Shape
from .photos import turns

LINE_SIZES = (0.75, 0.15, 0.07, 0.03)  # shares of the lines with 1, 2, 3 and 4 items
TRAINED, CALIBRATED = 0.4, 0.5  # shares of the catalogue's items for training and for calibration; the others are test
UNKNOWN_SHARE = 2 / 3  # number of unknown items relative to the catalogue's items
LETTERS = "abcd"


class Views(Sequence[Image.Image]):
    """Sprites of a design from several angles, rendered when they are first used."""

    def __init__(self, shape: Shape, design: Design, yaws: Sequence[float]) -> None:
        self._shape, self._design, self._yaws = shape, design, yaws
        self._rendered: dict[float, Image.Image] = {}

    def __len__(self) -> int:
        return len(self._yaws)

    def __getitem__(self, number: int) -> Image.Image:  # type: ignore[override]
        yaw = self._yaws[number] if self._shape.turns else 0.0
        if yaw not in self._rendered:
            self._rendered[yaw] = self._shape.render(self._design, [yaw])[0]
        return self._rendered[yaw]


@dataclass(frozen=True)
class SyntheticItem:
    """An item before it is photographed."""

    item_id: str
    line: str
    family: str
    shape: Shape
    design: Design
    variation: float

    @property
    def name(self) -> str:
        """Display name of the item."""
        return f"{self.design.brand} {self.design.flavour} {self.family}"

    @cached_property
    def views(self) -> Views:
        """Sprites of the item."""
        return Views(self.shape, self.design, turns(self.variation))


@dataclass(frozen=True)
class Population:
    """Items of the catalogue by partition, and items that it lacks: of new lines, and of its own."""

    partitions: dict[str, list[SyntheticItem]]  # train, calibration, test
    unknown: list[SyntheticItem]

    @property
    def catalogue(self) -> list[tuple[str, SyntheticItem]]:
        """Items of the catalogue with their partition."""
        return [(part, item) for part, items in self.partitions.items() for item in items]


def draw_population(items: int, generator: np.random.Generator) -> Population:
    """Draw a catalogue of `items` items, and the unknown items.

    The catalogue is a random part of the items of all lines. Training uses whole lines. Items outside the catalogue are
    unknown items, except those of training lines. Those of new lines are therefore exchangeable with all catalogue
    items that the model is not fitted on, including validation items, once the other items of their line are left out.
    """
    lines = _lines(generator)
    trained = round(items * TRAINED)
    count, unknown = items - trained, round(items * UNKNOWN_SHARE)
    train, _ = _divide(_take(lines, round(trained * (count + unknown) / count)), trained, generator)
    known, others = _divide(_take(lines, count + unknown), count, generator)
    border = _line_end(known, round(items * CALIBRATED))
    return Population({"train": train, "calibration": known[:border], "test": known[border:]}, others)


def _divide(
    items: Sequence[SyntheticItem], count: int, generator: np.random.Generator
) -> tuple[list[SyntheticItem], list[SyntheticItem]]:
    """Return `count` random items, and the others, both in order."""
    chosen = set(generator.permutation(len(items))[:count].tolist())
    parts: tuple[list[SyntheticItem], list[SyntheticItem]] = ([], [])
    for number, item in enumerate(items):
        parts[number not in chosen].append(item)
    return parts


def draw_siblings(known: Sequence[SyntheticItem], count: int, generator: np.random.Generator) -> list[SyntheticItem]:
    """Return new variants of `count` different items."""
    taken = {(item.line, item.design) for item in known}
    siblings = []
    for number in generator.permutation(len(known))[:count].tolist():
        item, design = known[number], known[number].design
        while (item.line, design) in taken:
            design = draw_sibling(item.design, generator)
        taken.add((item.line, design))
        variation = _draw_variation(generator)
        siblings.append(SyntheticItem(f"{item.item_id}x", item.line, item.family, item.shape, design, variation))
    return siblings


def draw_item(family: str, shape: Shape, number: int, generator: np.random.Generator) -> SyntheticItem:
    """Return an item of a shape, in a line of its own."""
    return _draw_line(family, shape, number, 1, generator)[0]


def _lines(generator: np.random.Generator) -> Iterator[list[SyntheticItem]]:
    """Yield lines, one at a time."""
    names, counts = list(FAMILIES), dict.fromkeys(FAMILIES, 0)
    while True:
        family = names[int(generator.integers(len(names)))]
        size = 1 + int(generator.choice(len(LINE_SIZES), p=LINE_SIZES))
        yield _draw_line(family, FAMILIES[family], counts[family], size, generator)
        counts[family] += 1


def _draw_line(
    family: str, shape: Shape, number: int, size: int, generator: np.random.Generator
) -> list[SyntheticItem]:
    line = f"{family.replace(' ', '-')}-{number + 1:02d}"
    return [
        SyntheticItem(line + letter, line, family, shape, design, _draw_variation(generator))
        for letter, design in zip(LETTERS, draw_line(size, generator), strict=False)
    ]


def _take(lines: Iterator[list[SyntheticItem]], count: int) -> list[SyntheticItem]:
    """Return the items of the next lines, cut off at `count`."""
    found: list[SyntheticItem] = []
    while len(found) < count:
        found += next(lines)
    return found[:count]


def _line_end(items: Sequence[SyntheticItem], place: int) -> int:
    """Return the first place from `place` on where another line begins."""
    while 0 < place < len(items) and items[place].line == items[place - 1].line:
        place += 1
    return place


def _draw_variation(generator: np.random.Generator) -> float:
    return float(generator.uniform(0.12, 1))
