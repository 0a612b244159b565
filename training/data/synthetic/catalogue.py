"""Synthetic catalogue: drawn items, photographed in two stores."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from retrieval.errors import InvalidParameter
from retrieval.files import naming, write_file

from .designs import Design, draw_family
from .families import FAMILIES, UNKNOWN, Shape
from .photos import STORES, Studio, turns

COLUMNS = ("path", "item_id", "group", "source", "partition", "role", "name", "variation")
HELD_OUT = 0.2  # share of the families in calibration, and in test
DENSITY = {"train": (0.1, 0.6), "calibration": (0.0, 0.0), "test": (0.6, 0.7)}  # range of the share of siblings
UNKNOWN_ITEMS = 2  # items per unknown family
QUALITY = 88


@dataclass(frozen=True)
class SyntheticItem:
    """An item before it is photographed."""

    item_id: str
    family: str
    partition: str
    design: Design
    variation: float
    views: Sequence[Image.Image]

    @property
    def name(self) -> str:
        """Display name of the item."""
        return f"{self.design.brand} {self.design.flavour} {self.family}"


def make_catalogue(
    directory: str | Path,
    *,
    items: int = 300,
    photos: int = 12,
    size: int = 96,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Draw a catalogue and return the path of its `catalogue.csv`.

    A family (the CSV's `group`) is one shape; its items differ in colours, pattern, emblem and words. Each item has a
    `variation`: some are photographed nearly identically, others in any pose, light and place. Half of an item's
    photos are of store_a (the gallery), half of store_b (the queries). Unknown families are photographed into
    `unknown/` and are not in the CSV: the right answer for them is no match.

    Whole families are in train, calibration or test. **The shift between calibration and test is deliberate**: the
    partition of a shape is random, but two thirds of the items of a test family are siblings of another one (the same
    brand and pattern; an emblem, a word and one or two colours differ), those of a calibration family never are, and
    training families lie in between. A plain threshold that was calibrated on clearly different items therefore
    returns more false matches than promised for look-alikes. With calibration families that represent the test
    families, the effect is smaller.

    Parameters
    ----------
    directory:
        Directory to write to, created if missing. Files of the same names are replaced.
    items, photos, size:
        Number of items; photos per item, half of them per store; side of a photo in pixels.
    seed:
        Seed: the same arguments write the same bytes (with the same versions of Pillow and numpy).

    Raises
    ------
    InvalidParameter
        For fewer than 10 items or 2 photos, an odd number of photos, or a size below 32.
    """
    if items < 10:
        raise InvalidParameter("items", "be at least 10", items)
    if photos < 2 or photos % 2:
        raise InvalidParameter("photos", "be even and at least 2", photos)
    if size < 32:
        raise InvalidParameter("size", "be at least 32 pixels", size)
    directory = Path(directory)
    studio = Studio(size, np.random.default_rng((seed, 0)))
    rows: list[dict[str, str]] = []
    with tqdm(total=items * photos, desc="photographing", unit="photo", disable=not progress) as bar:
        for number, family_items in enumerate(_families(items, seed)):
            for position, item in enumerate(family_items):
                generator = np.random.default_rng((seed, 2, number, position))
                neighbours = [other.views[len(other.views) // 2] for other in family_items if other is not item]
                rows += _photograph(item, neighbours, studio, directory, photos, generator)
                bar.update(photos)
    _photograph_unknown(studio, directory / "unknown", seed)
    return _write_rows(directory / "catalogue.csv", rows)


def _write_rows(path: Path, rows: Sequence[Mapping[str, str]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, COLUMNS)
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue())
    return path


def partition_families(count: int, generator: np.random.Generator) -> dict[str, str]:
    """Return the random partition of each of `count` families."""
    names = list(FAMILIES)
    chosen = [names[i] for i in generator.permutation(len(names))[:count]]
    held_out = max(1, round(count * HELD_OUT))
    parts = ["test"] * held_out + ["calibration"] * held_out
    parts += ["train"] * (count - len(parts))
    return dict(zip(chosen, parts, strict=True))


def _families(items: int, seed: int) -> Iterator[list[SyntheticItem]]:
    """Yield the items of each family."""
    generator = np.random.default_rng((seed, 1))
    count = min(len(FAMILIES), items // 2)
    partitions = partition_families(count, generator)
    for number, (family, partition) in enumerate(partitions.items()):
        size = items // count + (number < items % count)
        density = float(generator.uniform(*DENSITY[partition]))
        yield _draw_items(family, FAMILIES[family], partition, size, density, generator)


def _draw_items(
    family: str, shape: Shape, partition: str, count: int, density: float, generator: np.random.Generator
) -> list[SyntheticItem]:
    drawn = []
    for number, design in enumerate(draw_family(count, density=density, generator=generator)):
        variation = float(generator.uniform(0.05, 1))
        views = shape.render(design, turns(variation))
        item_id = f"{family.replace(' ', '-')}-{number + 1:02d}"
        drawn.append(SyntheticItem(item_id, family, partition, design, variation, views))
    return drawn


def _photograph(
    item: SyntheticItem,
    neighbours: Sequence[Image.Image],
    studio: Studio,
    directory: Path,
    photos: int,
    generator: np.random.Generator,
) -> list[dict[str, str]]:
    """Write the photos of an item and return their rows of the catalogue."""
    folder = directory / "items" / item.item_id
    folder.mkdir(parents=True, exist_ok=True)
    rows = []
    for store in STORES:
        place = studio.visit(generator)
        for number in range(photos // len(STORES)):
            photo = studio.take(
                item.views,
                neighbours,
                place=place,
                variation=item.variation,
                store=store,
                generator=generator,
            )
            path = folder / f"{store.name}_{number + 1}.jpg"
            with naming(path):
                photo.save(path, quality=QUALITY)
            rows.append(_row(item, path.relative_to(directory), store.name, store.role))
    return rows


def _row(item: SyntheticItem, path: Path, source: str, role: str) -> dict[str, str]:
    return {
        "path": path.as_posix(),
        "item_id": item.item_id,
        "group": item.family,
        "source": source,
        "partition": item.partition,
        "role": role,
        "name": item.name,
        "variation": f"{item.variation:.2f}",
    }


def _photograph_unknown(studio: Studio, folder: Path, seed: int) -> None:
    """Write one query photo of each of a few items of unknown families."""
    generator = np.random.default_rng((seed, 3))
    folder.mkdir(parents=True, exist_ok=True)
    for family, shape in UNKNOWN.items():
        for item in _draw_items(family, shape, "", UNKNOWN_ITEMS, 0.0, generator):
            photo = studio.take(
                item.views,
                [],
                place=studio.visit(generator),
                variation=0.4,
                store=STORES[-1],
                generator=generator,
            )
            path = folder / f"{item.item_id}.jpg"
            with naming(path):
                photo.save(path, quality=QUALITY)
