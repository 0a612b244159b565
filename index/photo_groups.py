"""Groups of photos of one item that are searched together, as one query.

Such a query is searched with the mean of its photos' unit vectors, scaled to length one.
Shapes: n photos, g groups, m photos of a group, d = embedding size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from .drawable import Photos
from .sampling import every_item_once, hashed
from .stored import Rows

SHORTEST = 1e-6  # length of a mean that has a direction


def mean_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of each group of unit vectors (g, m, d), scaled to length one (g, d).

    The order of the photos makes no difference. Where vectors cancel out, the smallest one stands for the group.
    """
    if vectors.shape[1] == 1:
        return vectors[:, 0]
    exact = vectors.astype(np.float64)
    total = np.sort(exact, axis=1).sum(axis=1)
    lengths = np.linalg.norm(total, axis=1, keepdims=True)
    first = np.array([min(group.tolist()) for group in exact]) if (lengths < SHORTEST).any() else total
    scaled = np.where(lengths < SHORTEST, first, total / np.maximum(lengths, SHORTEST))
    return np.asarray(scaled, dtype=np.float32)


def group_rows(items: NDArray[Any], keys: NDArray[Any], photos_per_query: int) -> Rows:
    """Return rows (g, m) that divide n photos, in the order of `keys` (n,), into groups of m photos of one item."""
    order = np.lexsort((keys, items))
    ordered = items[order]
    starts = np.searchsorted(ordered, ordered, side="left")
    stops = np.searchsorted(ordered, ordered, side="right")
    complete = np.arange(len(items)) - starts < (stops - starts) // photos_per_query * photos_per_query
    return np.asarray(order[complete].reshape(-1, photos_per_query))


def sample_groups(snapshot: Photos, excluded: NDArray[np.int32], photos_per_query: int, *, most: int) -> Rows:
    """Return the positions (g, m) of up to `most` groups of live photos, every item once before any item twice."""
    positions = np.flatnonzero(snapshot.live)
    if len(excluded):
        positions = positions[~np.isin(snapshot.items[positions], excluded)]
    items = snapshot.items[positions]
    counts = np.bincount(items) if len(items) else np.zeros(0, np.int64)
    enough = np.flatnonzero(counts >= photos_per_query)
    if len(enough) > most:  # then one group each of some items fills the sample
        enough = enough[np.argsort(hashed(enough), kind="stable")[:most]]
    positions = positions[np.isin(items, enough)]
    groups = positions[group_rows(snapshot.items[positions], hashed(snapshot.seqs[positions]), photos_per_query)]
    first = groups[:, 0]
    return np.asarray(groups[every_item_once(snapshot.items[first], hashed(snapshot.seqs[first]))[:most]])


def rows_of(known: Rows, seqs: Rows) -> Rows:
    """Return the row of each of `seqs`, (n,) or (n, m), in `known`, -1 if it is not there."""
    rows = np.full(len(seqs), -1, np.int64)
    if seqs.ndim == 2:
        known_rows = {tuple(group): row for row, group in enumerate(known.reshape(-1, seqs.shape[1]).tolist())}
        return np.array([known_rows.get(tuple(group), -1) for group in seqs.tolist()], dtype=np.int64)
    if len(known):
        order = np.argsort(known)
        places = np.minimum(np.searchsorted(known[order], seqs), len(known) - 1)
        rows = np.where(known[order[places]] == seqs, order[places], -1)
    return np.asarray(rows)
