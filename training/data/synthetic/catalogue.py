"""Synthetic catalogue: drawn items, photographed in two stores, and queries to search it with."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from retrieval.errors import InvalidParameter
from retrieval.files import naming, write_file

from .photos import EMPTY, STORES, Studio
from .population import Population, SyntheticItem, draw_population
from .queries import COLUMNS as QUERY_COLUMNS
from .queries import KNOWN, OTHER_SHARE, Query, Shelf, empty_scenes, other_queries, sibling_queries, unknown_queries

COLUMNS = ("path", "item_id", "group", "source", "partition", "role", "name", "family", "variation")
QUALITY = 88
CATALOGUE, QUERIES, TRAINING = "catalogue.csv", "queries.csv", "training.csv"  # in the directory


def make_catalogue(
    directory: str | Path,
    *,
    items: int = 420,
    photos: int = 8,
    size: int = 224,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Draw a catalogue and its queries, and return the path of its `catalogue.csv`.

    Some items are photographed nearly identically, others in any pose, light and place (`variation`). A quarter of
    the designs has variants with the same `group`, which differ in an emblem, a word and one or two colours. Half of
    an item's photos are of store_a (the gallery), half of store_b. All items come from one population.

    `queries.csv` lists new photos of store_b in random order, with their `kind`: one of each catalogue item ("known"),
    two of each of new items of the same population ("unknown"), one or two of new variants of catalogue items
    ("sibling"), and photos of other things ("object", "place", "blank", "noise"). Only queries of the kind "known"
    have a right match.

    `training.csv` has the catalogue and photos without an item: places, single colours and random pixels, as items that
    no gallery gets, so that a model learns to keep such photos away from the others.

    Parameters
    ----------
    directory:
        Created if missing. Files of the same names are replaced.
    items, photos, size:
        Number of items; photos per item, half of them per store; side of a photo in pixels.
    seed:
        Seed: the same arguments write the same bytes (with the same versions of Pillow and numpy).

    Raises
    ------
    InvalidParameter
        For fewer than 10 items or 2 photos, an odd number of photos, or a size below 32.
    """
    _check(items, photos, size)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)  # before the drawing, which takes minutes
    shelf = Shelf(Studio(size, np.random.default_rng((seed, 0))), np.random.default_rng((seed, 1)))
    population = draw_population(items, np.random.default_rng((seed, 2)))
    rows: list[dict[str, str]] = []
    queries: list[Query] = []
    with tqdm(desc="photographing", unit="photo", disable=not progress) as bar:
        for number, (partition, item) in enumerate(population.catalogue):
            generator = np.random.default_rng((seed, 3, number))
            found, query = _photograph(item, partition, shelf, directory, photos, generator)
            rows += found
            queries.append(query)
            bar.update(photos + 1)
        for query in _without_match(population, shelf, seed):
            queries.append(query)
            bar.update()
    order = np.random.default_rng((seed, 4)).permutation(len(queries)).tolist()
    _write_rows(directory / QUERIES, QUERY_COLUMNS, _write_queries([queries[i] for i in order], directory))
    _write_rows(directory / TRAINING, COLUMNS, [*rows, *_write_scenes(shelf.studio, directory, seed)])
    return _write_rows(directory / CATALOGUE, COLUMNS, rows)


def _without_match(population: Population, shelf: Shelf, seed: int) -> Iterator[Query]:
    """Yield the queries that no item of the catalogue matches."""
    known = [item for _, item in population.catalogue]
    yield from unknown_queries(population.unknown, {item.line for item in known}, shelf, seed)
    yield from sibling_queries(known, shelf, seed)
    yield from other_queries(max(1, round(OTHER_SHARE * len(known))), shelf, seed)


def _check(items: int, photos: int, size: int) -> None:
    if items < 10:
        raise InvalidParameter("items", "be at least 10", items)
    if photos < 2 or photos % 2:
        raise InvalidParameter("photos", "be even and at least 2", photos)
    if size < 32:
        raise InvalidParameter("size", "be at least 32 pixels", size)


def _write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns)
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue())
    return path


def _photograph(
    item: SyntheticItem, partition: str, shelf: Shelf, directory: Path, photos: int, generator: np.random.Generator
) -> tuple[list[dict[str, str]], Query]:
    """Write the photos of an item; return their rows of the catalogue, and a query with one more photo of it."""
    rows = []
    for store in STORES:
        *taken, spare = shelf.photograph(item, store, photos // len(STORES) + 1, generator)
        for number, photo in enumerate(taken):
            path = directory / "items" / item.item_id / f"{store.name}_{number + 1}.jpg"
            _write_photo(photo, path)
            values = (item.item_id, item.line, store.name, partition, store.role, item.name, item.family)
            cells = (path.relative_to(directory).as_posix(), *values, f"{item.variation:.2f}")
            rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows, Query.of(spare, item, KNOWN)


def _write_queries(queries: Sequence[Query], directory: Path) -> list[dict[str, str]]:
    """Write the photos of queries, numbered in order, and return their rows."""
    rows = []
    for number, query in enumerate(queries):
        path = directory / "queries" / f"{number + 1:04d}.jpg"
        _write_photo(query.photo, path)
        cells = (path.relative_to(directory).as_posix(), query.item_id, query.group, query.kind, query.name)
        rows.append(dict(zip(QUERY_COLUMNS, cells, strict=True)))
    return rows


def _write_scenes(studio: Studio, directory: Path, seed: int) -> list[dict[str, str]]:
    """Write the photos without an item that training gets, and return their rows."""
    rows = []
    for number, (name, store, photo) in enumerate(empty_scenes(studio, seed)):
        path = directory / "empty" / f"{number + 1:03d}.jpg"
        _write_photo(photo, path)
        item_id = f"without-item-{name}"
        values = (item_id, item_id, store.name, "train", store.role, name, "nothing")
        cells = (path.relative_to(directory).as_posix(), *values, f"{EMPTY:.2f}")
        rows.append(dict(zip(COLUMNS, cells, strict=True)))
    return rows


def _write_photo(photo: Image.Image, path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with naming(path):
        photo.save(path, quality=QUALITY)
