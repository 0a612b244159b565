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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from index.distance import PLAIN
from index.draws import Probes
from index.gallery import Gallery
from index.kept_draws import update_draws
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import CalibrationError
from retrieval.metrics.identification import SearchScores, search_scores
from retrieval.threshold.anchor import anchor
from retrieval.threshold.drawn_distances import LABELLED, DrawnDistances
from retrieval.threshold.query_shift import gallery_shift
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
    """The items of a data set outside the training partition: unit vectors (n, d), item ids, and gallery flags."""

    name: str
    vectors: np.ndarray
    items: np.ndarray
    in_gallery: np.ndarray


@torch.inference_mode()
def features_of(photos: Sequence[Photo], path: Path, backbone: str) -> np.ndarray:
    """Return the mean of the last feature map of each photo, (n, w), from the file at `path` if it exists."""
    if not path.exists():
        network, _ = load_backbone(backbone)
        settings = Settings(catalogue="", backbone=backbone)
        sight = backbone_preprocessing(backbone, size=settings.size, crop_ratio=settings.crop_ratio)
        network.eval().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        maps = (
            network(to_device(pixels, sight, torch.device("cpu"))).mean(dim=(2, 3)).numpy()
            for pixels in evaluation_batches(PhotoReader(photos, sight), len(photos))
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
    return Data(name, vectors[~trained].astype(np.float32), items[~trained], in_gallery[~trained])


@dataclass(frozen=True)
class Repetition:
    """One split of the items: thresholds by how they were set, and searches for known and unknown items."""

    thresholds: dict[str, float]
    unknown: SearchScores
    known: SearchScores

    def fpir(self, threshold: float) -> float:
        """Return the share of searches for unknown items that return a match, with items weighted equally."""
        scores = self.unknown
        hits = scores.impostor <= threshold
        return float(np.mean([hits[scores.labels == item].mean() for item in np.unique(scores.labels)]))

    def tpir(self, threshold: float) -> float:
        """Return the share of searches for known items whose own item comes first."""
        scores = self.known
        return float(np.mean((scores.own <= threshold) & (scores.own < scores.impostor)))


def repeat(data: Data, seed: int) -> Repetition:
    """Split the items, set the thresholds, and search."""
    generator = np.random.default_rng(seed)
    items = generator.permutation(np.unique(data.items))
    known, labelled = np.isin(data.items, items[: len(items) // 2]), np.isin(data.items, items[:LABELLED_ITEMS])
    shown, asked = known & data.in_gallery, known & ~data.in_gallery
    unknown = ~known & ~data.in_gallery
    labelled &= asked
    queries = Probes(data.vectors[labelled], _names(labelled), data.items[labelled].tolist())
    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(Path(folder) / "g", dim=data.vectors.shape[1], embedding_id="frozen") as gallery,
    ):
        gallery.add(_names(shown), data.items[shown].tolist(), data.vectors[shown])
        thresholds = {"own": _anchored(gallery, {}), "labelled": _anchored(gallery, {LABELLED: queries})}
    scores = _searches(data, unknown, shown)
    thresholds["exact"] = _limit(scores)
    drawn = generator.permutation(np.unique(scores.labels))[: len(items) // 4]
    thresholds["true items"] = _limit(scores.where(np.isin(scores.labels, drawn)))
    rest = scores.where(~np.isin(scores.labels, drawn))
    thresholds["true items, realised"] = float(np.mean(rest.impostor <= thresholds["true items"]))
    return Repetition(thresholds, scores, _searches(data, asked, shown))


def _anchored(gallery: Gallery, probes: dict[str, Probes]) -> float:
    """Return the threshold of the gallery; NOTHING if none that keeps the target finds an item."""
    kept = update_draws(gallery, None, model="frozen", distance_form=PLAIN, probes=probes)
    shift = gallery_shift(kept.sources)
    try:
        point = anchor(kept.sources, TARGET, gallery_items=gallery.items, shift=shift, least_items=LEAST_ITEMS)
    except CalibrationError:
        return NOTHING
    return point.threshold


def _searches(data: Data, queries: np.ndarray, gallery: np.ndarray) -> SearchScores:
    v, items = data.vectors, data.items
    return search_scores(v[queries], items[queries], v[gallery], items[gallery])


def _limit(scores: SearchScores) -> float:
    """Return the greatest threshold with FPIR at most the target on searches, items weighted equally."""
    return DrawnDistances.of_items(scores.impostor, scores.labels).at_share(TARGET)


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
