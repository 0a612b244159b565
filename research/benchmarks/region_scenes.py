"""Photos composed of several items on backgrounds, with the box of each item."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from retrieval.catalogue.photos import Photo
from retrieval.catalogue.read import read_catalogue
from retrieval.regions.boxes import BBox
from training.data.synthetic import make_catalogue

WIDTH, HEIGHT = 480, 360
GRIDS = {1: (1, 1), 2: (2, 1), 3: (2, 2), 4: (2, 2)}  # cells across and down, by the number of items
SHARES = (0.6, 0.95)  # of the longer side of an item in the shorter side of its cell
MOST_ITEMS = 4
DRAWN_ITEMS = 100


@dataclass(frozen=True)
class Scene:
    """A composed photo, and the box of each of its items."""

    path: Path
    boxes: Mapping[str, BBox]

    def photos(self) -> Iterator[Photo]:
        """Yield a photo for each item, with its box."""
        for item, bbox in self.boxes.items():
            yield Photo(f"{self.path.name} {item}", self.path, item, bbox=bbox)


@dataclass(frozen=True)
class Source:
    """Photos for galleries, photos of the same items to compose, and backgrounds."""

    name: str
    shown: Sequence[Photo]
    pasted: Sequence[Photo]
    backgrounds: Sequence[Path]

    @property
    def items(self) -> list[str]:
        """The items, sorted."""
        return sorted({photo.item_id for photo in self.shown})


def sources(data: Path, output: Path) -> Iterator[Source]:
    """Yield the drawn catalogue and the covers."""
    drawn = output / "drawn"
    if not (drawn / "queries.csv").exists():
        make_catalogue(drawn, items=DRAWN_ITEMS, photos=8, size=160, seed=20)
    catalogue = read_catalogue(drawn / "catalogue.csv")
    places = [p.path for p in read_catalogue(drawn / "queries.csv") if p.metadata["kind"] == "place"]
    yield Source(
        "drawn catalogue",
        [photo for photo in catalogue if photo.source == "store_a"],
        [photo for photo in catalogue if photo.source == "store_b"],
        places,
    )
    covers = read_catalogue(data / "covers" / "covers.csv")
    birds, grocery = (read_catalogue(data / name / f"{name}.csv") for name in ("birds", "grocery"))
    behind = [*birds[::12], *(photo for photo in grocery[::20] if photo.source != "iconic")]
    yield Source(
        "covers",
        [photo for photo in covers if photo.role == "gallery"],
        [photo for photo in covers if photo.role == "query"],
        [photo.path for photo in behind],
    )


def compose(source: Source, items: Sequence[str], count: int, folder: Path, seed: int) -> list[Scene]:
    """Return `count` scenes of 1 to 4 of the items, written to a folder unless they are there."""
    photos = {item: [photo.path for photo in source.pasted if photo.item_id == item] for item in items}
    folder.mkdir(parents=True, exist_ok=True)
    scenes = []
    for number in range(count):
        generator = np.random.default_rng((seed, number))
        chosen = generator.choice(np.array(items), 1 + number % MOST_ITEMS, replace=False).tolist()
        background = source.backgrounds[int(generator.integers(len(source.backgrounds)))]
        picture = Image.open(background).convert("RGB").resize((WIDTH, HEIGHT), Image.Resampling.BICUBIC)
        boxes = {}
        cells = generator.permutation(len(chosen) if len(chosen) < 3 else MOST_ITEMS).tolist()
        for item, cell in zip(chosen, cells, strict=False):
            file = photos[item][int(generator.integers(len(photos[item])))]
            boxes[item] = _paste(picture, Image.open(file).convert("RGB"), GRIDS[len(chosen)], cell, generator)
        path = folder / f"{number}.png"
        if not path.exists():
            aside = path.with_suffix(".partial.png")
            picture.save(aside)
            aside.replace(path)  # an interrupted benchmark leaves no half a picture
        scenes.append(Scene(path, boxes))
    return scenes


def _paste(
    picture: Image.Image, photo: Image.Image, grid: tuple[int, int], cell: int, generator: np.random.Generator
) -> BBox:
    """Paste a photo at a random size and place in a cell of a grid, and return its box."""
    width, height = WIDTH // grid[0], HEIGHT // grid[1]
    scale = generator.uniform(*SHARES) * min(width, height) / max(photo.size)
    small = photo.resize((round(photo.width * scale), round(photo.height * scale)), Image.Resampling.BICUBIC)
    left = cell % grid[0] * width + int(generator.integers(width - small.width + 1))
    upper = cell // grid[0] * height + int(generator.integers(height - small.height + 1))
    picture.paste(small, (left, upper))
    return left, upper, left + small.width, upper + small.height
