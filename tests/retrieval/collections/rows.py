"""The same photos for every source: ids in random order, items of one to many photos, names that need care."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

DIM = 16
SIZES = {
    "Köln 7": 13,
    "苹果": 9,
    "o'brien": 8,
    "007": 7,
    "7": 6,
    "100%": 5,
    'a"b\\c': 4,
    "x, y": 3,
    "é": 2,
    "e\u0301": 1,
}


@dataclass(frozen=True)
class Rows:
    """Photos (n,) with unit vectors (n, d); the ids are the numbers 0 to n - 1 in random order."""

    ids: NDArray[np.int64]
    items: list[str]
    groups: list[str]
    vectors: NDArray[np.float32]

    def sorted(self) -> Rows:
        """Return the photos by id, so that each id is the number of its row."""
        order = np.argsort(self.ids)
        items, groups = ([names[row] for row in order] for names in (self.items, self.groups))
        return Rows(self.ids[order], items, groups, self.vectors[order])


def make_rows(seed: int = 0) -> Rows:
    """Return 58 photos of 10 items in 3 groups."""
    rng = np.random.default_rng(seed)
    items = [item for item, size in SIZES.items() for _ in range(size)]
    centres = {item: rng.normal(size=DIM) for item in SIZES}
    vectors = np.stack([centres[item] + rng.normal(size=DIM) / 2 for item in items])
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    order = rng.permutation(len(items))
    group_of = dict(zip(SIZES, ["nord", "süd", "ost"] * 4, strict=False))
    items = [items[row] for row in order]
    groups = [group_of[item] for item in items]
    return Rows(rng.permutation(len(items)), items, groups, vectors[order].astype(np.float32))


def write_lines(path: Path, names: Sequence[str]) -> str:
    """Write an id per line, and return the path."""
    path.write_text("".join(f"{name}\n" for name in names), encoding="utf-8")
    return str(path)


def many_rows(items: int = 60, seed: int = 1) -> Rows:
    """Return photos of many numbered items of 1 to 5 photos, in pairs of a group each."""
    rng = np.random.default_rng(seed)
    centres = rng.normal(size=(items, DIM))
    of = rng.permutation(np.repeat(np.arange(items), 1 + np.arange(items) % 5))
    vectors = centres[of] + rng.normal(size=(len(of), DIM)) / 2
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names, groups = [f"{item:03}" for item in of], [f"pair {item // 2}" if item < 20 else "" for item in of]
    return Rows(rng.permutation(len(of)), names, groups, vectors.astype(np.float32))
