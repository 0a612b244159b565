"""Queries for a synthetic catalogue: photos of known items, unknown items, new variants, and other things."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from PIL import Image

from .designs import draw_line
from .families import FAMILIES, OTHER_FAMILIES
from .photos import STORES, Store, Studio
from .population import SyntheticItem, draw_item, draw_siblings

COLUMNS = ("path", "item_id", "group", "kind", "name")
KNOWN, UNKNOWN, SIBLING = "known", "unknown", "sibling"
OTHERS = OBJECT, PLACE, BLANK, NOISE = "object", "place", "blank", "noise"
KINDS = (KNOWN, UNKNOWN, SIBLING, *OTHERS)
UNKNOWN_PHOTOS = 2  # per unknown item
SIBLING_SHARE, OTHER_SHARE = 0.25, 0.05  # siblings, and queries of each other kind, relative to items
NEIGHBOURS = 3  # designs per family that may stand next to an item
SCENES = {PLACE: 6, BLANK: 24, NOISE: 8}  # photos without an item to train with: of each place, and in all
ASKING = STORES[-1]  # the store whose photos are the queries


@dataclass(frozen=True)
class Query:
    """A photo to search with, and what it shows."""

    photo: Image.Image
    item_id: str
    group: str
    kind: str
    name: str

    @classmethod
    def of(cls, photo: Image.Image, item: SyntheticItem, kind: str) -> Query:
        """Return a query with a photo of an item."""
        return cls(photo, item.item_id, item.line, kind, item.name)


class Shelf:
    """Photographs items next to neighbours of the same family that are not in the catalogue."""

    def __init__(self, studio: Studio, generator: np.random.Generator) -> None:
        self.studio = studio
        self._neighbours = {
            family: [shape.render(draw_line(1, generator)[0], [0.0])[0] for _ in range(NEIGHBOURS)]
            for family, shape in FAMILIES.items()
        }

    def photograph(
        self, item: SyntheticItem, store: Store, count: int, generator: np.random.Generator
    ) -> list[Image.Image]:
        """Return photos of an item in a store."""
        place = self.studio.visit(generator)
        neighbours = self._neighbours.get(item.family, [])
        return [
            self.studio.take(
                item.views, neighbours, place=place, variation=item.variation, store=store, generator=generator
            )
            for _ in range(count)
        ]


def unknown_queries(items: Sequence[SyntheticItem], lines: Collection[str], shelf: Shelf, seed: int) -> Iterator[Query]:
    """Yield the queries for unknown items; those of one of the catalogue's lines are siblings of its items."""
    for number, item in enumerate(items):
        photos = shelf.photograph(item, ASKING, UNKNOWN_PHOTOS, np.random.default_rng((seed, 5, number)))
        kind = SIBLING if item.line in lines else UNKNOWN
        yield from (Query.of(photo, item, kind) for photo in photos)


def sibling_queries(known: Sequence[SyntheticItem], shelf: Shelf, seed: int) -> Iterator[Query]:
    """Yield a query for a new variant of each of some catalogue items."""
    generator = np.random.default_rng((seed, 6))
    for item in draw_siblings(known, round(SIBLING_SHARE * len(known)), generator):
        (photo,) = shelf.photograph(item, ASKING, 1, generator)
        yield Query.of(photo, item, SIBLING)


def other_queries(count: int, shelf: Shelf, seed: int) -> Iterator[Query]:
    """Yield `count` queries of each kind of other thing: other shapes, empty places, blank photos and noise."""
    generator, studio = np.random.default_rng((seed, 7)), shelf.studio
    for number in range(count):
        family, shape = list(OTHER_FAMILIES.items())[number % len(OTHER_FAMILIES)]
        item = draw_item(family, shape, number, generator)
        yield Query.of(shelf.photograph(item, ASKING, 1, generator)[0], item, OBJECT)
        for kind in (PLACE, BLANK, NOISE):
            name = f"{kind}-{number + 1:02d}"
            photo = _scene(studio, kind, studio.visit(generator), ASKING, generator)
            yield Query(photo, name, name, kind, kind)


def empty_scenes(studio: Studio, seed: int) -> Iterator[tuple[str, Store, Image.Image]]:
    """Yield photos without an item to train with: a name for what they show, the store and the photo.

    They show every second place, and single colours and random pixels, each photographed in both stores.
    """
    generator = np.random.default_rng((seed, 8))
    for place in range(0, studio.places, 2):
        for number in range(SCENES[PLACE]):
            store = STORES[number % len(STORES)]
            yield f"{PLACE}-{place + 1:02d}", store, _scene(studio, PLACE, place, store, generator)
    for kind in (BLANK, NOISE):
        for number in range(SCENES[kind]):
            store = STORES[number % len(STORES)]
            yield kind, store, _scene(studio, kind, 0, store, generator)


def _scene(studio: Studio, kind: str, place: int, store: Store, generator: np.random.Generator) -> Image.Image:
    if kind == PLACE:
        return studio.empty(place, store=store, generator=generator)
    return studio.blank(store=store, generator=generator) if kind == BLANK else studio.noise(generator)
