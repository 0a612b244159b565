"""Heads on a pretrained backbone: this project's training, pytorch-metric-learning and OML, with their time.

    pip install --no-deps --target peers open-metric-learning==4.0.0 omegaconf antlr4-python3-runtime==4.9.3 validators
    python -m research.benchmarks.head_trainers --features runs/pretrained-224 --peers peers

Every trainer trains a linear embedding on the same features of EfficientNet-Lite0, with the same items, batches of 16
items × 4 photos, steps, AdamW, learning rates and dimensions. The same rule keeps an epoch by the same validation
items. The peers use the sampler, miner and loss of their READMEs, as in `research.benchmarks.trainers`, and start at
random weights; *our start* is the projection that `train` starts at. Test and calibration items measure. CPU seconds
are those of training, with its start but without validation. A finished training is not repeated.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from retrieval.catalogue.read import Photo
from retrieval.metrics.identification import search_scores
from training.backbones.base import Backbone
from training.config import LITE0, SIZES, Settings
from training.data.samplers import Sampler
from training.data.splits import make_splits
from training.evaluation.evaluate import item_labels, mean_tpir
from training.export.head_gain import embed, train_head
from training.export.pretrained import Pretrained
from training.loop.head_start import start_head
from training.loop.recipe import make_sampler
from training.loop.schedule import schedule
from training.loop.selection import Selection
from training.model import EmbeddingModel

from .head_trainer_tables import record_tables
from .pretrained import data_sets, features_in, in_gallery, unit
from .recipes import Set, head_settings
from .tables import Recorder, parser_of
from .trainers import PEERS, Labelled

OURS, PML, OML = "ours", "pytorch-metric-learning", "OML"
FROM_OUR_START = {f"{name}, our start": name for name in (OML, PML)}
TRAINERS = (OURS, PML, *FROM_OUR_START, OML)
SETS = ("birds", "cars", "grocery, rotation 0", "grocery, rotation 1")


class Cell(NamedTuple):
    """One training."""

    data: str
    trainer: str
    seed: int

    def path(self, folder: Path) -> Path:
        """Return the path of its results."""
        return folder / f"{self.data}-{self.trainer}-{self.seed}.json".replace(" ", "-").replace(",", "")


class Features(Labelled):
    """Features of photos."""

    def __init__(self, features: np.ndarray, labels: Sequence[int]) -> None:
        self._features = torch.from_numpy(features)
        self.labels = list(labels)

    def __getitem__(self, position: int) -> tuple[Tensor, int]:
        return self._features[position], self.labels[position]


class Given(Backbone):
    """Replaces the backbone whose features are given."""

    pooled = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, features: Tensor) -> Tensor:
        """Return features (n, c) as maps (n, c, 1, 1)."""
        return features[:, :, None, None]


@dataclass(frozen=True)
class Task:
    """What a peer trains."""

    model: EmbeddingModel
    settings: Settings
    sampler: Sampler


class Watch:
    """Measures the head after each epoch; the time of this does not count as training."""

    def __init__(self, data: Set, select: str) -> None:
        self.data = data
        splits = make_splits(data.photos, seed=0)
        self.fit, self.features = data.of(splits.fit)
        self._held = splits.validation
        self._validation = data.of(splits.validation)[1]
        self._selection = Selection(select, 0)
        self.untrained = np.array([photo.partition != "train" for photo in data.photos])
        self.curve: list[dict[str, float]] = []
        self.kept = np.zeros((0, 0), np.float32)  # vectors of all photos
        self._seconds, self._resumed = 0.0, time.process_time()

    def __call__(self, epoch: int, head: nn.Linear) -> None:
        """Measure a head after an epoch (0 = before training)."""
        self._seconds += time.process_time() - self._resumed
        metrics = self.data.measure(self._held, unit(embed(head, self._validation)))
        named = {f"validation {name}": value for name, value in metrics.items()}
        if not epoch:
            self._selection.start(named)
        vectors = unit(embed(head, self.data.features))
        if not epoch or self._selection.add(epoch, named):
            self.kept = vectors
        self.curve.append({"seconds": self._seconds, "mean TPIR": self._mean_tpir(vectors)})
        self._resumed = time.process_time()

    @property
    def epoch(self) -> int:
        """The epoch that is kept."""
        assert self._selection.best is not None  # noqa: S101
        return self._selection.best.epoch

    def _mean_tpir(self, vectors: np.ndarray) -> float:
        shown, items = in_gallery(self.data.photos), np.array([photo.item_id for photo in self.data.photos])
        asked, gallery = self.untrained & ~shown, self.untrained & shown
        return mean_tpir(search_scores(vectors[asked], items[asked], vectors[gallery], items[gallery]), 0.05)


def train_peer(name: str, watch: Watch, settings: Settings, *, fitted: bool) -> None:
    """Train a head with a peer, from random weights or from the fitted projection."""
    labels = item_labels(watch.fit)
    settings = schedule(settings, photos=len(watch.fit), items=len(set(labels.tolist())))
    torch.manual_seed(settings.seed)
    np.random.seed(settings.seed)  # noqa: NPY002, the peers' samplers draw from it
    model = EmbeddingModel(Given(watch.features.shape[1]), dim=settings.embedding_size, pooling="average")
    if fitted:
        start_head(model.head, watch.features, labels)
    epochs = iter(range(settings.epochs + 1))
    watch(next(epochs), model.head)
    task = Task(model, settings, make_sampler(settings, watch.fit))
    PEERS[name](task, Features(watch.features, labels.tolist()), lambda: watch(next(epochs), model.head))


def compute(cell: Cell, data: Set, folder: Path) -> None:
    """Train one cell, and write its curve and the vectors of the epoch that is kept."""
    settings = head_settings(cell.seed)
    watch = Watch(data, settings.select)
    if cell.trainer == OURS:
        train_head(watch.fit, watch.features, settings, on_epoch=watch)
    else:
        name = FROM_OUR_START.get(cell.trainer, cell.trainer)
        train_peer(name, watch, settings, fitted=cell.trainer in FROM_OUR_START)
    items = sorted({photo.item_id for photo in data.photos if photo.partition != "train"})
    photos, _ = data.of(items)
    rows = {id(photo): row for row, photo in enumerate(data.photos)}
    metrics = data.measure(items, watch.kept[[rows[id(photo)] for photo in photos]])
    folder.mkdir(parents=True, exist_ok=True)
    np.save(cell.path(folder).with_suffix(".npy"), watch.kept[watch.untrained])
    cell.path(folder).write_text(json.dumps({"curve": watch.curve, "epoch": watch.epoch, "metrics": metrics}))


def main() -> None:
    """Compute missing cells, and record all finished ones."""
    parser = parser_of(__doc__)
    parser.add_argument("--features", type=Path, default=Path("runs/pretrained-224"), help="Folder with features.")
    parser.add_argument("--output", type=Path, default=Path("runs/head_trainers"), help="Folder for finished cells.")
    parser.add_argument("--peers", type=Path, help="Folder that OML was installed into.")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--only", action="append", choices=SETS, help="Only this data set; may be repeated.")
    parser.add_argument("--most", type=int, default=1000, help="Largest number of cells to compute in this call.")
    arguments = parser.parse_args()
    if arguments.peers:
        sys.path.insert(0, str(arguments.peers))
    place, model = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")), Pretrained.load(LITE0, size=SIZES[LITE0])
    chosen, sets = arguments.only or list(SETS), {}
    for name, file, photos in data_sets(place):
        if name in chosen:
            sets[name] = Set(photos, features_in(arguments.features / f"{file}.npy", model, photos))
    wanted = itertools.product(TRAINERS, chosen, range(arguments.seeds))
    cells = [Cell(name, trainer, seed) for trainer, name, seed in wanted]
    for cell in [cell for cell in cells if not cell.path(arguments.output).exists()][: arguments.most]:
        compute(cell, sets[cell.data], arguments.output)
        print(cell, flush=True)
    with Recorder("head_trainers", arguments) as record:
        record_tables(_results(cells, arguments.output), {name: untrained(data) for name, data in sets.items()}, record)


def untrained(data: Set) -> list[Photo]:
    """Return the photos that no trainer used, in the order of the stored vectors."""
    return [photo for photo in data.photos if photo.partition != "train"]


def _results(cells: Sequence[Cell], folder: Path) -> Mapping[tuple[str, str], list[dict[str, Any]]]:
    """Return what was stored of each (data, trainer), by seed."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for cell in sorted(cells, key=lambda cell: cell.data):
        path = cell.path(folder)
        if path.exists():
            stored = json.loads(path.read_text()) | {"vectors": np.load(path.with_suffix(".npy"), allow_pickle=False)}
            found.setdefault((cell.data, cell.trainer), []).append(stored)
    return found


if __name__ == "__main__":
    main()
