"""Photos of several items of the tiny world."""

from __future__ import annotations

from PIL import Image

from ...world import SIDE, draw

WIDTH = 100
PLACES = ((0, 0), (60, 0), (0, 60), (60, 60))  # where windows of scale 0.4 lie


def box_of(place: int) -> tuple[float, float, float, float]:
    left, upper = PLACES[place]
    return left, upper, left + SIDE, upper + SIDE


def scene(*items: int, number: int = 9) -> Image.Image:
    """Return a photo with up to four items."""
    picture = Image.new("RGB", (WIDTH, WIDTH), "white")
    for place, item in enumerate(items):
        picture.paste(draw(item, number), PLACES[place])
    return picture
