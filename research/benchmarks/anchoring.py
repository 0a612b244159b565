"""Compare the target FPIR of anchored thresholds with the FPIR on unknown items, with frozen features.

    python -m research.benchmarks.anchoring

The items outside the training partition are split at random into halves: known items, whose gallery photos fill a
gallery, and unknown items. The threshold is set twice, from own draws and with labelled queries of some known items,
and tested with the query photos of the unknown items. No unknown item is in the gallery or helps to set the threshold.
Means and standard deviations are over the repetitions. For comparison, the spread of true items is that of thresholds
set on half of the unknown items and tested on the other half.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from index.gallery import Gallery
from index.search.distance import accepts
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from index.search.leave_one_out import OWN, KeptDraws, Probes, make_draws
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import CalibrationError
from retrieval.indexing.worker import CONTENT
from retrieval.metrics.identification import SearchScores, search_scores
from retrieval.threshold.anchor import anchor
from retrieval.threshold.error_rates import LABELLED, DrawnDistances
from retrieval.threshold.labelled_queries import gallery_shift
from training.backbones import backbone_preprocessing, load_backbone
from training.config import Settings
from training.data.reader import PhotoReader, evaluation_batches
from training.evaluation.embedding import to_device

from .rotations import rotated
from .tables import Recorder, parser_of

SETS = ("birds", "cars", "covers")
LABELLED_ITEMS = 25  # known items with labelled queries
TARGET = 0.05
NOTHING = -1.0  # a threshold that accepts nothing
LEAST_ITEMS = 15  # below the usual 20, so that grocery can be measured


@dataclass(frozen=True)
class Data:
    """Photos of a data set: unit vectors (n, d), item ids, and gallery flags. The other photos are queries."""

    name: str
    vectors: np.ndarray
    items: np.ndarray
    in_gallery: np.ndarray
    item_distance: ItemDistance = NEAREST_PHOTO

    def of(self, items: Collection[str]) -> Data:
        """Return the photos of some items."""
        chosen = np.isin(self.items, list(items))
        return replace(self, vectors=self.vectors[chosen], items=self.items[chosen], in_gallery=self.in_gallery[chosen])

    def rows(self, items: Collection[str], *, in_gallery: bool) -> np.ndarray:
        """Return the mask (n,) of the gallery or query photos of some items."""
        return np.asarray(np.isin(self.items, list(items)) & (self.in_gallery == in_gallery))

    def probes(self, chosen: np.ndarray) -> Probes:
        """Return the photos of a mask (n,) as probes."""
        return Probes(self.vectors[chosen], _names(chosen), self.items[chosen].tolist())

    def draws(self, shown: np.ndarray, probes: Mapping[str, Probes], *, fitted: Collection[str] = ()) -> KeptDraws:
        """Return the draws of a gallery of the photos of a mask (n,), without own draws of fitted items."""
        with (
            tempfile.TemporaryDirectory() as folder,
            Gallery.create(Path(folder) / "g", dim=self.vectors.shape[1], embedding_id="model") as gallery,
        ):
            gallery.add(_names(shown), self.items[shown].tolist(), self.vectors[shown])
            return make_draws(
                gallery,
                model="model",
                item_distance=self.item_distance,
                probes=probes,
                is_fitted=lambda item, _: item in fitted,
                content_key=CONTENT,
            )

    def searches(self, queries: np.ndarray, gallery: np.ndarray) -> SearchScores:
        """Return the distances of the queries of a mask (n,) in the gallery of another one."""
        v, items = self.vectors, self.items
        return search_scores(v[queries], items[queries], v[gallery], items[gallery], item_distance=self.item_distance)


@torch.inference_mode()
def features_of(photos: Sequence[Photo], path: Path, backbone: str) -> np.ndarray:
    """Return the mean of the last feature map of each photo, (n, w), from the file at `path` if it exists."""
    if not path.exists():
        network, _ = load_backbone(backbone)
        settings = Settings(catalogue="", backbone=backbone)
        sight = backbone_preprocessing(backbone, size=settings.input_size, crop_ratio=settings.crop_ratio)
        network.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        maps = (
            network(to_device(pixels, sight, torch.device("cpu"))).mean(dim=(2, 3)).numpy()
            for pixels in evaluation_batches(PhotoReader(photos, sight), range(len(photos)))
        )
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, np.concatenate(list(maps)))
    return np.asarray(np.load(path, allow_pickle=False))


def data_sets(data: Path, output: Path, backbone: str) -> list[Data]:
    """Return the data sets, centred on their training photos; grocery once for each half of its families."""
    found = []
    for name in SETS:
        photos = read_catalogue(data / "data" / name / f"{name}.csv")
        features = features_of(photos, output / f"{name}.npy", backbone)
        found.append(_data(name, photos, features, np.array([photo.role == "gallery" for photo in photos])))
    photos = read_catalogue(data / "data" / "grocery" / "grocery.csv")
    features = features_of(photos, output / "grocery.npy", backbone)
    in_gallery = np.array([photo.source == "store_a" for photo in photos])
    names = ("grocery, even families", "grocery, odd families")
    return found + [_data(name, rotated(photos, r), features, in_gallery) for r, name in enumerate(names)]


def _data(name: str, photos: Sequence[Photo], features: np.ndarray, in_gallery: np.ndarray) -> Data:
    trained = np.array([photo.partition == "train" for photo in photos])
    vectors = features - features[trained].mean(axis=0)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    items = np.array([photo.item_id for photo in photos])
    return Data(name, vectors[~trained].astype(np.float32), items[~trained], in_gallery[~trained], ItemDistance())


@dataclass(frozen=True)
class Repetition:
    """One split of the items: thresholds by how they were set, and searches for known and unknown items."""

    thresholds: dict[str, float]
    unknown: SearchScores
    known: SearchScores

    def fpir(self, threshold: float) -> float:
        """Return the share of searches for unknown items that return a match, with items weighted equally."""
        return float(np.mean(list(item_rates(self.unknown, threshold).values())))

    def tpir(self, threshold: float) -> float:
        """Return the share of searches for known items whose own item comes first."""
        return float(np.mean(self.known.correct <= threshold))


def item_rates(scores: SearchScores, threshold: float) -> dict[str, float]:
    """Return the share of each item's searches that return a match of another item."""
    hits = accepts(scores.impostor, threshold)
    return {str(item): float(hits[scores.labels == item].mean()) for item in np.unique(scores.labels)}


def repeat_exact(data: Data, seed: int) -> Repetition:
    """Split the items as `repeat` does, and search, with the threshold at exactly the target only."""
    items = np.random.default_rng(seed).permutation(np.unique(data.items))
    known = np.isin(data.items, items[: len(items) // 2])
    shown, asked, unknown = known & data.in_gallery, known & ~data.in_gallery, ~known & ~data.in_gallery
    scores = data.searches(unknown, shown)
    return Repetition({"exact": limit(scores)}, scores, data.searches(asked, shown))


def repeat(data: Data, seed: int) -> Repetition:
    """Split the items, set the thresholds, and search."""
    generator = np.random.default_rng(seed)
    items = generator.permutation(np.unique(data.items))
    known, labelled = np.isin(data.items, items[: len(items) // 2]), np.isin(data.items, items[:LABELLED_ITEMS])
    shown, asked = known & data.in_gallery, known & ~data.in_gallery
    unknown = ~known & ~data.in_gallery
    queries = data.probes(labelled & asked)
    draws = data.draws(shown, {LABELLED: queries})
    own = replace(draws, sources={OWN: draws.sources[OWN]})
    gallery_items = len(np.unique(data.items[shown]))
    thresholds = {
        name: threshold_of(each, gallery_items=gallery_items) for name, each in (("own", own), ("labelled", draws))
    }
    scores = data.searches(unknown, shown)
    thresholds["exact"] = limit(scores)
    drawn = generator.permutation(np.unique(scores.labels))[: len(items) // 4]
    thresholds["true items"] = limit(scores.where(np.isin(scores.labels, drawn)))
    rest = scores.where(~np.isin(scores.labels, drawn))
    thresholds["true items, realised"] = float(np.mean(rest.impostor <= thresholds["true items"]))
    return Repetition(thresholds, scores, data.searches(asked, shown))


def threshold_of(draws: KeptDraws, *, gallery_items: int) -> float:
    """Return the threshold that a gallery gets from its draws; NOTHING if it gets none."""
    point = point_of(draws, gallery_items=gallery_items)
    return NOTHING if point is None else point.threshold


def point_of(draws: KeptDraws, *, gallery_items: int, target: float = TARGET) -> OperatingPoint | None:
    """Return the operating point that a gallery gets from its draws.

    Returns None if there are too few draws, or no threshold that keeps the target finds an item.
    """
    try:
        return anchor(
            draws.sources,
            target,
            gallery_items=gallery_items,
            shift=gallery_shift(draws.sources),
            fitted=draws.fitted,
            least_items=LEAST_ITEMS,
        )
    except CalibrationError:
        return None


def limit(scores: SearchScores, target: float = TARGET) -> float:
    """Return the greatest threshold with FPIR at most a target on searches, items weighted equally."""
    return DrawnDistances.of_items(scores.impostor, scores.labels).at_share(target)


def _names(chosen: np.ndarray) -> list[str]:
    return [f"p{number}" for number in np.flatnonzero(chosen)]


def main() -> None:
    """Measure every data set and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/anchoring"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=20)
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    columns = (
        *("data", "known items", "set on", "FPIR realised for 0.05", "TPIR", "of the TPIR at exactly 0.05"),
        "spread, of that of true items",
        "divisions without a threshold",
    )
    with Recorder("anchoring", arguments) as record:
        record.table("frozen", columns)
        for each in data_sets(data, arguments.output, str(data / "weights/mobilenet_v1_0.75_224")):
            runs = [repeat(each, seed) for seed in range(arguments.repetitions)]
            exact = np.mean([run.tpir(run.thresholds["exact"]) for run in runs])
            reference = np.std([run.thresholds["true items, realised"] for run in runs])
            for name in ("own", "labelled"):
                realised = np.array([run.fpir(run.thresholds[name]) for run in runs])
                tpir = np.mean([run.tpir(run.thresholds[name]) for run in runs])
                record.add(
                    each.name,
                    str(len(np.unique(each.items)) // 2),
                    name,
                    f"{realised.mean():.3f} ± {realised.std():.3f}",
                    f"{tpir:.3f}",
                    f"{tpir / exact:.2f}",
                    f"{realised.std() / reference:.2f}",
                    str(sum(run.thresholds[name] == NOTHING for run in runs)),
                )


if __name__ == "__main__":
    main()
