"""Galleries of clustered photos, in segments of different sizes and with removed photos."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from index.gallery import Gallery
from index.search.neighbours import Neighbour

from ..vectors import DIM, unit


def clustered(count: int, items: int, seed: int, spread: float = 0.8) -> tuple[np.ndarray, list[str]]:
    """Return unit vectors around the centre of their item, in shuffled order, with items of uneven sizes."""
    generator = np.random.default_rng(seed)
    labels = generator.integers(0, items, count) * generator.integers(0, 2, count)  # half of them in item 0
    labels = np.where(labels == 0, generator.integers(0, items, count), labels)
    vectors = unit(items, 1000)[labels] + spread * unit(count, seed)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    return vectors.astype(np.float32), [f"i{label}" for label in labels]


def filled(path: Path, *, count: int = 300, items: int = 40, groups: dict[str, str] | None = None) -> Gallery:
    """Return a gallery in segments of different sizes, with removed photos."""
    vectors, labels = clustered(count, items, 3)
    gallery = Gallery.create(path, dim=DIM, embedding_id="e", columns={"half": "text"})
    metadata = [{"half": "ab"[i % 2], "group": (groups or {}).get(label, "")} for i, label in enumerate(labels)]
    for start, stop in ((0, 200), (200, 203), (203, count)):
        some = range(start, min(stop, count))
        gallery.add(
            [f"p{i}" for i in some], [labels[i] for i in some], vectors[some], metadata=[metadata[i] for i in some]
        )
    gallery.remove(photo_ids=["p5", "p202"])
    return gallery


def plainly(answers: list[list[Neighbour]]) -> list[list[tuple[str, str, float]]]:
    return [[(found.item_id, found.photo_id, found.distance) for found in best] for best in answers]
