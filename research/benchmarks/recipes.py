"""Recipes for a head on a pretrained backbone and objectives for its checkpoint, on folds of the training items.

    python -m research.benchmarks.recipes --features runs/pretrained --output runs/recipes --most 10

EfficientNet-Lite0 embeds each photo of birds, cars and grocery once (the features of `research.benchmarks.pretrained`).
A linear embedding is trained on them with each recipe. Recipes are compared on two folds of the training partition's
items: a model is trained on one fold and measured on the other, whose items it has not seen. Each cell (recipe, data
set, fold, seed) is a file under --output; a call computes at most --most missing cells, and records all that are there.

For the selection, the vectors of the held-out items of birds and cars after each epoch are kept. These items are
divided at random into halves, 10 times: an objective selects an epoch on one half, and the other half measures it.

The input size is compared with features at the default size of `train` (--larger), on the same folds: the features as
they are, and the projection that training starts from.

With --test, the default recipe is trained on the training partition as `train` does, with a fifth of its items for the
selection, and measured as in `research.benchmarks.pretrained` on the other items.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from torch import nn

from retrieval.catalogue.read import Photo, read_catalogue
from training.config import DIMS, LITE0, SIZES, Settings
from training.data.folds import item_folds
from training.data.splits import make_evaluation_protocol, make_splits, photos_in_protocol
from training.evaluation.evaluate import item_labels, make_evaluation_split, validation_metrics
from training.export.head_gain import embed, train_head
from training.export.pretrained import Pretrained
from training.export.projection import choose_projection
from training.loop.head_start import start_head
from training.loop.selection import Selection

from .anchoring import Data, repeat_exact
from .pretrained import features_in, in_gallery, unit
from .recipe_selection import record_selection
from .rotations import rotated
from .tables import Recorder, parser_of

SETS = ("birds", "cars", "grocery")
FOLDS, SEEDS, TEST_SEEDS, ROTATIONS, REPETITIONS = 2, 1, 3, 2, 20
METRICS = ("R@1", "MAP@R", "mean TPIR", "TPIR", "OPIS", "balanced")
AS_IS, FITTED, START = "features as they are", "features, fitted", "start of the embedding"
SELECTED = {(recipe, name) for recipe in ("default", "128 dimensions, random start") for name in ("birds", "cars")}
RECIPES: Mapping[str, dict[str, Any]] = {
    "default": {},
    "128 dimensions, random start": {"dim": 128, "head_start": "random"},
    "1,280 dimensions": {"dim": 1280},
    "400 steps": {"epochs": 20, "epoch_steps": 20},
    "random start": {"head_start": "random"},
    "128 dimensions": {"dim": 128},
    "with TCM": {"regularizer": "tcm"},
    "multi_similarity": {"loss": "multi_similarity"},
    "recall_at_k": {"loss": "recall_at_k"},
    "proxy_anchor": {"loss": "proxy_anchor"},
    "proxy_anchor with TCM": {"loss": "proxy_anchor", "regularizer": "tcm"},
    "head learning rate 1e-4": {"head_learning_rate": 1e-4},
}


class Cell(NamedTuple):
    """One training on one fold."""

    recipe: str
    data: str
    fold: int
    seed: int

    def path(self, folder: Path) -> Path:
        """Return the path of the vectors of each epoch."""
        return folder / f"{self.recipe.replace(' ', '-').replace(',', '')}-{self.data}-{self.fold}-{self.seed}.npz"


@dataclass(frozen=True)
class Set:
    """A data set: its photos and their features (n, c)."""

    photos: list[Photo]
    features: np.ndarray

    def of(self, items: Sequence[str]) -> tuple[list[Photo], np.ndarray]:
        """Return the photos of some items that the protocol uses, and their features."""
        protocol = make_evaluation_protocol(self.photos)
        wanted = {id(photo) for photo in photos_in_protocol(self.photos, items, protocol)}
        rows = [row for row, photo in enumerate(self.photos) if id(photo) in wanted]
        return [self.photos[row] for row in rows], self.features[rows]

    def measure(self, items: Sequence[str], vectors: np.ndarray) -> dict[str, float]:
        """Return the validation metrics of items by the unit vectors of `of(items)`."""
        photos, _ = self.of(items)
        split = make_evaluation_split("held out", photos, items, make_evaluation_protocol(self.photos))
        return validation_metrics(split, vectors, item_labels(photos), target_fpir=0.05)

    def folds(self) -> list[tuple[tuple[str, ...], tuple[str, ...]]]:
        """Return (items to fit, items held out) of each fold of the training partition."""
        names = sorted({photo.item_id for photo in self.photos if photo.partition == "train"})
        return item_folds(self.photos, names, folds=FOLDS, seed=0)


def compute(cell: Cell, data: Set, folder: Path) -> None:
    """Train one cell, and write the vectors of the held-out items before training and after each epoch."""
    fit, held = data.folds()[cell.fold]
    photos, features = data.of(fit)
    _, unseen = data.of(held)
    epochs: list[np.ndarray] = []

    def keep(_: int, head: nn.Linear) -> None:
        epochs.append(unit(embed(head, unseen)).astype(np.float16))

    settings = Settings.from_dict({"catalogue": "", "dim": DIMS[True], "precompute": 1, "seed": cell.seed,
                                   "head_start": "fit", **RECIPES[cell.recipe]})  # fmt: skip
    train_head(photos, features, settings, on_epoch=keep)
    folder.mkdir(parents=True, exist_ok=True)
    target = cell.path(folder)
    np.savez(target.with_suffix(".partial.npz"), vectors=np.stack(epochs))
    target.with_suffix(".partial.npz").replace(target)


def curve_of(cell: Cell, data: Set, folder: Path) -> list[dict[str, float]]:
    """Return the metrics of each epoch of a cell, on all held-out items."""
    held = data.folds()[cell.fold][1]
    path = cell.path(folder).with_suffix(".json")
    if not path.exists():
        with np.load(cell.path(folder), allow_pickle=False) as file:
            curve = [data.measure(held, unit(vectors.astype(np.float64))) for vectors in file["vectors"]]
        path.write_text(json.dumps(curve))
    return list(json.loads(path.read_text()))


def frozen(name: str, data: Set, kind: str, folder: Path) -> dict[str, float]:
    """Return the mean metrics over the folds of the features as they are, or of their projection."""
    path = folder / f"{kind.replace(' ', '-').replace(',', '')}-{name}.json"
    if path.exists():
        return dict(json.loads(path.read_text()))
    found = []
    for fit, held in data.folds():
        photos, features = data.of(fit)
        vectors = data.of(held)[1].astype(np.float64)
        if kind == FITTED:
            projection = choose_projection(photos, features).projection
            vectors = vectors if projection is None else projection(vectors)
        found.append(data.measure(held, unit(vectors)))
    means = {metric: float(np.mean([each[metric] for each in found])) for metric in METRICS}
    path.write_text(json.dumps(means))
    return means


def start_of(data: Set, folder: Path, name: str, size: int) -> dict[str, dict[str, float]]:
    """Return the mean metrics over the folds of the features as they are, and of the start of the embedding."""
    path = folder / f"size-{size}-{name}.json"
    if not path.exists():
        found: dict[str, list[dict[str, float]]] = {AS_IS: [], START: []}
        for fit, held in data.folds():
            photos, features = data.of(fit)
            head = nn.Linear(features.shape[1], DIMS[True])
            start_head(head, features, item_labels(photos))
            unseen = data.of(held)[1]
            for kind, vectors in ((AS_IS, unseen), (START, embed(head, unseen))):
                found[kind].append(data.measure(held, unit(vectors.astype(np.float64))))
        means = {kind: {m: float(np.mean([run[m] for run in runs])) for m in METRICS} for kind, runs in found.items()}
        path.write_text(json.dumps(means))
    return dict(json.loads(path.read_text()))


def record_sizes(sizes: Mapping[int, Mapping[str, Set]], folder: Path, record: Recorder) -> None:
    """Record the features and the start of the embedding by data set and input size."""
    record.table("size", ("data and input size", "features", *METRICS))
    for name, size in itertools.product(SETS, sizes):
        if name in sizes[size]:
            for kind, found in start_of(sizes[size][name], folder, name, size).items():
                record.add(f"{name}, {size} px", kind, *(_shown(found[metric], metric) for metric in METRICS))


def record_recipes(sets: Mapping[str, Set], cells: Sequence[Cell], folder: Path, record: Recorder) -> None:
    """Record the mean metrics of the last epoch of every recipe, and the number of its finished cells."""
    record.table("recipes", ("data", "recipe", *METRICS, "cells"))
    for name, data in sets.items():
        for kind in (AS_IS, FITTED):
            found = frozen(name, data, kind, folder)
            record.add(name, kind, *(_shown(found[metric], metric) for metric in METRICS), "–")
        for recipe in RECIPES:
            wanted = [cell for cell in cells if (cell.recipe, cell.data) == (recipe, name)]
            known = [cell for cell in wanted if cell.path(folder).exists()]
            if known:
                last = [curve_of(cell, data, folder)[-1] for cell in known]
                shown = [_shown(float(np.mean([run[metric] for run in last])), metric) for metric in METRICS]
                record.add(name, recipe, *shown, f"{len(known)} of {len(wanted)}")


def head_settings(seed: int) -> Settings:
    """Return the default settings of a head on a pretrained backbone."""
    return Settings("", precompute=1, seed=seed, dim=DIMS[True], head_start="fit")


def tested(photos: list[Photo], data: Set, seed: int) -> tuple[float, int]:
    """Return the TPIR at exactly FPIR 5 % on untrained items of a head by the default recipe, and its epoch."""
    here = Set(photos, data.features)
    splits = make_splits(photos, seed=0)
    fit, features = here.of(splits.fit)
    validation = here.of(splits.validation)[1]
    settings = head_settings(seed)
    selection = Selection(settings.select, 0)
    best: list[np.ndarray] = []

    def keep(epoch: int, head: nn.Linear) -> None:
        metrics = here.measure(splits.validation, unit(embed(head, validation)))
        named = {f"validation {name}": value for name, value in metrics.items()}
        if not epoch:
            selection.start(named)
        if not epoch or selection.add(epoch, named):
            best[:] = [unit(embed(head, here.features))]

    train_head(fit, features, settings, on_epoch=keep)
    untrained = np.array([photo.partition != "train" for photo in photos])
    items = np.array([photo.item_id for photo in photos])
    each = Data("head", best[0][untrained], items[untrained], in_gallery(photos)[untrained])
    runs = [repeat_exact(each, number) for number in range(REPETITIONS)]
    assert selection.best is not None  # noqa: S101
    return float(np.mean([run.tpir(run.thresholds["exact"]) for run in runs])), selection.best.epoch


def record_test(sets: Mapping[str, Set], folder: Path, record: Recorder) -> None:
    """Record the default recipe on items that are not trained on, by data set and rotation."""
    record.table("test", ("data", "TPIR at exactly 0.05", "seeds", "epochs kept"))
    for name, data in sets.items():
        for rotation in range(ROTATIONS if name == "grocery" else 1):
            photos = rotated(data.photos, rotation) if name == "grocery" else data.photos
            found = []
            for seed in range(TEST_SEEDS):
                path = folder / f"test-{name}-{rotation}-{seed}.json"
                if not path.exists():
                    path.write_text(json.dumps(tested(photos, data, seed)))
                found.append(json.loads(path.read_text()))
            rates = np.array([rate for rate, _ in found])
            title = f"{name}, rotation {rotation}" if name == "grocery" else name
            kept = ", ".join(str(epoch) for _, epoch in found)
            record.add(title, f"{rates.mean():.3f} ± {rates.std(ddof=1):.3f}", str(len(found)), kept)


def load(names: Sequence[str], folder: Path, model: Pretrained) -> dict[str, Set]:
    """Return data sets with their features by a model."""
    place, sets = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")), {}
    for name in names:
        photos = read_catalogue(place / "data" / name / f"{name}.csv")
        sets[name] = Set(photos, features_in(folder / f"{name}.npy", model, photos))
    return sets


def planned() -> Iterator[Cell]:
    """Yield all cells, the most important first."""
    for seed, recipe, fold, name in itertools.product(range(SEEDS), RECIPES, range(FOLDS), SETS):
        yield Cell(recipe, name, fold, seed)


def main() -> None:
    """Compute missing cells, and record all finished ones."""
    parser = parser_of(__doc__)
    parser.add_argument("--features", type=Path, default=Path("runs/pretrained"), help="Folder with features.")
    parser.add_argument("--larger", type=Path, help="Folder with features at the default input size of `train`.")
    parser.add_argument("--larger-only", action="append", choices=SETS, help="Compare the size on this set only.")
    parser.add_argument("--output", type=Path, default=Path("runs/recipes"), help="Folder for finished cells.")
    parser.add_argument("--most", type=int, default=1000, help="Largest number of cells to compute in this call.")
    parser.add_argument("--test", action="store_true", help="Measure the default recipe on untrained items.")
    arguments = parser.parse_args()
    sets = load(SETS, arguments.features, Pretrained.load(LITE0))
    sizes = {Pretrained.load(LITE0).preprocessing.size: sets}
    if arguments.larger:
        larger = Pretrained.load(LITE0, size=SIZES[LITE0])
        sizes[larger.preprocessing.size] = load(arguments.larger_only or SETS, arguments.larger, larger)
    cells = list(planned())
    for cell in [cell for cell in cells if not cell.path(arguments.output).exists()][: arguments.most]:
        compute(cell, sets[cell.data], arguments.output)
        print(cell, flush=True)
    with Recorder("recipes", arguments) as record:
        record_recipes(sets, cells, arguments.output, record)
        found = [cell for cell in cells if cell.path(arguments.output).exists()]
        known = [cell for cell in found if (cell.recipe, cell.data) in SELECTED]
        record_selection(sets, known, arguments.output, record)
        record_sizes(sizes, arguments.output, record)
        if arguments.test:
            record_test(sizes[max(sizes)], arguments.output, record)


def _shown(value: float, metric: str) -> str:
    return f"{value:.4f}" if metric == "OPIS" else f"{value:.3f}"


if __name__ == "__main__":
    main()
