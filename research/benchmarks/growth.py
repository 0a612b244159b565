"""Realised FPIR of a growing gallery, with a threshold that is set at its first size and then only tightened.

    python -m research.benchmarks.growth [--output runs/anchoring]

Two populations of items, with frozen features and plain distance:

- real: all items of birds, cars, covers and grocery in one catalogue. Two thirds are known and fill the gallery.
- resampled: as many items as needed, made of those of birds, cars and grocery. An item is at the mean of a real one,
  moved by half the difference of two others of its data set. Its photos differ from it as gallery photos of random
  items of the data set differ from theirs, but by 0.4 as much, as with a model that was trained for such items.

The gallery gets its operating point at 60 items and then grows as `index --auto-calibrate tighten` adds photos. At each
step, the FPIR is measured with unknown items, which are never in the gallery, and items are weighted equally. It is
measured with photos of the same kind as the gallery's, as the promise assumes, and with query photos, which are of
another kind in covers and grocery. The TPIR is measured with query photos of the items in the gallery. For comparison,
the same rates are given for a threshold that is set again at each step.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

import numpy as np

from index.contents import POINT
from index.distance import PLAIN, DistanceForm
from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.operating_point import ESTIMATED, OperatingPoint
from retrieval.bundle.served_point import stored_point
from retrieval.catalogue.read import read_catalogue
from retrieval.indexing.pipeline import MEASURED
from retrieval.metrics.identification import SearchScores, search_scores
from retrieval.threshold.drawn_distances import DrawnDistances
from retrieval.threshold.gallery_anchor import GalleryAnchor

from .anchoring import SETS, TARGET, features_of
from .tables import Recorder, parser_of

REAL_STEPS = (60, 120, 200, 300, 380)
RESAMPLED_SETS = ("birds", "cars", "grocery")  # covers have one gallery photo per item
RESAMPLED_STEPS = (60, 120, 300, 600, 1000, 2000, 3000)
STEPS = {"real": REAL_STEPS, "resampled": RESAMPLED_STEPS}
UNKNOWN = 1000  # resampled items
PHOTOS = 3  # gallery photos of a resampled item
WIDTH = 0.5  # of the differences that move resampled items
SPREAD = 0.4  # of their photos, relative to frozen features: as of a model that was trained for such items


@dataclass(frozen=True)
class Photos:
    """Photos of items: unit vectors (n, d) and item ids (n,)."""

    vectors: np.ndarray
    items: np.ndarray

    def of(self, items: np.ndarray) -> Photos:
        """Return the photos of some items."""
        chosen = np.isin(self.items, items)
        return Photos(self.vectors[chosen], self.items[chosen])


@dataclass(frozen=True)
class Population:
    """Items with photos for a gallery and photos to search with; the first `known` items fill the gallery in order."""

    shown: Photos
    asked: Photos
    known: np.ndarray
    unknown: np.ndarray


@dataclass(frozen=True)
class Features:
    """Centred features (n, w) of real photos, with the item, the data set, and the gallery flag of each, (n,)."""

    values: np.ndarray
    items: np.ndarray
    sets: np.ndarray
    in_gallery: np.ndarray

    @classmethod
    def read(cls, data: Path, output: Path, backbone: str) -> Features:
        """Return the features of all photos, centred on the training photos."""
        values, items, sets, shown, trained = [], [], [], [], []
        for name in (*SETS, "grocery"):
            photos = read_catalogue(data / "data" / name / f"{name}.csv")
            values.append(features_of(photos, output / f"{name}.npy", backbone))
            items += [f"{name} {photo.item_id}" for photo in photos]
            sets += [name] * len(photos)
            shown += [photo.role == "gallery" or photo.source == "store_a" for photo in photos]
            trained += [photo.partition == "train" for photo in photos]
        features = np.concatenate(values)
        features = features - features[np.array(trained)].mean(axis=0)
        return cls(features, np.array(items), np.array(sets), np.array(shown))

    def real(self, generator: np.random.Generator) -> Population:
        """Return the real items in a random order, two thirds of them known."""
        items = generator.permutation(np.unique(self.items))
        known = REAL_STEPS[-1]
        shown, asked = (
            Photos(_unit(self.values[part]), self.items[part]) for part in (self.in_gallery, ~self.in_gallery)
        )
        return Population(shown, asked, items[:known], items[known:])

    def resampled(self, generator: np.random.Generator) -> Population:
        """Return items made of those real ones that have several gallery photos."""
        shown = Features(*(part[self.in_gallery] for part in (self.values, self.items, self.sets, self.in_gallery)))
        _, first, numbers, photos = np.unique(shown.items, return_index=True, return_inverse=True, return_counts=True)
        sums = np.stack([np.bincount(numbers, weights=column) for column in shown.values.T], axis=1)
        means = sums / photos[:, None]
        wider = (
            SPREAD * np.sqrt(photos / np.maximum(photos - 1, 1))[numbers]
        )  # photos are too near to a mean of themselves
        apart = (shown.values - means[numbers]) * wider[:, None]
        of_set = {name: np.unique(numbers[shown.sets == name]) for name in RESAMPLED_SETS}
        count = RESAMPLED_STEPS[-1] + UNKNOWN
        base = generator.choice(np.concatenate(list(of_set.values())), count)
        moved, rows = np.empty((count, means.shape[1])), np.empty((count, PHOTOS + 1), np.int64)
        for name, members in of_set.items():
            chosen = np.flatnonzero(shown.sets[first][base] == name)
            two, three = generator.choice(members, (2, len(chosen)))
            moved[chosen] = WIDTH * (means[two] - means[three])
            rows[chosen] = generator.choice(np.flatnonzero(shown.sets == name), (len(chosen), PHOTOS + 1))
        items = np.arange(count).astype(str)
        vectors = _unit((means[base] + moved)[:, None] + apart[rows])
        gallery = Photos(vectors[:, :PHOTOS].reshape(-1, vectors.shape[2]), np.repeat(items, PHOTOS))
        return Population(gallery, Photos(vectors[:, PHOTOS], items), items[:-UNKNOWN], items[-UNKNOWN:])


def _unit(features: np.ndarray) -> np.ndarray:
    return np.asarray(features / np.linalg.norm(features, axis=-1, keepdims=True), dtype=np.float32)


@dataclass(frozen=True)
class Frozen:
    """The parts of a bundle that anchoring reads, for a model that was not fitted on items of the gallery."""

    bundle_id: str = "frozen"
    distance_form: DistanceForm = PLAIN
    operating_point: OperatingPoint = field(default_factory=lambda: OperatingPoint(2.0, ESTIMATED, TARGET))
    fitted: Fitted = field(default_factory=lambda: Fitted.of([], []))
    calibration: None = None


@dataclass(frozen=True)
class Step:
    """One size of a growing gallery: thresholds by how they were set, with the rates that they realise."""

    thresholds: Mapping[str, float]
    fpir: Mapping[str, float]  # of photos as in the gallery
    users: Mapping[str, float]  # FPIR of query photos
    tpir: Mapping[str, float]


def grow(population: Population, steps: Sequence[int]) -> list[Step]:
    """Grow a gallery in steps of items, and measure each."""
    bundle = cast(Bundle, Frozen())
    dim, found = population.shown.vectors.shape[1], []
    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(Path(folder) / "g", dim=dim, embedding_id="frozen") as gallery,
    ):
        for before, now in zip((0, *steps[:-1]), steps, strict=True):
            photos = population.shown.of(population.known[before:now])
            for start in range(0, len(photos.items), MEASURED):
                some = slice(start, start + MEASURED)
                names = [f"{before}-{number}" for number in range(len(photos.items))[some]]
                gallery.add(names, photos.items[some].tolist(), photos.vectors[some])
            if not before:
                anchor = GalleryAnchor(bundle, tighten=True)
                first = anchor.anchored(gallery, anchor.draws(gallery))
                if first.point is None:
                    raise RuntimeError(first.why_not)
                anchor.write(gallery, first, action="calibrate")
                anchor.follow(gallery)
            found.append(_step(population, gallery, population.known[:now]))
    return found


def _step(population: Population, gallery: Gallery, known: np.ndarray) -> Step:
    bundle = cast(Bundle, Frozen())
    point, anchor = stored_point(gallery.kept(POINT), bundle), GalleryAnchor(bundle)
    fresh = anchor.anchored(gallery, anchor.draws(gallery)).point
    if point is None or fresh is None:
        raise RuntimeError("the gallery has no threshold")
    shown, asked = population.shown, population.asked
    gallery_photos = shown.of(known)
    alike, users = (_searches(side.of(population.unknown), gallery_photos) for side in (shown, asked))
    mated = _searches(asked.of(known), gallery_photos)
    exact = DrawnDistances.of_items(alike.impostor, alike.labels).at_share(TARGET)
    thresholds = {"tightened": point.threshold, "fresh": fresh.threshold, "exact": exact}
    right = mated.own < mated.impostor
    return Step(
        thresholds,
        {name: _fpir(alike, threshold) for name, threshold in thresholds.items()},
        {name: _fpir(users, threshold) for name, threshold in thresholds.items()},
        {name: float(np.mean(right & (mated.own <= threshold))) for name, threshold in thresholds.items()},
    )


def _searches(queries: Photos, gallery: Photos) -> SearchScores:
    return search_scores(queries.vectors, queries.items, gallery.vectors, gallery.items)


def _fpir(scores: SearchScores, threshold: float) -> float:
    """Return the share of searches that return a match, with items weighted equally."""
    return float(np.mean([(scores.impostor[scores.labels == i] <= threshold).mean() for i in np.unique(scores.labels)]))


COLUMNS = (
    *("items", "threshold", "realised FPIR for 0.05", "highest of the repetitions", "of query photos", "TPIR"),
    *("threshold set afresh", "its realised FPIR", "its TPIR", "TPIR at exactly 0.05"),
)


def main() -> None:
    """Measure the populations and write a table of each."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/anchoring"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=10)
    parser.add_argument(
        "--populations",
        nargs="*",
        choices=STEPS,
        default=list(STEPS),
        help="Each has its own record.",
    )
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    features = Features.read(data, arguments.output, str(data / "weights/mobilenet_v1_0.75_224"))
    for name in arguments.populations:
        with Recorder(f"growth-{name}", arguments) as record:
            record.table("growth", COLUMNS, rows(features, name, STEPS[name], arguments.repetitions))


def rows(features: Features, name: str, steps: Sequence[int], repetitions: int) -> list[tuple[str, ...]]:
    """Return the rows of a table, one for each size."""
    runs = []
    for seed in range(repetitions):
        generator = np.random.default_rng(seed)
        population = features.real(generator) if name == "real" else features.resampled(generator)
        runs.append(grow(population, steps))
    table = []
    for number, items in enumerate(steps):
        some = [run[number] for run in runs]
        fpir = [step.fpir["tightened"] for step in some]

        def mean(what: str, how: str, some: Sequence[Step] = some) -> str:
            return f"{np.mean([getattr(step, what)[how] for step in some]):.3f}"

        table.append(
            (
                f"{items:,}",
                mean("thresholds", "tightened"),
                f"{np.mean(fpir):.3f} ± {np.std(fpir):.3f}",
                f"{max(fpir):.3f}",
                *(mean(what, "tightened") for what in ("users", "tpir")),
                *(mean(what, "fresh") for what in ("thresholds", "fpir")),
                *(mean("tpir", how) for how in ("fresh", "exact")),
            )
        )
    return table


if __name__ == "__main__":
    main()
