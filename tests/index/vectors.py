"""Vectors and galleries that the tests of this package share."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from index.gallery import Gallery

from ..world import shuffled

DIM = 8


def unit(count: int, seed: int = 0, dim: int = DIM) -> np.ndarray:
    """Return float32 unit vectors (count, dim)."""
    rows = np.random.default_rng(seed).normal(size=(count, dim))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def features_of(vectors: np.ndarray) -> list[bytes]:
    """Return features whose length and content follow from the vectors (n, d)."""
    return [vector.astype(np.float32).tobytes() * (1 + int(abs(vector[0]) * 40)) for vector in vectors]


def with_features(path: Path, count: int = 40, items: int = 10) -> Gallery:
    """Return the gallery of `filled`, with features."""
    gallery = Gallery.create(path, dim=DIM, embedding_id="e", features_key="f")
    vectors = unit(count)
    order = shuffled(range(count))
    ids, labels = [f"p{i}" for i in order], [f"i{i % items}" for i in order]
    gallery.add(ids, labels, vectors[order], features=features_of(vectors[order]))
    return gallery


def filled(path: Path, count: int = 40, items: int = 10) -> Gallery:
    """Return a gallery of photos p0, p1, ... whose vectors are `unit(count)`, dealt out to items i0, i1, ...

    They are added in another order.
    """
    gallery = Gallery.create(path, dim=DIM, embedding_id="e")
    order = shuffled(range(count))
    gallery.add([f"p{i}" for i in order], [f"i{i % items}" for i in order], unit(count)[order])
    return gallery
