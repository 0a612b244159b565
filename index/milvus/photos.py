"""Photos of a gallery on Milvus, as draws use them: numbered in insertion order and searched by position."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.distance import PLAIN, DistanceForm, Floats, squared_distance
from index.stored import Filter, Rows

from .collection import Collection
from .search import nearest_items

SCANNED = 1000  # a filter that passes up to this many photos is searched exhaustively
FACTS = ["seq", "photo_id", "item_id", "metadata"]


@dataclass(frozen=True)
class MilvusPhotos:
    """The photos of one version, all of them live. Their seqs and item numbers are in memory, n of each."""

    collection: Collection
    version: int
    seqs: Rows  # (n,) ascending
    items: NDArray[np.int32]  # (n,)
    numbers: dict[str, int]  # number of each item, also of items that are no longer there
    _facts: dict[int, tuple[str, str, dict[str, Any]]] = field(default_factory=dict)  # of seqs that have been read
    _densities: dict[str, Floats] = field(default_factory=dict)  # by distance form, NaN where it is not known

    @classmethod
    def read(cls, collection: Collection, version: int) -> MilvusPhotos:
        """Read the number and item of every photo."""
        rows = [(row["seq"], row["item_id"]) for row in collection.walk(["seq", "item_id"])]
        empty = cls(collection, version, np.zeros(0, np.int64), np.zeros(0, np.int32), {})
        return empty.changed(version, [], sorted(rows))

    def changed(self, version: int, removed: Sequence[int], added: Sequence[tuple[int, str]]) -> MilvusPhotos:
        """Return the photos after a change: without some seqs, and with later ones of the given items."""
        numbers = dict(self.numbers)
        new = [numbers.setdefault(item_id, len(numbers)) for _, item_id in added]
        stay = ~np.isin(self.seqs, np.array(removed, dtype=np.int64))
        seqs = np.concatenate([self.seqs[stay], np.array([seq for seq, _ in added], dtype=np.int64)])
        items = np.concatenate([self.items[stay], np.array(new, dtype=np.int32)])
        unknown = np.full(len(added), np.nan)
        densities = {key: np.concatenate([values[stay], unknown]) for key, values in self._densities.items()}
        return MilvusPhotos(self.collection, version, seqs, items, numbers, self._facts, densities)

    @cached_property
    def live(self) -> NDArray[np.bool_]:
        """Return a mask (n,) of the live photos: all of them."""
        return np.ones(len(self.seqs), dtype=bool)

    @property
    def fingerprint(self) -> tuple[int, int]:
        """Return the number of photos and the sum of their seqs."""
        return len(self.seqs), int(self.seqs.sum())

    @property
    def item_count(self) -> int:
        """The number of items."""
        return len(np.unique(self.items))

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that have photos."""
        there = set(np.unique(self.items).tolist())
        return {item: self.numbers[item] for item in item_ids if self.numbers.get(item, -1) in there}

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions."""
        seqs = self.seqs[positions].tolist()
        if not seqs:
            return np.zeros((0, 0), np.float32)
        found = {}
        for row in self.collection.of_seqs(seqs, [*FACTS, "vector"]):
            self._remember(row)
            found[row["seq"]] = row["vector"]
        return np.array([found[seq] for seq in seqs], dtype=np.float32)

    def photo(self, position: int) -> tuple[str, str, dict[str, Any]]:
        """Return photo_id, item_id and metadata of the photo at a position."""
        seq = int(self.seqs[position])
        if seq not in self._facts:
            for row in self.collection.of_seqs([seq], FACTS):
                self._remember(row)
        return self._facts[seq]

    def densities(self, distance_form: DistanceForm) -> tuple[Floats, float]:
        """Return the density around each photo (n,), and their minimum; this reads the vectors of new photos."""
        if distance_form is PLAIN:
            return np.zeros(len(self.seqs)), 0.0
        known = self._densities.setdefault(distance_form.key, np.full(len(self.seqs), np.nan))
        missing = np.flatnonzero(np.isnan(known))
        if len(missing):
            condition = f"seq >= {int(self.seqs[missing[0]])}"
            for rows in self.collection.pages(["seq", "vector"], condition):
                places = np.searchsorted(self.seqs, [row["seq"] for row in rows])
                known[places] = distance_form.densities(np.array([row["vector"] for row in rows], dtype=np.float32))
        return known, float(known.min(initial=np.inf))

    def nearest(
        self,
        vectors: NDArray[np.float32],
        k: int,
        distance_form: DistanceForm,
        densities: tuple[Floats, float],  # noqa: ARG002 (Milvus returns vectors, and densities follow from them)
        *,
        only: Filter | None = None,
    ) -> list[list[tuple[int, float]]]:
        """Return position and distance of the k nearest items, by their nearest photo, for unit vectors (n, d)."""
        chosen = None if only is None else np.flatnonzero(only.mask)
        if chosen is not None and len(chosen) <= SCANNED:
            return self._scanned(vectors, k, distance_form, chosen)
        condition = "" if chosen is None else _condition(self.seqs, chosen)
        answers = []
        for found in nearest_items(self.collection, vectors, k, condition, distance_form):
            for row, _ in found:
                self._remember(row)
            seqs = np.array([row["seq"] for row, _ in found], dtype=np.int64)
            places = np.searchsorted(self.seqs, seqs)
            there = np.isin(seqs, self.seqs)  # another process may have added photos
            answers.append([(int(places[i]), found[i][1]) for i in np.flatnonzero(there).tolist()])
        return answers

    def _scanned(
        self, vectors: NDArray[np.float32], k: int, distance_form: DistanceForm, chosen: Rows
    ) -> list[list[tuple[int, float]]]:
        """Return the result of `nearest` among some positions, from their vectors."""
        if not len(chosen):
            return [[] for _ in vectors]
        read, own = self.vectors(chosen), distance_form.densities(vectors)
        around, items = distance_form.densities(read), self.items[chosen]
        answers = []
        for vector, density in zip(vectors, own.tolist(), strict=True):
            distances = distance_form.transform(squared_distance(vector[None], read), density, around)
            order = np.argsort(distances, kind="stable")
            best = np.sort(np.unique(items[order], return_index=True)[1])[:k]
            answers.append([(int(chosen[i]), float(distances[i])) for i in order[best].tolist()])
        return answers

    def _remember(self, row: dict[str, Any]) -> None:
        self._facts[row["seq"]] = row["photo_id"], row["item_id"], dict(row["metadata"])


def _condition(seqs: Rows, chosen: Rows) -> str:
    """Return a filter for the photos at some positions."""
    if len(chosen) == len(seqs) - chosen[0]:  # all newer photos
        return f"seq >= {int(seqs[chosen[0]])}"
    return f"seq in {seqs[chosen].tolist()}"
