"""Drawing: making the draws of a collection (`retrieval.measuring.draws`) with the search that answers queries.

Shapes: n draws, m probes, k photos of a query, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.groups import group_key, group_of
from index.photos import NONE, Photos, hashed, sampled
from index.search.details import Verifier, check_query_features
from index.search.distance import exact_unit
from index.search.item_distance import ItemDistance, mean_photo
from index.search.item_search import ItemSearch
from index.search.left_out import LeftOut, Queries, searches_without

from .draws import NAMES, OWN, PHOTOS, WINDOWS, Draws, Probes, Rows, Texts

MOST_DRAWS = 3000  # maximum number of draws per source
MOST_VERIFIED = 500  # the same with local features: comparing 100 pairs per draw takes a minute on one core
MOST_SEVERAL = 1000  # maximum number of draws with several photos per query
SEVERAL = (2, 3, 4)  # numbers of photos per query in these draws
MOST_OTHERS = 64  # maximum number of photos of an item to choose the further photos of a query from
SOURCE = "source"  # metadata key that names where a photo comes from


@dataclass(frozen=True)
class PartVectors:
    """Vectors of parts of n photos, with w parts per photo: windows, or the second look."""

    ids: Texts  # (n,) photo ids
    vectors: NDArray[np.floating[Any]]  # (n, w, d) of length 1, zeros for a photo with fewer parts


@dataclass(frozen=True)
class NameVectors:
    """Vectors of the names of n items, by the text tower of the model of the photos."""

    key: str  # identifies the text tower
    column: str  # metadata key of the names
    items: Texts  # (n,) item ids
    vectors: NDArray[np.float32]  # (n, d) of length 1


@dataclass(frozen=True)
class Drawing:
    """Makes draws of photos with one item distance."""

    photos: Photos
    distance: ItemDistance
    verifier: Verifier | None = None  # compares local features
    find_copies: bool = True  # whether own draws also leave out other items with a copy of the query

    @property
    def most(self) -> int:
        """The maximum number of draws per source."""
        return most_draws(self.verifier)

    def every(
        self,
        probes: Mapping[str, Probes],
        *,
        excluded: Collection[int] = (),
        looks: PartVectors | None = None,
        windows: PartVectors | None = None,
        names: NameVectors | None = None,
    ) -> dict[str, Draws]:
        """Return the draws by source. Items with the `excluded` numbers get no own draws.

        With `looks`, own draws and probe draws are by the smaller distance of two looks at a photo.
        """
        sources = {OWN: self.own(excluded=excluded, looks=looks)}
        sources |= {PHOTOS.format(count): self.several(count, excluded=excluded) for count in SEVERAL}
        if windows is not None:
            sources[WINDOWS] = self.windows(windows, excluded=excluded)
        if names is not None:
            sources[NAMES] = self.names(names, excluded=excluded)
        return sources | {
            name: self.probes(given if looks is not None else replace(given, looks=None))
            for name, given in probes.items()
        }

    def own(
        self, *, excluded: Collection[int] = (), most: int | None = None, looks: PartVectors | None = None
    ) -> Draws:
        """Return the own draws, without draws of the items with the `excluded` numbers.

        With `looks`, the smaller distance of two looks counts. A photo whose second look is unknown is drawn with one.
        """
        return self.own_at(self.photos.sample(self.most if most is None else most, excluded=excluded), looks)

    def own_at(self, positions: Rows, looks: PartVectors | None = None) -> Draws:
        """Return the own draws of the photos at some positions."""
        (first,) = self._of_photos(self.photos.vectors(positions), positions[:, None])
        if looks is None:
            return first
        known = self.photos.positions(looks.ids.tolist())
        _, places, looked_at = np.intersect1d(positions, known, return_indices=True)
        vectors = np.zeros((len(positions), looks.vectors.shape[2]), np.float32)
        vectors[places] = looks.vectors[looked_at, :1].sum(axis=1)
        rows = _looked_at_again(first, vectors)
        again = exact_unit(vectors[rows]).astype(np.float32)
        (second,) = self._without_details._of_photos(again, positions[rows, None])
        return _nearer(first, second, rows)

    def own_by(self, distances: Sequence[ItemDistance], most: int) -> list[Draws]:
        """Return the own draws by each of several item distances."""
        positions = self.photos.sample(most)
        return self._of_photos(self.photos.vectors(positions), positions[:, None], distances)

    def several(self, count: int, *, excluded: Collection[int] = (), most: int = MOST_SEVERAL) -> Draws:
        """Return own draws that search with the mean of `count` photos of an item, from different sources if possible.

        Local features are not compared.
        """
        sets = self._sets(self.photos.sample(most, excluded=excluded), count)
        vectors = self.photos.vectors(sets.ravel())
        means = [mean_photo(each) for each in vectors.reshape(*sets.shape, vectors.shape[1])]
        return self._without_details._of_photos(np.array(means, dtype=np.float32), sets)[0]

    def windows(self, windows: PartVectors, *, excluded: Collection[int] = ()) -> Draws:
        """Return own draws that search with windows of photos. For each photo, the window that comes closest counts."""
        positions = self.photos.positions(windows.ids.tolist())
        real = np.linalg.norm(windows.vectors, axis=2) > 0
        usable = (positions != NONE) & ~np.isin(self.photos.items_at(positions), list(excluded)) & real.any(axis=1)
        positions, vectors, real = positions[usable], windows.vectors[usable], real[usable]
        of, _ = real.nonzero()
        (draws,) = self._without_details._of_photos(vectors[real], positions[of, None])
        return draws.closest(of, len(positions))

    def names(self, names: NameVectors, *, excluded: Collection[int] = ()) -> Draws:
        """Return own draws that search with the names of items, which leave out all photos of the item."""
        known = self.photos.item_numbers(names.items.tolist())
        numbers = np.array([known.get(item, NONE) for item in names.items.tolist()], dtype=np.int64)
        usable = (numbers != NONE) & ~np.isin(numbers, list(excluded))
        numbers, items = numbers[usable], names.items[usable]
        queries = Queries(names.vectors[usable], numbers, np.full((len(numbers), 1), NONE))
        return self._without_details._draws(items, items, groups_of(self.photos, numbers, items), queries)[0]

    def probes(self, probes: Probes) -> Draws:
        """Return the probe draws. A probe whose item is not in the collection finds no items of its own group.

        If probes are photos of the collection (`Probes.are_here`), each search leaves out the probe's own photo.
        """
        labels, known = np.array(probes.items, dtype=str), self.photos.item_numbers(list(dict.fromkeys(probes.items)))
        names, codes = np.unique(labels, return_inverse=True)
        chosen = sampled(codes, hashed(names.tolist())[codes], hashed(probes.ids))[: self.most]
        given = () if self.verifier is None else check_query_features(probes.features, len(labels))
        features = [given[place] for place in chosen.tolist()] if given else ()
        numbers = np.array([known.get(probes.items[place], NONE) for place in chosen.tolist()], dtype=np.int64)
        groups = groups_of(self.photos, numbers, np.array(probes.keys, dtype=str)[chosen])
        ids = np.array(probes.ids, dtype=str)[chosen]
        here = self.photos.positions(ids.tolist()) if probes.are_here else np.full(len(chosen), NONE)
        queries = Queries(probes.vectors[chosen], numbers, here[:, None], features)
        grouped = bool(probes.groups)
        (first,) = self._draws(ids, labels[chosen], groups, queries, are_grouped=grouped)
        if probes.looks is None:
            return first
        rows = _looked_at_again(first, probes.looks[chosen])
        again = replace(queries, vectors=probes.looks[chosen], features=()).where(rows)
        plain = self._without_details
        (second,) = plain._draws(ids[rows], labels[chosen][rows], groups[rows], again, are_grouped=grouped)
        return _nearer(first, second, rows)

    @property
    def _without_details(self) -> Drawing:
        return replace(self, verifier=None)

    def _sets(self, positions: Rows, count: int) -> Rows:
        """Return sets (n, count) of positions: each has one of the given positions and further photos of its item."""
        sets: dict[tuple[int, ...], list[int]] = {}
        items = self.photos.photos_of(self.photos.items_at(positions).tolist())
        for position, own in zip(positions.tolist(), items, strict=True):
            others = own[own != position]
            others = others[np.argsort(self.photos.keys_of(others), kind="stable")][:MOST_OTHERS]
            if len(others) >= count - 1:
                chosen = self._of_other_sources(position, others.tolist())[: count - 1]
                sets.setdefault(tuple(sorted((position, *chosen))), [position, *chosen])
        return np.array(list(sets.values()), dtype=np.int64).reshape(-1, count)

    def _of_other_sources(self, position: int, others: list[int]) -> list[int]:
        """Return the photos `others` in a new order: photos from a source that no earlier photo has come first."""
        places = [position, *others]
        stored = self.photos.photos_at(np.array(places))
        sources = {place: metadata.get(SOURCE) for place, (_, _, metadata) in zip(places, stored, strict=True)}
        first: list[int] = []
        rest: list[int] = []
        seen = {sources[position]}
        for place in others:
            (rest if sources[place] in seen else first).append(place)
            seen.add(sources[place])
        return first + rest

    def _of_photos(
        self, vectors: NDArray[np.float32], positions: Rows, distances: Sequence[ItemDistance] = ()
    ) -> list[Draws]:
        """Return the draws of queries with vectors (n, d), which were made from the photos at positions (n, k)."""
        first = positions[:, 0]
        stored, numbers = self.photos.photos_at(first), self.photos.items_at(first)
        ids, items = (np.array([names[column] for names in stored], dtype=str) for column in (0, 1))
        groups = groups_of(self.photos, numbers, items)
        queries = Queries(vectors, numbers.astype(np.int64), positions, (), self.find_copies)
        return self._draws(ids, items, groups, queries, distances=distances)

    def _draws(
        self,
        ids: Texts,
        items: Texts,
        groups: Texts,
        queries: Queries,
        *,
        are_grouped: bool = False,
        distances: Sequence[ItemDistance] = (),
    ) -> list[Draws]:
        """Return the draws of queries by each of some item distances, by default the own one.

        With `are_grouped`, a query finds no items of its own group.
        """
        search = ItemSearch(self.photos, self.distance, self.verifier)
        found = searches_without(search, queries, distances or [self.distance])
        return [self._named(ids, items, groups, left_out, are_grouped=are_grouped) for left_out in found]

    def _named(self, ids: Texts, items: Texts, groups: Texts, found: LeftOut, *, are_grouped: bool) -> Draws:
        """Return the draws of searches, with the ids of what they found."""
        nearest, nearest_items = self._names(found.nearest)
        if are_grouped:
            found_groups = groups_of(self.photos, self.photos.items_at(found.nearest), nearest_items)
            found = replace(found, distances=np.where(found_groups == groups, np.inf, found.distances))
        return Draws(
            ids=ids,
            items=items,
            groups=groups,
            distances=found.distances,
            nearest=nearest,
            nearest_items=nearest_items,
            rivals=found.rivals,
            without=found.without,
            plain=found.plain,
            duplicates=self._names(found.duplicates)[0],
            own=found.own,
            own_plain=found.own_plain,
            wrong=found.wrong,
        )

    def _names(self, positions: Rows) -> tuple[Texts, Texts]:
        """Return photo ids and item ids (n,) of the photos at some positions, "" for NONE."""
        places, of = np.unique(positions[positions != NONE], return_inverse=True)
        stored = self.photos.photos_at(places)
        names = []
        for column in (0, 1):
            texts = np.array(["", *(names[column] for names in stored)], dtype=str)
            rows = np.zeros(len(positions), np.int64)
            rows[positions != NONE] = of + 1
            names.append(texts[rows])
        return names[0], names[1]


def most_draws(verifier: object) -> int:
    """Return the maximum number of draws per source, with a verifier of details or None."""
    return MOST_DRAWS if verifier is None else MOST_VERIFIED


def _looked_at_again(first: Draws, vectors: NDArray[np.floating[Any]]) -> Rows:
    """Return the rows of draws with a second look, given the vectors (n, d) of these looks.

    A photo with a copy under another item is not looked at again: a part of it would find the copy.
    """
    return np.flatnonzero(vectors.any(axis=1) & ~first.is_copied)


def _nearer(first: Draws, second: Draws, rows: Rows) -> Draws:
    """Return the draws of first looks, each replaced by that of the second look, which some `rows` have, if nearer."""
    return Draws.joined([first, second]).closest(np.concatenate([np.arange(len(first)), rows]), len(first))


def groups_of(photos: Photos, numbers: Rows, others: Texts) -> Texts:
    """Return the key of the group of each item (n,), given by number. An item without a group has a key of its own.

    `others` (n,) holds the keys of items that are not in the collection.
    """
    wanted = np.unique(numbers[numbers != NONE]).tolist()
    first = {number: own[0] for number, own in zip(wanted, photos.photos_of(wanted), strict=True) if len(own)}
    stored = photos.photos_at(np.array(list(first.values()), dtype=np.int64))
    known = {
        number: group_key(item, group_of(item, metadata))
        for number, (_, item, metadata) in zip(first, stored, strict=True)
    }
    each = zip(numbers.tolist(), others.tolist(), strict=True)
    return np.array([known.get(number, other) for number, other in each], dtype=str)
