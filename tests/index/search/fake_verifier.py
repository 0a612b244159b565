"""A verifier of packed integers: its inliers are the integers that a query and a photo have in common.

An integer is a key point. Its word is the remainder by WORDS, and its signature has as many bits as it holds WORDS.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from index.gallery import Gallery
from index.search.details import BITS, Points, Voting

from ..vectors import DIM, unit

POINTS = 400  # different integers
WORDS = 100  # of which each is one of the words, by its remainder


def pack(points: Sequence[int] | np.ndarray) -> bytes:
    """Return features of some integers."""
    return np.asarray(points, dtype=np.uint16).tobytes()


def points_of(features: bytes) -> np.ndarray:
    return np.frombuffer(features, dtype=np.uint16)


def signatures(numbers: np.ndarray) -> np.ndarray:
    return (np.uint64(1) << (numbers // WORDS).astype(np.uint64)) - np.uint64(1)


def agreement(*factors: float) -> np.ndarray:
    """Return the factors by the number of differing bits, 0 for more bits."""
    return np.array([*factors, *[0.0] * (BITS + 1 - len(factors))], dtype=np.float32)


def some_features(count: int, seed: int) -> list[bytes]:
    """Return features of photos: 0 to 12 integers of a window of 40 each."""
    generator = np.random.default_rng(seed)
    starts = generator.integers(0, POINTS - 40, count)
    return [pack(start + generator.integers(0, 40, generator.integers(0, 13))) for start in starts.tolist()]


@dataclass
class FakeVerifier:
    """Verifies by counting shared integers."""

    items: int = 4
    photos: int = 2
    voted: int = 3
    features_key: str = "f"
    compared: int = 0  # pairs

    @property
    def key(self) -> str:
        return f"fake {self.items} {self.photos} {self.voted}"

    @property
    def voting(self) -> Voting:
        weights = np.log(np.arange(WORDS) + 1).astype(np.float32)  # word 0 counts nothing
        return Voting("fake votes", weights, agreement(1.0, 0.5, 0.25))

    def points(self, features: bytes) -> Points:
        numbers = points_of(features)
        return Points(numbers % WORDS, signatures(numbers))

    def asked(self, features: bytes) -> Points:
        """Return the word of each integer, and the next one."""
        found = self.points(features)
        words = np.stack([found.words, (found.words + 1) % WORDS], axis=1)
        return Points(words, np.repeat(found.signatures[:, None], 2, axis=1))

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> np.ndarray:
        self.compared += len(photos)
        points = set(points_of(query).tolist())
        shared = [len(points.intersection(points_of(photo).tolist())) for photo in photos]
        return np.array([count if count > 1 else 0 for count in shared], dtype=np.int64)


def fill(gallery: Gallery, photos: range, items: int, seed: int, *, upsert: bool = False) -> None:
    """Add photos p0, p1, ... of random items with random vectors and features."""
    generator = np.random.default_rng(seed)
    labels = [f"i{number}" for number in generator.integers(0, items, len(photos)).tolist()]
    vectors, features = unit(len(photos), seed), some_features(len(photos), seed)
    metadata = [
        {"brand": "ab"[number % 2], "item": item, "name": f"p{number}"}
        for number, item in zip(photos, labels, strict=True)
    ]
    gallery.add([f"p{i}" for i in photos], labels, vectors, metadata=metadata, features=features, upsert=upsert)


def verified_gallery(path: Path, count: int = 120, items: int = 40) -> Gallery:
    """Return a gallery with features, in segments of different sizes and with removed photos."""
    gallery = Gallery.create(
        path, dim=DIM, embedding_id="e", columns=dict.fromkeys(["brand", "item", "name"], "text"), features_key="f"
    )
    fill(gallery, range(count), items, 1)
    for step in range(4):
        fill(gallery, range(count + 3 * step, count + 3 * step + 3), items, 10 + step)
    gallery.remove(photo_ids=["p3", "p7", f"p{count + 1}"])
    return gallery
