"""Compare the target FPIR of anchored thresholds with the FPIR on unknown covers, with geometric verification.

    python -m research.benchmarks.verification_anchoring --output runs/verification

As in `research.benchmarks.anchoring`: half of the items outside the training partition are known, and their pictures
fill a gallery; phone photos of the other half test the threshold. Photos are compared once for all repetitions.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.distance import PLAIN, DistanceForm, Floats
from index.draws import Probes
from index.gallery import Gallery
from index.kept_draws import OWN, update_draws
from index.verified import Points, VerifiedDistance
from retrieval.metrics.identification import SearchScores
from retrieval.threshold.drawn_distances import LABELLED, DrawnDistances
from retrieval.verification.verifier import GeometricVerifier

from .anchoring import LABELLED_ITEMS, NOTHING, TARGET, limit, threshold_of
from .tables import Recorder, parser_of
from .verification import EVERY, choose, divided, searched
from .verification_data import Photos, load

GREATEST = "labelled, greatest"  # the greatest threshold that keeps the target on the labelled queries alone


@dataclass(frozen=True)
class Remembered:
    """A verifier that compares two photos once (an `index.verified.Verifier`)."""

    verifier: GeometricVerifier
    known: dict[tuple[bytes, bytes], int] = field(default_factory=dict, repr=False)

    key = property(lambda self: self.verifier.key)
    features_key = property(lambda self: self.verifier.features_key)
    items = property(lambda self: self.verifier.items)
    photos = property(lambda self: self.verifier.photos)
    voted = property(lambda self: self.verifier.voted)
    voting = property(lambda self: self.verifier.voting)

    def points(self, features: bytes) -> Points:
        """Return the key points of a photo (k,)."""
        return self.verifier.points(features)

    def asked(self, features: bytes) -> Points:
        """Return the words that each key point of a query asks (k, a)."""
        return self.verifier.asked(features)

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the number of inliers between a query and each of the photos (m,)."""
        for photo in photos:
            if (query, photo) not in self.known:
                self.known[query, photo] = int(self.verifier.inliers(query, [photo])[0])
        return np.array([self.known[query, photo] for photo in photos], dtype=np.int64)

    def fused(self, distances: Floats, inliers: NDArray[np.int64]) -> Floats:
        """Return distances (m,) lowered by inliers (m,)."""
        return self.verifier.fused(distances, inliers)


@dataclass(frozen=True)
class Found:
    """FPIR on unknown items, TPIR on known ones, and TPIR at exactly the target, by how the threshold was set."""

    fpir: dict[str, float]
    tpir: dict[str, float]
    exact: float
    thresholds: dict[str, float]


def repeat(photos: Photos, form: DistanceForm, features_key: str, seed: int) -> Found:
    """Split the items, set the thresholds, and search."""
    items = np.random.default_rng(seed).permutation(np.unique(photos.items))
    known, labelled = np.isin(photos.items, items[: len(items) // 2]), np.isin(photos.items, items[:LABELLED_ITEMS])
    reference = photos.source("reference")
    shown, asked, unknown = (
        photos.where(rows & turn) for rows, turn in ((known, reference), (known, ~reference), (~known, ~reference))
    )
    probes = photos.where(labelled & ~reference)
    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(
            Path(folder) / "g", dim=photos.vectors.shape[1], embedding_id="model", features_key=features_key
        ) as gallery,
    ):
        gallery.add(names(shown), shown.items.tolist(), shown.vectors, features=shown.packed)
        queries = Probes(probes.vectors, names(probes), probes.items.tolist(), probes.packed)
        draws = update_draws(gallery, None, model="model", distance_form=form, probes={LABELLED: queries})
        outside, inside = (search(gallery, each, form) for each in (unknown, asked))
    own = replace(draws, sources={OWN: draws.sources[OWN]})
    count = len(shown.items)
    thresholds = {name: threshold_of(each, gallery_items=count) for name, each in (("own", own), ("labelled", draws))}
    asked_draws = DrawnDistances.of_source(LABELLED, draws.sources[LABELLED], shift=0.0, fitted=())
    thresholds[GREATEST] = asked_draws.limit(TARGET, certified=False) or NOTHING
    distances = np.array([distance for _, distance in outside])
    right = np.array([item for item, _ in inside]) == asked.items
    near = np.array([distance for _, distance in inside])
    exact = limit(SearchScores(unknown.items, np.full(len(distances), np.inf), distances, count))

    def fpir(threshold: float) -> float:
        hits = distances <= threshold
        return float(np.mean([hits[unknown.items == item].mean() for item in np.unique(unknown.items)]))

    def tpir(threshold: float) -> float:
        return float(np.mean(right & (near <= threshold)))

    rates = [{name: rate(threshold) for name, threshold in thresholds.items()} for rate in (fpir, tpir)]
    return Found(rates[0], rates[1], tpir(exact), thresholds)


def search(gallery: Gallery, queries: Photos, form: DistanceForm) -> list[tuple[str, float]]:
    """Return the nearest item of each query and its distance."""
    answers = gallery.search(queries.vectors, 1, distance_form=form, features=queries.packed)
    return [(answer[0].item_id, answer[0].distance) for answer in answers]


def names(photos: Photos) -> list[str]:
    """Return the id of each photo."""
    return [photo.photo_id for photo in photos.photos]


def main() -> None:
    """Measure and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/verification"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=20)
    arguments = parser.parse_args()
    photos = load("covers", Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")), arguments.output)
    trained = photos.where(photos.partition("train"))
    verifier = GeometricVerifier.fit(trained.local)
    every = replace(verifier, items=EVERY, photos=EVERY)
    asked, shown = divided(trained.described(verifier))
    strength = choose(searched(asked, shown, every), asked)
    verifier = verifier.with_fusion(replace(verifier.fusion, strength=strength))
    others = photos.where(~photos.partition("train")).described(verifier)
    form = VerifiedDistance(PLAIN, Remembered(verifier))
    runs = [repeat(others, form, verifier.features_key, seed) for seed in range(arguments.repetitions)]
    with Recorder("verification_anchoring", arguments) as record:
        columns = (
            "set on",
            "strength",
            "FPIR realised for 0.05",
            "TPIR",
            "of the TPIR at exactly 0.05",
            "without a threshold",
        )
        record.table("covers", columns)
        exact = np.mean([run.exact for run in runs])
        for name in ("own", "labelled", GREATEST):
            realised = np.array([run.fpir[name] for run in runs])
            tpir = np.mean([run.tpir[name] for run in runs])
            empty = str(sum(run.thresholds[name] == NOTHING for run in runs))
            spread = f"{realised.mean():.3f} ± {realised.std():.3f}"
            record.add(name, f"{strength:g}", spread, f"{tpir:.3f}", f"{tpir / exact:.2f}", empty)


if __name__ == "__main__":
    main()
