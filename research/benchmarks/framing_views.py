"""Views of a photo as people take and send them: smaller in the frame, on a ground, as a screenshot, cut off.

Every view is drawn from the photo alone, with a generator that the photo's id seeds.
"""

from __future__ import annotations

import hashlib
import io
from collections.abc import Callable, Mapping
from typing import TypeVar

import numpy as np
from PIL import Image, ImageDraw, ImageEnhance, ImageFilter

AS_IT_IS = "as it is"
HALF, THIRD, CORNER = 0.5, 0.35, 0.6  # of the side
BLUR, DARK = 0.015, 0.35  # standard deviation as a share of the shorter side, and share of the brightness
JITTER = 0.1  # of the frame, to each side
PLAIN_GROUNDS = ((255, 255, 255), (238, 238, 236), (128, 128, 128), (200, 200, 204))
SHADED_GROUNDS = ((112, 84, 60), (196, 176, 150), (235, 232, 226), (150, 128, 104))  # wood, beige, a white table
PAGES = (((255, 255, 255), (40, 40, 44)), ((250, 250, 250), (90, 90, 96)), ((18, 18, 20), (210, 210, 214)))

Clutter = Callable[[np.random.Generator], Image.Image]
T = TypeVar("T")
View = Callable[[Image.Image, np.random.Generator], Image.Image]


def generator_of(name: str) -> np.random.Generator:
    """Return a generator that a name seeds."""
    return np.random.default_rng(int.from_bytes(hashlib.sha256(name.encode()).digest()[:8]))


def placed(photo: Image.Image, frame: Image.Image, generator: np.random.Generator) -> tuple[int, int]:
    """Return a place for a photo near the centre of a frame: its left and upper side."""
    shift = generator.uniform(-JITTER, JITTER, 2) * frame.size
    free = np.subtract(frame.size, photo.size)
    left, upper = np.clip(free / 2 + shift, 0, free).round().astype(int).tolist()
    return left, upper


def on_plain(photo: Image.Image, generator: np.random.Generator, *, share: float) -> Image.Image:
    """Return a photo that spans a share of the side of an even ground."""
    return pasted(photo, Image.new("RGB", _frame(photo, share), choice(PLAIN_GROUNDS, generator)), generator)


def on_clutter(photo: Image.Image, generator: np.random.Generator, *, share: float, clutter: Clutter) -> Image.Image:
    """Return a photo that spans a share of the side of another photo."""
    return pasted(photo, clutter(generator).resize(_frame(photo, share), Image.Resampling.BILINEAR), generator)


def on_shaded(photo: Image.Image, generator: np.random.Generator, *, share: float) -> Image.Image:
    """Return a photo on a surface on which light falls off, with grain and the photo's shadow."""
    width, height = _frame(photo, share)
    y, x = np.mgrid[0:height, 0:width] / max(width, height) - 0.5
    angle, fall = generator.uniform(0, 2 * np.pi), generator.uniform(0.15, 0.45)
    light = 1 + fall * (np.cos(angle) * x + np.sin(angle) * y) - 0.3 * fall * (x * x + y * y)
    ground = np.array(choice(SHADED_GROUNDS, generator)) * light[..., None]
    ground += generator.normal(0, 3, (height, width, 1))
    frame = Image.fromarray(ground.clip(0, 255).astype(np.uint8))
    left, upper = placed(photo, frame, generator)
    shadow, reach = Image.new("L", frame.size, 0), round(0.03 * max(frame.size))
    box = left + reach, upper + reach, left + photo.width + reach, upper + photo.height + reach
    ImageDraw.Draw(shadow).rectangle(box, fill=110)
    frame.paste((20, 18, 16), mask=shadow.filter(ImageFilter.GaussianBlur(reach)))
    frame.paste(photo, (left, upper))
    return frame


def screenshot(photo: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return a photo in a page of a telephone: a bar, the photo over most of the width, and lines of text."""
    page, ink = choice(PAGES, generator)
    width = round(photo.width * generator.uniform(1.04, 1.25))
    height = round(width * generator.uniform(1.8, 2.1))
    frame = Image.new("RGB", (width, height), page)
    upper = round(height * generator.uniform(0.12, 0.28))
    draw, line = ImageDraw.Draw(frame), max(4, height // 60)
    _text(draw, (width, line, round(1.8 * line)), ink, generator, lines=1)
    _text(draw, (width, round(0.5 * upper), upper - 2 * line), ink, generator, lines=2)
    frame.paste(photo, ((width - photo.width) // 2, upper))
    _text(draw, (width, upper + photo.height + 2 * line, height - 4 * line), ink, generator, lines=7)
    button = round(0.3 * width), height - 3 * line, round(0.7 * width), height - line
    draw.rounded_rectangle(button, radius=line, fill=(52, 120, 246))
    return frame


def _text(
    draw: ImageDraw.ImageDraw,
    place: tuple[int, int, int],
    ink: tuple[int, int, int],
    generator: np.random.Generator,
    *,
    lines: int,
) -> None:
    """Draw lines of words from a height to another one."""
    width, upper, lower = place
    line = max(2, (lower - upper) // (3 * lines))
    for number in range(lines):
        x, y = 0.06 * width, upper + number * (lower - upper) // lines
        end = width * generator.uniform(0.4, 0.92)
        while x < end:
            word = width * generator.uniform(0.04, 0.14)
            draw.rectangle((round(x), y, round(min(x + word, end)), y + line), fill=ink)
            x += word + 0.02 * width


def corner(photo: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return a corner of a photo."""
    width, height = (round(CORNER * side) for side in photo.size)
    left, upper = (
        int(generator.integers(2)) * (photo.width - width),
        int(generator.integers(2)) * (photo.height - height),
    )
    return photo.crop((left, upper, left + width, upper + height))


def as_jpeg(photo: Image.Image, *, quality: int) -> Image.Image:
    """Return a photo after it was encoded as JPEG."""
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def views(clutter: Clutter) -> Mapping[str, View]:
    """Return the views by name; `clutter` draws photos of other things."""
    return {
        AS_IT_IS: lambda photo, _: photo,
        "half, plain": lambda photo, generator: on_plain(photo, generator, share=HALF),
        "half, shaded": lambda photo, generator: on_shaded(photo, generator, share=HALF),
        "half, clutter": lambda photo, generator: on_clutter(photo, generator, share=HALF, clutter=clutter),
        "a third, plain": lambda photo, generator: on_plain(photo, generator, share=THIRD),
        "a third, clutter": lambda photo, generator: on_clutter(photo, generator, share=THIRD, clutter=clutter),
        "screenshot": screenshot,
        "corner": corner,
        "turned a quarter": lambda photo, _: photo.transpose(Image.Transpose.ROTATE_90),
        "blurred": lambda photo, _: photo.filter(ImageFilter.GaussianBlur(BLUR * min(photo.size))),
        "dark": lambda photo, _: ImageEnhance.Brightness(photo).enhance(DARK),
        "grey": lambda photo, _: photo.convert("L").convert("RGB"),
        "JPEG, quality 10": lambda photo, _: as_jpeg(photo, quality=10),
    }


def _frame(photo: Image.Image, share: float) -> tuple[int, int]:
    width, height = (round(side / share) for side in photo.size)
    return width, height


def pasted(photo: Image.Image, frame: Image.Image, generator: np.random.Generator) -> Image.Image:
    """Return a frame with a photo near its centre."""
    frame.paste(photo, placed(photo, frame, generator))
    return frame


def choice(values: tuple[T, ...], generator: np.random.Generator) -> T:
    """Return one of some values."""
    return values[int(generator.integers(len(values)))]
