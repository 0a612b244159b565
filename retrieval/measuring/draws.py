"""Draws: searches for items that are left out, which measure how close unknown items come.

An *own* draw searches with a photo of the collection and leaves out all photos of its item and of the other items of
its group. It also leaves out duplicates: other items with a copy of the query. A *probe* draw searches with a photo
from elsewhere and leaves out its item if the collection has it. Draws name photos by their ids, so they hold in copies.
Shapes: n draws, m probes, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from index.groups import group_key
from index.search.item_distance import RIVALS

# sources of draws
OWN = "own"  # photos of the collection
PROBE = "probe"  # calibration queries of the bundle
REFERENCE = "reference"  # gallery photos of the same items, to measure the query shift
LABELLED = "labelled"  # users' photos with item ids of this gallery
UNKNOWN = "unknown"  # users' photos that show no item of this gallery
PHOTOS = "{} photos"  # the mean of several photos of an item
WINDOWS = "windows"  # the nearest of several windows of a photo
NAMES = "names"  # names of items, which are searched by words
TWICE = 2  # looks at a photo, where there are second looks
SETTING = (OWN, PROBE, LABELLED, UNKNOWN)  # sources of the draws that set a threshold

T = TypeVar("T")
Floats = NDArray[np.float64]
Rows = NDArray[np.int64]
Texts = NDArray[np.str_]


@dataclass(frozen=True)
class Draws:
    """A sample of n searches without the query's item, and of the same searches with it."""

    ids: Texts  # (n,) photo ids of the queries
    items: Texts  # (n,) item ids of the queries
    groups: Texts  # (n,) keys of the groups of these items (`groups_of`)
    distances: Floats  # (n,) item distance of the first item if the own item is left out, inf if there is none
    nearest: Texts  # (n,) photo id of the nearest photo of the first item, "" if there is none
    nearest_items: Texts  # (n,) item id of the first item, "" if there is none
    rivals: Rows  # (n, 5) numbers of the groups of the first item's rivals, or NONE
    without: Floats  # (n, 6) `distances` if the first item or a rival were missing too, inf if no item is left
    plain: Floats  # (n,) plain distance to the nearest photo of another item
    duplicates: Texts  # (n,) photo id of a copy of the query in another item, "" if there is none
    own: Floats  # (n,) item distance of the own item without the query's photo, inf if it has no other photo
    own_plain: Floats  # (n,) plain distance to the nearest other photo of the own item, inf if there is none
    wrong: Floats  # (n,) item distance of another item that comes before the own item, inf if there is none

    @classmethod
    def none(cls) -> Draws:
        """Return an empty sample."""
        texts, distances = np.zeros(0, str), np.zeros(0)
        return cls(
            ids=texts,
            items=texts,
            groups=texts,
            distances=distances,
            nearest=texts,
            nearest_items=texts,
            rivals=np.zeros((0, RIVALS), np.int64),
            without=np.zeros((0, 1 + RIVALS)),
            plain=distances,
            duplicates=texts,
            own=distances,
            own_plain=distances,
            wrong=distances,
        )

    @classmethod
    def checked(cls, values: Mapping[str, NDArray[Any]]) -> Draws:
        """Return the draws of arrays by field; raise ValueError for arrays of other kinds or of unequal lengths."""
        draws, none = cls(**values), cls.none().arrays()
        for name, value in draws.arrays().items():
            if value.dtype.kind != none[name].dtype.kind or value.shape != (len(draws), *none[name].shape[1:]):
                raise ValueError(f"{name}: {value.dtype} {value.shape}")
        return draws

    def __len__(self) -> int:
        return len(self.ids)

    @property
    def is_copied(self) -> NDArray[np.bool_]:
        """Whether another item has a copy of the query (n,)."""
        return np.asarray(self.duplicates != "")

    @property
    def right(self) -> Floats:
        """The item distance of the own item where it comes first, else inf (n,)."""
        return np.where(np.isinf(self.wrong), self.own, np.inf)

    def closest(self, of: Rows, count: int) -> Draws:
        """Return one draw for each of `count` photos: that of its closest part. `of` (n,) is the photo of each draw.

        The search without the own item and the search with it may take different parts.
        """
        first = np.minimum(self.right, self.wrong)
        without, having = (np.lexsort((distances, of)) for distances in (self.distances, first))
        starts = np.searchsorted(np.sort(of), np.arange(count))
        arrays = {name: values[without[starts]] for name, values in self.arrays().items()}
        mated = {name: getattr(self, name)[having[starts]] for name in ("own", "own_plain", "wrong")}
        return Draws(**arrays | mated)

    @classmethod
    def joined(cls, parts: Sequence[Draws]) -> Draws:
        """Return the draws of several samples as one."""
        arrays = [part.arrays() for part in (cls.none(), *parts)]
        return cls(**{name: np.concatenate([each[name] for each in arrays]) for name in arrays[0]})

    def where(self, chosen: NDArray[np.bool_]) -> Draws:
        """Return the draws selected by a mask (n,)."""
        return Draws(**{name: values[chosen] for name, values in self.arrays().items()})

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the fields as arrays."""
        return {each.name: getattr(self, each.name) for each in fields(self)}


@dataclass(frozen=True)
class Probes:
    """m photos from elsewhere to search the collection with."""

    vectors: NDArray[np.float32]  # (m, d) of length 1
    ids: Sequence[str]
    items: Sequence[str]
    features: Sequence[bytes] = ()  # local features of each probe, if they are compared
    groups: Sequence[str] = ()  # group of each probe's item, "" for none; () if no item has a group
    are_here: bool = False  # whether a photo of the collection with the id of a probe is the probe itself
    looks: NDArray[np.float32] | None = None  # (m, d) vectors of second looks, zeros where there is none

    @property
    def keys(self) -> list[str]:
        """The key of the group of each probe's item (m,). An item without a group has a key of its own."""
        return [group_key(*pair) for pair in zip(self.items, self.groups or [""] * len(self.items), strict=True)]

    @classmethod
    def joined(cls, parts: Sequence[Probes]) -> Probes:
        """Return the probes of several samples as one. Those without groups or second looks go on lacking them."""
        sets, vectors = [part.groups or [""] * len(part.ids) for part in parts], [part.vectors for part in parts]
        looks = [np.zeros_like(part.vectors) if part.looks is None else part.looks for part in parts]
        return cls(
            np.concatenate(vectors),
            [photo_id for part in parts for photo_id in part.ids],
            [item for part in parts for item in part.items],
            [content for part in parts for content in part.features],
            [group for groups in sets for group in groups] if any(part.groups for part in parts) else (),
            looks=np.concatenate(looks) if any(part.looks is not None for part in parts) else None,
        )

    def where(self, rows: Sequence[int]) -> Probes:
        """Return the probes at the given rows."""

        def taken(values: Sequence[T]) -> list[T]:
            return [values[row] for row in rows] if values else []

        vectors, ids, items = self.vectors[rows], taken(self.ids), taken(self.items)
        looks = None if self.looks is None else self.looks[rows]
        return Probes(vectors, ids, items, taken(self.features), taken(self.groups), self.are_here, looks)


@dataclass(frozen=True)
class AllDraws:
    """The draws by source of one version of the photos, for one model and one item distance."""

    model: str  # identifies what else the draws depend on: model, item distance and fitted items
    sources: Mapping[str, Draws]
    fitted: frozenset[str]  # items of the collection that are not drawn: the model was fitted on them or their group
    version: int = -1  # of the gallery
    mark: tuple[int, ...] = (0,)  # of the photos that were searched (`Photos.mark`)
    looks: bool = False  # whether each draw is by the smaller distance of two looks
    has_rivals: bool = True  # bounds need the rivals; draws of the first program called 0.2.0 have none

    @property
    def photos(self) -> int:
        """The number of photos that were searched."""
        return self.mark[0]

    def get(self, source: str) -> Draws:
        """Return the draws of a source, empty if there are none."""
        return self.sources.get(source, Draws.none())
