"""Samples of photos, evenly spaced or with every item once before any item twice, and a test of live photos."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .drawable import Photos
from .stored import Rows

SMALLEST = 8  # photos per draw that are sorted for the sample


def sample(snapshot: Photos, excluded: NDArray[np.int32], *, most: int) -> Rows:
    """Return the positions of up to `most` live photos, with every item once before any item twice.

    The sample depends only on the seqs of the photos, not on the order of changes.
    """
    positions = np.flatnonzero(snapshot.live)
    if len(excluded):
        positions = positions[~np.isin(snapshot.items[positions], excluded)]
    keys = hashed(snapshot.seqs[positions])
    if len(keys) > SMALLEST * most:  # sort only the smallest keys if they belong to enough items
        smallest = np.argpartition(keys, SMALLEST * most)[: SMALLEST * most]
        if len(np.unique(snapshot.items[positions[smallest]])) >= most:
            positions, keys = positions[smallest], keys[smallest]
    return np.asarray(positions[every_item_once(snapshot.items[positions], keys)[:most]])


def evenly_spaced(snapshot: Photos, count: int) -> Rows:
    """Return the positions of up to `count` live photos, evenly spaced in insertion order."""
    positions = np.flatnonzero(snapshot.live)
    count = min(count, len(positions))
    return np.asarray(positions[(2 * np.arange(count) + 1) * len(positions) // max(1, 2 * count)])


def every_item_once(items: NDArray[np.generic], keys: NDArray[np.generic]) -> Rows:
    """Return an order of n photos, by `keys` (n,), with every item once before any item twice."""
    order = np.lexsort((keys, items))
    ordered = items[order]
    first = np.r_[True, ordered[1:] != ordered[:-1]] if len(items) else np.zeros(0, bool)
    starts = np.maximum.accumulate(np.where(first, np.arange(len(items)), 0))
    turn = np.arange(len(items)) - starts  # number of photos of the same item before this one
    return np.asarray(order[np.lexsort((keys[order], turn))])


def hashed(numbers: Rows) -> NDArray[np.uint64]:
    """Return a pseudo-random hash of each integer (SplitMix64)."""
    mixed = numbers.astype(np.uint64) + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return np.asarray(mixed ^ (mixed >> np.uint64(31)))


def lives(snapshot: Photos, seqs: Rows) -> NDArray[np.bool_]:
    """Return whether each of the photos is live; `seqs` has any shape."""
    if not len(snapshot.seqs):
        return np.zeros(seqs.shape, dtype=bool)
    places = np.minimum(np.searchsorted(snapshot.seqs, seqs), len(snapshot.seqs) - 1)
    return np.asarray((snapshot.seqs[places] == seqs) & snapshot.live[places])
