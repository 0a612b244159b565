"""Synthetic catalogue: photos of drawn items, and queries to search it with."""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import numpy as np
from tqdm import tqdm

from retrieval.errors import InvalidParameter
from retrieval.files import naming, write_file
from retrieval.process import cores

from .photos import take_photo
from .things import FAMILIES, Design, draw_design, draw_thing, draw_variants

COLUMNS = ("path", "item_id", "group", "partition", "name", "family")
QUERY_COLUMNS = ("path", "item_id", "group", "kind", "name")
CATALOGUE, QUERIES = "catalogue.csv", "queries.csv"  # in the directory
KINDS = KNOWN, UNKNOWN, VARIANT, PLACE = "known", "unknown", "variant", "place"  # of queries
QUALITY = 88
THREES = 0.15  # share of the designs that come as three of a kind
TRAINED, CALIBRATED = 0.4, 0.3  # shares of the items for training and for calibration; the rest is for tests
UNKNOWNS, PLACES = 1.0, 0.05  # numbers of unknown items and of empty places, relative to the items

Row = dict[str, str]


@dataclass(frozen=True)
class Subject:
    """What one query shows: an item, or an empty place without a design. Known items have photos in the catalogue."""

    item_id: str
    group: str  # of items of one kind
    kind: str
    family: str = ""
    design: Design | None = None
    partition: str = ""  # of a known item

    @property
    def name(self) -> str:
        """Display name."""
        return f"{self.design.brand} {self.design.word} {self.family}" if self.design else "empty place"


def make_catalogue(
    directory: str | Path,
    *,
    items: int = 240,
    photos: int = 4,
    size: int = 192,
    seed: int = 0,
    progress: bool = True,
) -> Path:
    """Draw a catalogue and its queries on all cores, and return the path of its `catalogue.csv`.

    It starts processes, so a script that calls it needs `if __name__ == "__main__":`.

    Items are mugs, T-shirts, sneakers and backpacks of different designs, photographed in any pose, light and place.
    Some designs come as three of a kind, which differ in a word, an emblem and a colour: two are items of the catalogue
    with the same `group`, the third is in queries only.

    `queries.csv` lists new photos in random order, with their `kind`: one of each catalogue item ("known"), of new
    items of the same population ("unknown"), of each third of a kind ("variant"), and of empty places ("place"). Only
    queries of the kind "known" have a right match.

    Parameters
    ----------
    directory:
        Created if missing. Files of the same names are replaced.
    items, photos, size:
        Number of items; photos per item; side of a photo in pixels.
    seed:
        Seed: the same arguments write the same bytes (with the same versions of Pillow and numpy).

    Raises
    ------
    InvalidParameter
        For fewer than 10 items or 2 photos, or a size below 32.
    """
    for name, value, least in (("items", items, 10), ("photos", photos, 2), ("size", size, 32)):
        if value < least:
            raise InvalidParameter(name, f"be at least {least}", value)
    directory = Path(directory)
    directory.mkdir(parents=True, exist_ok=True)  # before the drawing, which takes a while
    generator = np.random.default_rng(seed)
    subjects = _draw_subjects(items, generator)
    places = generator.permutation(len(subjects)).tolist()  # of the queries

    draw = partial(_photograph, directory=directory, photos=photos, size=size, seed=seed)
    with ProcessPoolExecutor(cores(), get_context("spawn")) as pool:
        drawn = pool.map(draw, subjects, range(len(subjects)), places, chunksize=8)
        results = [*tqdm(drawn, desc="drawing", unit="item", total=len(subjects), disable=not progress)]
    queries = sorted((query for _, query in results), key=lambda row: row["path"])
    _write_rows(directory / QUERIES, QUERY_COLUMNS, queries)
    return _write_rows(directory / CATALOGUE, COLUMNS, [row for rows, _ in results for row in rows])


def _draw_subjects(items: int, generator: np.random.Generator) -> list[Subject]:
    """Draw the items of a catalogue, unknown items, and empty places.

    Unknown items are drawn like catalogue items: once the items of its own kind are left out, a catalogue item that the
    model was not fitted on is exchangeable with an unknown item.
    """
    kinds = _draw_kinds(generator)
    known: list[Subject] = []
    variants: list[Subject] = []
    while (count := len(known)) < items:
        partition = "train" if count < TRAINED * items else "calibration"
        partition = partition if count < (TRAINED + CALIBRATED) * items else "test"
        *listed, last = next(kinds)
        if listed:
            variants.append(replace(last, kind=VARIANT))
        known += [replace(item, kind=KNOWN, partition=partition) for item in (listed or [last])[: items - count]]
    unknown = [next(kinds)[0] for _ in range(round(UNKNOWNS * items))]
    places = [f"place-{number + 1:02d}" for number in range(max(1, round(PLACES * items)))]
    return [*known, *variants, *unknown, *(Subject(place, place, PLACE) for place in places)]


def _draw_kinds(generator: np.random.Generator) -> Iterator[list[Subject]]:
    """Yield new items, still unknown: a single one, or three of a kind."""
    for number in itertools.count(1):
        family = str(generator.choice(list(FAMILIES)))
        designs = [draw_design(generator)]
        if generator.random() < THREES:
            designs += draw_variants(designs[0], 2, generator)
        group = f"{family}-{number:04d}"
        yield [
            Subject(group + letter, group, UNKNOWN, family, design)
            for letter, design in zip("abc", designs, strict=False)
        ]


def _photograph(
    subject: Subject, number: int, place: int, *, directory: Path, photos: int, size: int, seed: int
) -> tuple[list[Row], Row]:
    """Write the photos of a subject; return their rows of the catalogue, and the row of its query.

    `seed` and `number` decide the photos; `place` is the place of the query.
    """
    generator, query = np.random.default_rng((seed, number)), f"queries/{place + 1:04d}.jpg"
    thing = None if subject.design is None else draw_thing(subject.family, subject.design)
    names = [f"items/{subject.item_id}/{number + 1}.jpg" for number in range(photos) if subject.kind == KNOWN]
    for name in (query, *names):
        path = directory / name
        path.parent.mkdir(parents=True, exist_ok=True)
        with naming(path):
            take_photo(thing, size, generator).save(path, quality=QUALITY)
    row = {name: str(getattr(subject, name)) for name in (*COLUMNS[1:], "kind")}
    return [{"path": name} | row for name in names], {"path": query} | row


def _write_rows(path: Path, columns: Sequence[str], rows: Sequence[Mapping[str, str]]) -> Path:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, columns, extrasaction="ignore")
    writer.writeheader()
    writer.writerows(rows)
    write_file(path, text.getvalue())
    return path
