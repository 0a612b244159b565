"""Draws: searches of a gallery for items that are not in it, to measure how close unknown items come.

An *own* draw searches with a gallery photo and leaves out all photos of its item. It also leaves out duplicates: other
items with a copy of the query. A *probe* draw searches with a photo from elsewhere and leaves out its item if
the gallery has it. Draws use the same search and distance form as queries. A draw of several photos searches with a
group of photos of one item (`photo_groups`).

A gallery keeps a sample of draws. An added photo can only make the nearest other item of a draw nearer, and a removed
photo only affects the draws that had it as nearest. So an update searches the added photos, and repeats only the draws
that the change may affect. Draws with a verified distance form are made by `verified_draws`.
Shapes: n draws, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from .copies import Copies, IsCopy
from .distance import DistanceForm, Floats, squared_distance
from .drawable import Photos
from .drawn import NOBODY, Draws, Measured, Probes, Queries, Texts
from .photo_groups import mean_vectors, rows_of, sample_groups
from .sampling import every_item_once, hashed, lives, sample
from .stored import Filter, Rows
from .verified import check_query_features
from .verified_draws import VerifiedDraws
from .verified_search import VerifiedSearch

MOST_DRAWS = 3000  # draws of each source that a gallery keeps
MOST_VERIFIED = 500  # the same for a verified distance form: 100 pairs per draw take about a minute on one core
READ = 4096  # photos that are read at a time

__all__ = ["NOBODY", "Drawer", "Draws", "Probes"]


@dataclass(frozen=True)
class Drawer:
    """Makes draws from one snapshot with one distance form."""

    snapshot: Photos
    distance_form: DistanceForm
    densities: tuple[Floats, float]  # local density of each photo of the snapshot, and the minimum
    content_key: str = ""  # metadata key of the hash of a photo's file; with "", files are not compared
    search: VerifiedSearch | None = None  # of a verified distance form
    is_copy: IsCopy | None = None  # compares pictures by their pixels; with None, they are not compared

    @cached_property
    def copies(self) -> Copies:
        """Find the duplicates of queries."""
        return Copies(self.snapshot, self.content_key, self.is_copy)

    @property
    def most(self) -> int:
        """The number of draws of each source that a gallery keeps."""
        return MOST_DRAWS if self.search is None else MOST_VERIFIED

    def own(
        self, known: Draws | None, *, excluded: NDArray[np.int32], most: int | None = None, photos_per_query: int = 1
    ) -> Draws:
        """Return the own draws, reusing `known` draws of an earlier version.

        Parameters
        ----------
        excluded:
            Numbers of the items without draws, because the model was fitted on them.
        photos_per_query:
            Number of photos of a query.
        """
        known = Draws.none() if known is None else known
        most = self.most if most is None else most
        if photos_per_query == 1:
            positions = firsts = sample(self.snapshot, excluded, most=most)
            vectors = self.snapshot.vectors(positions)
        else:
            positions = sample_groups(self.snapshot, excluded, photos_per_query, most=most)
            firsts = positions[:, 0]
            read = self.snapshot.vectors(positions.ravel())
            vectors = mean_vectors(read.reshape(-1, photos_per_query, read.shape[-1]))
        seqs = self.snapshot.seqs[positions]
        rows = rows_of(known.seqs, seqs)
        names = [
            (known.ids[row], known.items[row]) if row >= 0 else self.snapshot.photo(position)[:2]
            for row, position in zip(rows.tolist(), firsts.tolist(), strict=True)
        ]
        ids, items = np.array([n[0] for n in names], dtype=str), np.array([n[1] for n in names], dtype=str)
        found = self._measured(Queries(vectors, self.snapshot.items[firsts], positions), known, rows)
        return self._draws(ids, items, seqs, found, known, rows)

    def probes(
        self,
        known: Draws | None,
        probes: Probes,
        *,
        numbers: Sequence[int] | NDArray[np.int32],
        most: int | None = None,
    ) -> Draws:
        """Return the probe draws, reusing `known` draws of an earlier version.

        Parameters
        ----------
        numbers:
            Number of each probe's item in the gallery, -1 if the item is not in the gallery; or those of all items that
            are left out, the same number of them for each probe.
        """
        known = Draws.none() if known is None else known
        labels = np.array(probes.items, dtype=str)
        chosen = every_item_once(labels, hashed(np.arange(len(labels))))
        chosen = chosen[: self.most if most is None else most]
        ids = np.array(probes.ids, dtype=str)[chosen]
        places = {name: row for row, name in enumerate(known.ids.tolist())}
        rows = np.array([places.get(name, -1) for name in ids.tolist()], dtype=np.int64)
        own_items = np.array(numbers, dtype=np.int32)[chosen]
        nobody = np.full(len(chosen), NOBODY, np.int64)
        given = () if self.search is None else check_query_features(probes.features, len(labels))
        features = [given[place] for place in chosen.tolist()] if given else ()
        found = self._measured(Queries(probes.vectors[chosen], own_items, nobody, features), known, rows)
        return self._draws(ids, labels[chosen], nobody, found, known, rows)

    def _measured(self, queries: Queries, known: Draws, rows: Rows) -> Measured:
        """Return the results of queries; `rows` (n,) holds the row of each in the known draws, -1 for a new query."""
        if self.search is not None:
            return VerifiedDraws(self.search, self.copies.of_query).measured(queries, known, rows)
        distances, nearest, duplicates = self._others(queries.vectors, queries.numbers, queries.positions, known, rows)
        own, own_nearest = self._own(queries.vectors, queries.numbers, queries.positions, known, rows)
        return Measured(distances, nearest, duplicates, own, own_nearest)

    def _draws(self, ids: Texts, items: Texts, seqs: Rows, found: Measured, known: Draws, rows: Rows) -> Draws:
        rivals = self._rivals(found.nearest, known, rows)
        searched = (found.distances, found.nearest, rivals, found.own, found.own_nearest, found.duplicates)
        return Draws(ids, items, seqs, *searched, self._until, found.shortlists)

    def _rivals(self, nearest: Rows, known: Draws, rows: Rows) -> Texts:
        """Return the item ids of the nearest photos (n,), "" for NOBODY; `rows` are those of the known draws."""
        positions = np.searchsorted(self.snapshot.seqs, nearest).tolist()
        names = [
            known.nearest_items[row]
            if row >= 0 and known.nearest[row] == seq
            else ("" if seq == NOBODY else self.snapshot.photo(position)[1])
            for seq, position, row in zip(nearest.tolist(), positions, rows.tolist(), strict=True)
        ]
        return np.array(names, dtype=str)

    @property
    def _until(self) -> int:
        return int(self.snapshot.seqs[-1]) + 1 if len(self.snapshot.seqs) else 0

    def _others(
        self,
        vectors: NDArray[np.float32],
        numbers: NDArray[np.int32],
        queries: Rows,
        known: Draws,
        rows: Rows,
    ) -> tuple[Floats, Rows, Rows]:
        """Return the distance and seq of the nearest photo of another item, and the seq of a duplicate, each (n,).

        `queries` (n,) or (n, m) holds the positions of each query's photos, NOBODY for a probe, and `rows` (n,) its
        row in the known draws, -1 for a new query.
        """
        distances, nearest, duplicates = (
            np.where(rows >= 0, values[rows], nothing) if len(known) else np.full(len(rows), nothing)
            for values, nothing in ((known.distances, np.inf), (known.nearest, NOBODY), (known.duplicates, NOBODY))
        )
        start = int(np.searchsorted(self.snapshot.seqs, known.until))
        new = start + np.flatnonzero(self.snapshot.live[start:])
        lost = (rows < 0) | ((nearest != NOBODY) & ~self._lives(nearest))
        lost |= duplicates != NOBODY  # an added or removed photo may belong to one of the items that are left out
        if len(new):
            kept = np.flatnonzero(~lost)
            mask = np.zeros(len(self.snapshot.seqs), dtype=bool)
            mask[new] = True
            found = self._search(vectors, numbers, queries, kept, Filter(mask, new, None, None, ("", [])))
            nearer = found[0] < distances[kept]
            distances[kept[nearer]], nearest[kept[nearer]] = found[0][nearer], found[1][nearer]
            lost[kept[found[2] != NOBODY]] = True
        chosen = np.flatnonzero(lost)
        distances[chosen], nearest[chosen], duplicates[chosen] = self._search(vectors, numbers, queries, chosen)
        return distances, nearest, duplicates

    def _search(
        self,
        vectors: NDArray[np.float32],
        numbers: NDArray[np.int32],
        queries: Rows,
        chosen: Rows,
        only: Filter | None = None,
    ) -> tuple[Floats, Rows, Rows]:
        """Return the result of `_others` for the chosen queries, searching all photos or those in a filter."""
        distances, seqs = np.full(len(vectors), np.inf), np.full(len(vectors), NOBODY, np.int64)
        duplicates = seqs.copy()
        waiting, count = chosen, 2
        while len(waiting):
            answers = self.snapshot.nearest(vectors[waiting], count, self.distance_form, self.densities, only=only)
            again = []
            for row, best in zip(waiting.tolist(), answers, strict=True):
                own = np.atleast_1d(numbers[row]).tolist()
                others = [(p, distance) for p, distance in best if int(self.snapshot.items[p]) not in own]
                other = next((o for o in others if not self.copies.of_query(queries[row], o[0])), None)
                if len(others) > (other is not None) and self.copies.of_query(queries[row], others[0][0]):
                    duplicates[row] = self.snapshot.seqs[others[0][0]]
                if other is not None:
                    distances[row], seqs[row] = other[1], self.snapshot.seqs[other[0]]
                elif len(best) == count:  # the answer holds only duplicates and the own item
                    again.append(row)
            waiting, count = np.array(again, dtype=np.int64), 4 * count
        return distances[chosen], seqs[chosen], duplicates[chosen]

    def _own(
        self, vectors: NDArray[np.float32], numbers: NDArray[np.int32], positions: Rows, known: Draws, rows: Rows
    ) -> tuple[Floats, Rows]:
        """Return the distance and seq of the nearest photo of the own item, except the query's own photos.

        They are at `positions` (n,) or (n, m). With several own items per query, `numbers` (n, i), it is the nearest
        photo of any of them.
        """
        if numbers.ndim == 2:
            each = [self._own(vectors, column, positions, known, rows) for column in numbers.T]
            apart, nearest = (np.stack(values, axis=1) for values in zip(*each, strict=True))
            best = apart.argmin(axis=1)[:, None]
            return np.take_along_axis(apart, best, 1)[:, 0], np.take_along_axis(nearest, best, 1)[:, 0]
        snapshot = self.snapshot
        items = np.where(snapshot.live, snapshot.items, NOBODY)
        order = np.argsort(items, kind="stable")
        ordered = items[order]
        starts, stops = (np.searchsorted(ordered, numbers, side=side) for side in ("left", "right"))
        starts = np.where(numbers == NOBODY, stops, starts)  # empty range: the item is not in the gallery
        distances, seqs = np.full(len(vectors), np.inf), np.full(len(vectors), NOBODY, np.int64)
        same = np.zeros(len(vectors), dtype=bool)
        if len(known) and len(order):
            newest = np.where(stops > starts, snapshot.seqs[order[stops - 1]], NOBODY)
            old = known.own_nearest[rows]
            same = (rows >= 0) & (newest < known.until) & ((old == NOBODY) | self._lives(old))
            distances[same], seqs[same] = known.own[rows[same]], old[same]
        around = self.distance_form.densities(vectors)
        others = {row: order[starts[row] : stops[row]] for row in np.flatnonzero(~same).tolist()}
        others = {row: found[(found[:, None] != positions[row]).all(axis=1)] for row, found in others.items()}
        for group, stacked in _by_size({row: found for row, found in others.items() if len(found)}):
            read = snapshot.vectors(stacked)
            for row in group:
                found, part, read = others[row], read[: len(others[row])], read[len(others[row]) :]
                squared = squared_distance(vectors[[row]], part)
                apart = self.distance_form.transform(squared, around[row], self.densities[0][found])
                best = int(apart.argmin())
                distances[row], seqs[row] = apart[best], snapshot.seqs[found[best]]
        return distances, seqs

    def _lives(self, seqs: Rows) -> NDArray[np.bool_]:
        """Return whether each of the photos (n,) is live."""
        return lives(self.snapshot, seqs)


def _by_size(positions: Mapping[int, Rows]) -> Iterator[tuple[list[int], Rows]]:
    """Yield groups of rows with their positions in one array, of at least READ positions except in the last group."""
    rows: list[int] = []
    count = 0
    for row, found in positions.items():
        rows, count = [*rows, row], count + len(found)
        if count >= READ:
            yield rows, np.concatenate([positions[r] for r in rows])
            rows, count = [], 0
    if rows:
        yield rows, np.concatenate([positions[r] for r in rows])
