"""Measure queries of several photos with geometric verification: one to three phone photos of a cover.

    python -m research.benchmarks.verification_photos --output runs/verification

As in `research.benchmarks.verification`: vectors of a pretrained model as it is, vocabulary and strength from items
outside the test partition. A gallery is filled with the clean pictures of the test items, alone or with the photos of
one shop of grocery, and searched as it is by a server, with the default shortlist. A query has photos of one cover by
different phones; every combination of phones is asked. A search for an unknown item has a filter that leaves the
query's own item out.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from pathlib import Path

import numpy as np

from index.distance import PLAIN, DistanceForm
from index.gallery import Gallery
from index.photo_groups import mean_vectors
from index.verified import Features, VerifiedDistance
from retrieval.metrics.identification import SearchScores
from retrieval.verification.verifier import GeometricVerifier

from .tables import Recorder, parser_of
from .verification import EVERY, choose, divided, found, recall_at_1, searched
from .verification_anchoring import Remembered
from .verification_data import Photos, load

COUNTS = (1, 2, 3)
COLUMNS = (
    *("gallery", "photos per query", "queries", "R@1 without", "R@1"),
    *("TPIR at exactly 0.05 without", "TPIR at exactly 0.05"),
)


@dataclass(frozen=True)
class Queries:
    """Queries of several photos: unit vectors (n, d), items (n,), and the features of each photo."""

    vectors: np.ndarray
    items: np.ndarray
    features: Sequence[Features]


def queries_of(photos: Photos, count: int) -> Queries:
    """Return all queries of `count` photos of one item."""
    rows = [
        group
        for item in np.unique(photos.items)
        for group in combinations(np.flatnonzero(photos.items == item).tolist(), count)
    ]
    features: list[Features] = [tuple(photos.packed[row] for row in group) for group in rows]
    return Queries(mean_vectors(photos.vectors[np.array(rows)]), photos.items[[group[0] for group in rows]], features)


def scores(gallery: Gallery, queries: Queries, form: DistanceForm) -> SearchScores:
    """Search a gallery with queries; the distance to an own item that is not first is not measured."""
    own, other = np.full((2, len(queries.items)), np.inf)
    for item in np.unique(queries.items):
        rows = np.flatnonzero(queries.items == item)
        vectors, features = queries.vectors[rows], [queries.features[row] for row in rows.tolist()]
        nearest = gallery.search(vectors, 1, distance_form=form, features=features)
        rest = gallery.search(vectors, 1, where=f"item != '{item}'", distance_form=form, features=features)
        own[rows] = [hit.distance if hit.item_id == item else np.inf for (hit,) in nearest]
        other[rows] = [hit.distance for (hit,) in rest]
    return SearchScores(queries.items, own, other, gallery.items)


def filled(folder: Path, photos: Photos, verifier: GeometricVerifier) -> Gallery:
    """Return a gallery of photos with their features."""
    gallery = Gallery.create(
        folder,
        dim=photos.vectors.shape[1],
        embedding_id="model",
        columns={"item": "text"},
        features_key=verifier.features_key,
    )
    items = photos.items.tolist()
    names, metadata = [f"p{number}" for number in range(len(items))], [{"item": item} for item in items]
    gallery.add(names, items, photos.vectors, metadata=metadata, features=photos.packed)
    return gallery


def measured(name: str, shown: Photos, asked: Photos, verifier: GeometricVerifier) -> Iterator[list[str]]:
    """Yield the row of each number of photos per query."""
    form = VerifiedDistance(PLAIN, Remembered(verifier))
    with tempfile.TemporaryDirectory() as folder, filled(Path(folder) / "g", shown, verifier) as gallery:
        for count in COUNTS:
            queries = queries_of(asked, count)
            both = [scores(gallery, queries, each) for each in (PLAIN, form)]
            figures = *map(recall_at_1, both), *(float(found(each).mean()) for each in both)
            yield [name, str(count), str(len(queries.items)), *(f"{figure:.3f}" for figure in figures)]


def main() -> None:
    """Measure and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/verification"), help="Folder for computed features.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    photos, shelves = (load(name, data, arguments.output) for name in ("covers", "grocery"))
    tuned = photos.where(photos.partition("train", "calibration"))
    verifier = GeometricVerifier.fit(tuned.local)
    asked, shown = divided(tuned.described(verifier))
    strength = choose(searched(asked, shown, replace(verifier, items=EVERY, photos=EVERY)), asked)
    verifier = verifier.with_fusion(replace(verifier.fusion, strength=strength))
    asked, shown = divided(photos.where(photos.partition("test")).described(verifier))
    mixed = Photos.joined(shown, shelves.where(shelves.source("store_a")).described(verifier))
    with Recorder("verification_photos", arguments) as record:
        record.table("covers", COLUMNS)
        for name, gallery in (("covers", shown), ("covers and grocery", mixed)):
            for row in measured(name, gallery, asked, verifier):
                record.add(*row)


if __name__ == "__main__":
    main()
