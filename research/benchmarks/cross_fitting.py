"""The threshold of a model that was trained on the catalogue itself: `train --all-items`, with heads on a frozen model.

    python -m research.benchmarks.cross_fitting --output runs/cross_fitting

Some items of a set are known. A head is trained on their gallery photos, and five without a fifth of the items each, by
the training that users run. The gallery gets its threshold for FPIR 5 % from the draws of the five models, and is
searched with query photos of the known items and of all others. Beside it: the threshold from draws of the items by the
model that was fitted on them, and the pretrained model with its own draws. Rates weight items equally. An interrupted
benchmark continues.
"""

from __future__ import annotations

import csv
import json
import os
import shutil
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from tqdm import tqdm

from index.photos.arrays import ArrayPhotos
from index.search.item_distance import ItemDistance
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.splits import Splits, make_evaluation_protocol, photos_in_protocol
from retrieval.errors import CalibrationError
from retrieval.measuring.draws import OWN, AllDraws
from retrieval.measuring.folds import FoldVectors, fold_draws
from retrieval.measuring.rule import set_threshold
from training.config import LITE0, Settings
from training.data.sources import FEATURES, save_features
from training.loop.run import Run
from training.loop.train import train, train_on_all_items

from .anchoring import own_draws
from .item_distance import quantile
from .pretrained import in_gallery
from .promise import Photos, Searches, gallery_of
from .tables import Recorder, parser_of

TARGET, DISTANCE, VIEWS, SMALL_GALLERY = 0.05, ItemDistance(), 2, 20
SETS = ("birds", "cars", "grocery")


@dataclass(frozen=True)
class Data:
    """The photos of a set, with the features of their views (V, n, c) by the frozen model."""

    photos: list[Photo]
    views: torch.Tensor

    @property
    def items(self) -> np.ndarray:
        """Item of each photo (n,)."""
        return np.array([photo.item_id for photo in self.photos])

    def of(self, run: Run | None) -> Photos:
        """Return the photos with vectors of a run's head, or of the pretrained model."""
        head = torch.nn.Identity() if run is None else run.best_model().head
        with torch.inference_mode():
            vectors = F.normalize(head(self.views[0]), dim=1).numpy()
        return Photos(vectors, self.items, in_gallery(self.photos))


@dataclass(frozen=True)
class Outcome:
    """FPIR of unknown items and TPIR of known ones, at a threshold and at exactly the target."""

    fpir: float
    served: float
    exact: float


def features_of(name: str, catalogue: Path, output: Path) -> Data:
    """Return a set with its features, which a training of one epoch on all of its photos writes."""
    listed = read_catalogue(catalogue)
    items = tuple(sorted({photo.item_id for photo in listed}))
    photos = photos_in_protocol(listed, items, make_evaluation_protocol(listed))
    settings = Settings(str(catalogue), backbone=LITE0, precompute=VIEWS, epochs=1, select="last", loggers="")
    path = output / f"{name}-features"
    if not (path / FEATURES).exists():
        shutil.rmtree(path, ignore_errors=True)
        train(settings, path, splits=Splits(items, (), (), ()))
    return Data(photos, load_file(path / FEATURES)["fit"])


def train_heads(data: Data, known: np.ndarray, output: Path, *, seed: int) -> Run:
    """Train on the gallery photos of known items, with their features from those of the set."""
    shutil.rmtree(output, ignore_errors=True)
    output.mkdir(parents=True)
    rows = np.flatnonzero(np.isin(data.items, known) & in_gallery(data.photos))
    with (output / "known.csv").open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["path", "item_id"])
        writer.writerows([[data.photos[row].path, data.photos[row].item_id] for row in rows.tolist()])
    views = data.views.numpy()
    features = {"fit": views[:, rows], "searched": views[0, :0], "before": np.zeros((0, 0), np.float32)}
    save_features(output / "run", features, read_catalogue(output / "known.csv"), [])
    settings = Settings(
        str(output / "known.csv"), backbone=LITE0, precompute=VIEWS, all_items=True, seed=seed, loggers=""
    )
    return train_on_all_items(settings, output / "run")


def outcome(gallery: ArrayPhotos, draws: AllDraws, photos: Photos, known: np.ndarray) -> Outcome:
    """Return what the threshold from some draws realises; a gallery without one accepts nothing."""
    try:
        threshold = set_threshold(draws, TARGET, items=gallery.item_count).threshold
    except CalibrationError:
        threshold = -1.0
    mated, strange = (
        Searches.of(gallery, photos.of(items).asked) for items in (known, np.setdiff1d(photos.items, known))
    )
    exact = quantile(strange.distances, strange.items)
    return Outcome(strange.matched(threshold), mated.found(threshold), mated.found(exact))


def division(data: Data, size: int, output: Path, *, seed: int) -> dict[str, Outcome]:
    """Return the outcomes of one choice of known items."""
    known = np.random.default_rng(seed).permutation(np.unique(data.items))[:size]
    run = train_heads(data, known, output, seed=seed)
    fitted, plain = data.of(run), data.of(None)
    found: dict[str, Outcome] = {}
    for name, photos in (("fitted", fitted), ("pretrained", plain)):
        gallery = gallery_of(photos.of(known).shown)
        found[name] = outcome(gallery, own_draws(gallery, DISTANCE), photos, known)
        if name == "fitted":
            vectors = [data.of(fold).of(known).shown.vectors for fold in run.folds]
            ids = np.array(gallery.photo_ids)
            folds = FoldVectors("", ids, np.stack(vectors, axis=1).astype(np.float16))
            left_out = {item: k for k, fold in enumerate(run.folds) for item in {*known} - {*fold.splits.fit}}
            own = fold_draws(gallery, folds, left_out, DISTANCE)[OWN]
            draws = AllDraws("", {OWN: own}, frozenset(left_out))
            found["cross-fitted"] = outcome(gallery, draws, photos, known)
    return found


def stored(data: Data, size: int, output: Path, *, seed: int) -> dict[str, Outcome]:
    """Return the outcomes of one choice of known items, which are measured once."""
    path = output / f"{size}-{seed}.json"
    if not path.exists():
        found = division(data, size, output / "run", seed=seed)
        path.write_text(json.dumps({name: asdict(outcome) for name, outcome in found.items()}))
    return {name: Outcome(**rates) for name, rates in json.loads(path.read_text()).items()}


def main() -> None:
    """Measure every set and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/cross_fitting"), help="Folder for features and runs.")
    parser.add_argument("--divisions", type=int, default=10)
    parser.add_argument("--only", choices=SETS, help="Measure this set alone.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")) / "data"
    columns = ("data", "items", "FPIR, cross-fitted", "TPIR", "of the TPIR at exactly 0.05")
    more = ("FPIR, draws of fitted items", "FPIR, pretrained", "TPIR, pretrained")
    with Recorder("cross_fitting", arguments) as record:
        record.table("heads", (*columns, *more))
        for name in SETS:
            if arguments.only not in (None, name):
                continue
            every = features_of(name, data / name / f"{name}.csv", arguments.output)
            for size in (len(np.unique(every.items)) // 2, SMALL_GALLERY):
                runs = [
                    stored(every, size, arguments.output / name, seed=seed)
                    for seed in tqdm(range(arguments.divisions), desc=f"{name}, {size} items")
                ]
                cross, fitted, plain = (
                    [run[each] for run in runs] for each in ("cross-fitted", "fitted", "pretrained")
                )
                served, exact = (np.mean([getattr(one, rate) for one in cross]) for rate in ("served", "exact"))
                record.add(
                    name,
                    f"{size}",
                    _fpir(cross),
                    f"{served:.3f}",
                    f"{served / exact:.2f}",
                    _fpir(fitted),
                    _fpir(plain),
                    f"{np.mean([one.served for one in plain]):.3f}",
                )


def _fpir(found: list[Outcome]) -> str:
    rates = np.array([one.fpir for one in found])
    return f"{rates.mean():.3f} ± {rates.std():.3f}"


if __name__ == "__main__":
    main()
