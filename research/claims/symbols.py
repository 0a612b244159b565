"""Drawn symbols in the manner of Omniglot: alphabets of stroke programs, and drawings of each symbol.

An alphabet has a few strokes. A symbol is a program: some of these strokes, each at a place, a size and an angle. A
drawing of a symbol moves the points of its strokes, changes the whole by an affine map, and has its own stroke width.
Symbols differ in how much their drawings vary. Everything follows from a seed.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

from retrieval.errors import InvalidParameter

SIDE = 28  # pixels
SCALE = 2  # drawings are drawn larger and averaged
STROKES, POINTS = 8, 4  # strokes of an alphabet, and control points of each
OF_A_SYMBOL = (2, 4)  # number of strokes of a symbol
WOBBLE = (0.02, 0.06)  # standard deviation of control points, in widths of the drawing
CURVE = np.linspace(0, 1, 12)
BERNSTEIN = np.stack([(1 - CURVE) ** 3, 3 * CURVE * (1 - CURVE) ** 2, 3 * CURVE**2 * (1 - CURVE), CURVE**3], axis=1)

Points = NDArray[np.float64]


@dataclass(frozen=True)
class Symbol:
    """The program of a symbol: the control points of its strokes (s, 4, 2) in the unit square, and its wobble."""

    strokes: Points
    wobble: float


@dataclass(frozen=True)
class Drawings:
    """Drawings of symbols: pixels (n, 28, 28) in [0, 1], 1 is ink, and the symbol of each (n,)."""

    pixels: NDArray[np.float32]
    labels: NDArray[np.int64]


def draw_symbols(symbols: int, drawings: int, *, per_alphabet: int = 25, seed: int = 0) -> Drawings:
    """Return `drawings` drawings of each of `symbols` symbols; the first symbols are the same for any number of them.

    Raises
    ------
    InvalidParameter
        For a number below 1.
    """
    for name, value in (("symbols", symbols), ("drawings", drawings), ("per_alphabet", per_alphabet)):
        if value < 1:
            raise InvalidParameter(name, "be at least 1", value)
    pixels = []
    for number in range(symbols):
        symbol = make_symbol(number, per_alphabet=per_alphabet, seed=seed)
        generator = np.random.default_rng((seed, 2, number))
        pixels += [draw(symbol, generator) for _ in range(drawings)]
    return Drawings(np.stack(pixels), np.repeat(np.arange(symbols), drawings))


def make_symbol(number: int, *, per_alphabet: int = 25, seed: int = 0) -> Symbol:
    """Return the symbol of a number: strokes of its alphabet, placed at random."""
    alphabet = number // per_alphabet
    stock = np.random.default_rng((seed, 0, alphabet)).uniform(-0.5, 0.5, size=(STROKES, POINTS, 2))
    generator = np.random.default_rng((seed, 1, number))
    count = int(generator.integers(OF_A_SYMBOL[0], OF_A_SYMBOL[1] + 1))
    strokes = []
    for stroke in generator.permutation(STROKES)[:count]:
        size, angle = generator.uniform(0.4, 0.9), generator.choice(4) * np.pi / 2
        placed = stock[stroke] @ _turn(angle).T * size + generator.uniform(0.3, 0.7, size=2)
        strokes.append(placed)
    low, high = np.log(WOBBLE)
    return Symbol(np.stack(strokes), float(np.exp(generator.uniform(low, high))))


def draw(symbol: Symbol, generator: np.random.Generator) -> NDArray[np.float32]:
    """Return a drawing (28, 28) of a symbol."""
    wobbled = symbol.strokes + generator.normal(0, symbol.wobble, size=symbol.strokes.shape)
    wobbled += generator.normal(0, symbol.wobble / 2, size=(len(wobbled), 1, 2))  # of a whole stroke
    shear = np.eye(2) + generator.normal(0, 0.08, size=(2, 2))
    turned = (wobbled - 0.5) @ (_turn(generator.normal(0, 0.12)) @ shear).T
    placed = turned * generator.uniform(0.75, 0.95) + 0.5 + generator.normal(0, 0.03, size=2)
    side = SIDE * SCALE
    sheet = Image.new("L", (side, side))
    pen, width = ImageDraw.Draw(sheet), round(SCALE * generator.uniform(1.2, 2.6))
    for stroke in BERNSTEIN @ placed * side:
        pen.line([tuple(point) for point in stroke.tolist()], fill=255, width=width, joint="curve")
    fine = np.asarray(sheet, np.float32).reshape(SIDE, SCALE, SIDE, SCALE)
    return np.asarray(fine.mean(axis=(1, 3)) / np.float32(255))


def _turn(angle: float) -> Points:
    """Return the rotation (2, 2) by an angle in radians."""
    return np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
