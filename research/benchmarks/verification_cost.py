"""Measure what geometric verification costs: time of a search in 10,000 photos, disk and memory of a photo.

    OMP_NUM_THREADS=1 python -m research.benchmarks.verification_cost --output runs/verification

The gallery is filled with copies of the photos of covers and grocery: each keeps a random part of the key points, moved
by a random transformation, and a vector with noise. Queries are phone photos of covers. Times are those of the
processor, which other programs on the machine change less than the clock.
"""

from __future__ import annotations

import os
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from index.database import SEGMENTS
from index.distance import PLAIN
from index.features import FEATURES
from index.gallery import Gallery
from index.verified import Points, VerifiedDistance
from index.votes import InvertedLists, PhotoPoints
from retrieval.images import open_image
from retrieval.verification.features import LocalFeatures
from retrieval.verification.verifier import GeometricVerifier

from .tables import Recorder, parser_of
from .verification_data import Photos, load

EVERY = 4  # photos of grocery of which one is copied
BLOCK = 1000  # photos added at a time
STRENGTH = 1.0
MATCHES = 10
NOISE = 0.02  # of a copy's vector, in each dimension


def copied(features: LocalFeatures, generator: np.random.Generator) -> LocalFeatures:
    """Return 80 % to all of the key points, turned and made smaller around the centre, with noise."""
    count = int(len(features) * generator.uniform(0.8, 1))
    rows = np.sort(generator.permutation(len(features))[:count])
    angle, zoom = generator.normal(0, 0.2), generator.uniform(0.6, 1)
    turn = zoom * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
    centre = np.array([features.width, features.height]) / 2
    positions = (features.positions[rows].astype(float) - centre) @ turn.T + centre
    noisy = features.descriptors[rows] + generator.normal(0, 4, (count, features.descriptors.shape[1]))
    descriptors = noisy.round().clip(0, 255).astype(np.uint8)
    return replace(
        features, descriptors=descriptors, positions=positions.astype(np.float16), words=features.words[rows]
    )


def fill(gallery: Gallery, photos: Photos, verifier: GeometricVerifier, count: int) -> list[Points]:
    """Add `count` copies of photos and return the key points of each."""
    generator, points = np.random.default_rng(0), []
    for start in tqdm(range(0, count, BLOCK), desc="gallery"):
        numbers = range(start, min(start + BLOCK, count))
        rows = [number % len(photos.items) for number in numbers]
        vectors = photos.vectors[rows] + generator.normal(0, NOISE, (len(rows), photos.vectors.shape[1]))
        vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
        features = [copied(LocalFeatures.unpack(photos.packed[row]), generator).pack() for row in rows]
        items = [
            f"{photos.items[row]} {number // len(photos.items)}" for row, number in zip(rows, numbers, strict=True)
        ]
        gallery.add([str(number) for number in numbers], items, vectors.astype(np.float32), features=features)
        points += [verifier.points(each) for each in features]
    return points


def median(action: Callable[[int], object], count: int) -> tuple[float, float]:
    """Return the median and the 95 % quantile of the processor time of an action, in milliseconds."""
    seconds = []
    for number in range(count):
        started = time.process_time()
        action(number)
        seconds.append(time.process_time() - started)
    return float(np.median(seconds)) * 1e3, float(np.quantile(seconds, 0.95)) * 1e3


def measure(record: Recorder, gallery: Gallery, queries: Photos, verifier: GeometricVerifier) -> None:
    """Record the time of searches and of what they consist of."""
    form, count = VerifiedDistance(PLAIN, verifier), len(queries.items)
    images = [open_image(photo.path) for photo in queries.photos]
    gallery.search(queries.vectors[:1], MATCHES, distance_form=form, features=queries.packed[:1])
    gallery.search(queries.vectors[:1], MATCHES)

    def without(row: int) -> object:
        return gallery.search(queries.vectors[row : row + 1], MATCHES)

    def verified(row: int) -> object:
        features = queries.packed[row : row + 1]
        return gallery.search(queries.vectors[row : row + 1], MATCHES, distance_form=form, features=features)

    record.table("time", ("step", "p50", "p95"))
    times = {
        "key points of the query": median(lambda row: verifier.describe(images[row]), count),
        "search without verification": median(without, count),
        "search with verification": median(verified, count),
    }
    for step, (middle, high) in times.items():
        record.add(step, f"{middle:.1f} ms", f"{high:.1f} ms")
    detection, plain, second = (middle for middle, _ in times.values())
    record.add("added to a search, in all", f"{detection + second - plain:.1f} ms", "")


def main() -> None:
    """Measure and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/verification"), help="Folder for computed features.")
    parser.add_argument("--photos", type=int, default=10_000)
    parser.add_argument("--queries", type=int, default=60)
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    prints, shelves = (load(name, data, arguments.output) for name in ("covers", "grocery"))
    shelves = shelves.where(np.arange(len(shelves.items)) % EVERY == 0)
    tuned = prints.where(prints.partition("train", "calibration"))
    verifier = GeometricVerifier.fit(tuned.local)
    verifier = verifier.with_fusion(replace(verifier.fusion, strength=STRENGTH))
    asked = prints.where(prints.partition("test") & ~prints.source("reference"))
    rows = np.linspace(0, len(asked.items) - 1, arguments.queries).astype(int)
    asked = asked.where(np.isin(np.arange(len(asked.items)), rows)).described(verifier)
    with Recorder("verification_cost", arguments) as record, tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "gallery"
        dim = prints.vectors.shape[1]
        with Gallery.create(path, dim=dim, embedding_id="e", features_key=verifier.features_key) as gallery:
            points = fill(gallery, Photos.joined(prints, shelves).described(verifier), verifier, arguments.photos)
            measure(record, gallery, asked, verifier)
        lists = InvertedLists.of(PhotoPoints.of(points), verifier.voting)
        held = sum(array.nbytes for array in (lists.starts, lists.rows, lists.signatures, lists.norms))
        stored = sum(file.stat().st_size for file in (path / SEGMENTS).glob(f"*{FEATURES}"))
        record.table("space", ("what", "a photo"))
        record.add("local features on disk", f"{stored / arguments.photos / 1024:.1f} KiB")
        record.add("vector on disk, for comparison", f"{4 * dim / 1024:.1f} KiB")
        record.add("inverted lists in memory", f"{held / arguments.photos / 1024:.1f} KiB")


if __name__ == "__main__":
    main()
