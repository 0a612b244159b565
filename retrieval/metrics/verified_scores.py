"""Searches with a verified distance, measured by draws from a gallery (`index.search.verified_search`).

Shapes: n queries, p photos, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
from numpy.typing import NDArray

from index.gallery import Gallery
from index.search.distance import Floats
from index.search.leave_one_out import NOBODY, Queries
from index.search.verified import VerifiedDistance, Verifier

from .identification import SearchScores

BATCH = 1000  # photos that are added together


@dataclass(frozen=True)
class SearchSide:
    """Photos on one side of searches: queries or gallery, p of them."""

    vectors: NDArray[np.float32]  # (p, d) of length 1
    labels: NDArray[np.generic]  # (p,)
    features: Sequence[bytes]
    ids: NDArray[np.generic] | None = None  # (p,) a photo is not compared with the one of the same id


class RememberedInliers:
    """Wraps a verifier, and compares each pair of photos once (an `index.search.verified.Verifier`).

    `known` are the inliers of pairs that a verifier of the same features and matching has compared.
    """

    def __init__(self, verifier: Verifier, known: dict[tuple[bytes, bytes], int] | None = None) -> None:
        self.verifier = verifier
        self.known = {} if known is None else known
        self.key, self.features_key, self.voting = verifier.key, verifier.features_key, verifier.voting
        self.items, self.photos, self.voted = verifier.items, verifier.photos, verifier.voted
        self.points, self.asked = verifier.points, verifier.asked
        self.fused: Callable[[Floats, NDArray[np.int64]], Floats] = verifier.fused

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the number of inliers between a query and each of the photos (m,)."""
        new = [photo for photo in photos if (query, photo) not in self.known]
        for photo, count in zip(new, self.verifier.inliers(query, new).tolist(), strict=True):
            self.known[query, photo] = count
        return np.array([self.known[query, photo] for photo in photos], dtype=np.int64)


def verified_scores(
    queries: SearchSide, gallery: SearchSide, distance_forms: Sequence[VerifiedDistance]
) -> list[SearchScores]:
    """Return for each form the distances of every query to its own item and to the nearest other item.

    The forms have verifiers of the same features. The gallery is written to a temporary folder.
    """
    features_key, labels = distance_forms[0].verifier.features_key, gallery.labels.astype(str)
    with (
        TemporaryDirectory() as folder,
        Gallery.create(
            Path(folder) / "gallery", dim=gallery.vectors.shape[1], embedding_id="scores", features_key=features_key
        ) as place,
    ):
        for start in range(0, len(labels), BATCH):
            some = range(start, min(start + BATCH, len(labels)))
            place.add(
                [str(row) for row in some],
                labels[some].tolist(),
                _unit(gallery.vectors[some]),
                features=[gallery.features[row] for row in some],
            )
        numbers = place.item_numbers(sorted(set(queries.labels.astype(str).tolist())))
        stored = {} if gallery.ids is None else {photo: row for row, photo in enumerate(gallery.ids.tolist())}
        ids = [None] * len(queries.labels) if queries.ids is None else queries.ids.tolist()
        asked = Queries(
            _unit(queries.vectors),
            np.array([numbers.get(item, NOBODY) for item in queries.labels.astype(str).tolist()], dtype=np.int32),
            np.array([stored.get(photo, NOBODY) for photo in ids], dtype=np.int64),
            queries.features,
        )
        found = [place.snapshot().verified_search(form).measured(asked, lambda *_: False) for form in distance_forms]
    items = len(np.unique(labels))
    return [SearchScores(queries.labels, each.own, each.distances, items) for each in found]


def _unit(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    exact = vectors.astype(np.float64)
    return np.asarray(exact / np.maximum(np.linalg.norm(exact, axis=1, keepdims=True), 1e-30), dtype=np.float32)
