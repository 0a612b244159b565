"""The last blocks of a pretrained backbone trained by `train`, compared with a head on its frozen features.

    python -m research.benchmarks.fine_tuning --output runs/fine_tuning

Each cell is one training of EfficientNet-Lite0 on birds or cars. On a fold of the training partition, a model is
trained on one half of the items and measured on the other, without selection of a checkpoint. On *untrained items*, it
is trained on four fifths of the training partition, the rest selects the epoch, and it is measured on calibration and
test items.
A finished cell is not repeated; a call computes at most --most missing cells, and records all that are there.
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from retrieval.catalogue.read import Photo, read_catalogue
from training.config import LITE0, Settings
from training.data.folds import item_folds
from training.data.reader import PhotoReader
from training.data.splits import Splits, make_evaluation_protocol
from training.evaluation.embedding import embed_photos
from training.evaluation.evaluate import consistency_metrics, item_labels, make_evaluation_split
from training.loop.run import Run
from training.loop.train import train

from .head_trainer_tables import METRICS, gain, measures, resampled
from .tables import Recorder, parser_of

SETS = ("cars", "birds")
UNTRAINED, FOLDS = "untrained items", ("fold 1", "fold 2")
PARTS = (UNTRAINED, *FOLDS)
SIZE = 160  # of the input, which takes half of the time of the default
HEAD, SHORT, LONG, TCM = "head", "last blocks, 80 steps", "last blocks, 240 steps", "last blocks, 240 steps, TCM"
LAST_BLOCKS = {"frozen": 0.72, "learning_rate": 3e-4, "epochs": 4}
RECIPES: Mapping[str, dict[str, Any]] = {
    HEAD: {"precompute": 1},
    LONG: {**LAST_BLOCKS, "epoch_steps": 60},
    TCM: {**LAST_BLOCKS, "epoch_steps": 60, "regularizer": "tcm"},
    SHORT: {**LAST_BLOCKS, "epoch_steps": 20},
}


class Cell(NamedTuple):
    """One training."""

    data: str
    part: str
    recipe: str
    seed: int

    def path(self, folder: Path) -> Path:
        """Return the path of its results."""
        return folder / f"{self.data}-{self.part}-{self.recipe}-{self.seed}.npz".replace(" ", "-").replace(",", "")


def catalogue(name: str) -> Path:
    """Return the catalogue of a data set."""
    return Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")) / "data" / name / f"{name}.csv"


def measured(photos: Sequence[Photo], part: str) -> tuple[Splits | None, list[Photo]]:
    """Return the splits of a training, None for those of `train`, and the photos that measure it."""
    if part == UNTRAINED:
        return None, [photo for photo in photos if photo.partition != "train"]
    names = sorted({photo.item_id for photo in photos if photo.partition == "train"})
    fit, held = item_folds(photos, names, folds=len(FOLDS), seed=0)[FOLDS.index(part)]
    return Splits(fit, (), (), ()), [photo for photo in photos if photo.item_id in set(held)]


def settings_of(cell: Cell) -> Settings:
    """Return the settings of a training."""
    last = {} if cell.part == UNTRAINED else {"select": "last"}
    values = {"catalogue": str(catalogue(cell.data)), "backbone": LITE0, "size": SIZE, "seed": cell.seed, "loggers": ""}
    return Settings.from_dict(values | last | dict(RECIPES[cell.recipe]))


def compute(cell: Cell, folder: Path) -> None:
    """Train one cell, and write the vectors of the photos that measure it, its epoch and the CPU seconds."""
    photos = read_catalogue(catalogue(cell.data))
    splits, rest = measured(photos, cell.part)
    run, started = cell.path(folder).with_suffix(""), time.process_time()
    shutil.rmtree(run, ignore_errors=True)  # of a call that was interrupted
    trained: Run = train(settings_of(cell), run, splits=splits)
    seconds = time.process_time() - started
    model, reader = trained.best_model(), PhotoReader(rest, trained.preprocessing)
    vectors = embed_photos(model, reader, len(rest), trained.preprocessing)
    facts = {"epoch": trained.progress["best"]["epoch"], "seconds": seconds}
    partial = cell.path(folder).with_suffix(".partial.npz")
    np.savez(partial, vectors=vectors, facts=json.dumps(facts))
    partial.replace(cell.path(folder))
    shutil.rmtree(run)


def opis_of(vectors: np.ndarray, photos: Sequence[Photo]) -> float:
    """Return the OPIS of unit vectors of photos."""
    items = sorted({photo.item_id for photo in photos})
    split = make_evaluation_split("measured", photos, items, make_evaluation_protocol(photos))
    return consistency_metrics(split, vectors, item_labels(photos))["OPIS"]


def record_part(cells: Mapping[str, Cell], photos: Sequence[Photo], folder: Path, record: Recorder) -> list[list[str]]:
    """Record the metrics of the recipes on one part, the head first; return the rows of the gains over it."""
    items = resampled([photo.item_id for photo in photos])
    measured_by: dict[str, tuple[dict[str, np.ndarray], float]] = {}
    for recipe, cell in cells.items():
        with np.load(cell.path(folder), allow_pickle=False) as file:
            vectors, facts = file["vectors"], json.loads(str(file["facts"]))
        found, opis = measured_by[recipe] = measures(vectors, photos, items), opis_of(vectors, photos)
        shown = [f"{found[name][0]:.3f}" for name in METRICS[:3]]
        title = f"{cell.data}, {cell.part}, {recipe}"
        record.add(title, *shown, f"{opis:.4f}", str(facts["epoch"]), f"{facts['seconds'] / 60:.1f} min")
    head, head_opis = measured_by.pop(HEAD)
    return [
        [
            f"{cells[recipe].data}, {cells[recipe].part}, {recipe}",
            *(gain(found[name][None], head[name][None]) for name in METRICS[:3]),
            f"{opis - head_opis:+.4f}",
        ]
        for recipe, (found, opis) in measured_by.items()
    ]


def main() -> None:
    """Compute missing cells, and record all finished ones."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/fine_tuning"), help="Folder for finished cells.")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", action="append", choices=SETS, help="Only this data set; may be repeated.")
    parser.add_argument("--part", action="append", choices=PARTS, help="Only these items; may be repeated.")
    parser.add_argument("--most", type=int, default=1000, help="Largest number of cells to compute in this call.")
    arguments = parser.parse_args()
    folder: Path = arguments.output
    folder.mkdir(parents=True, exist_ok=True)
    parts = list(itertools.product(arguments.only or SETS, arguments.part or PARTS))
    cells = [Cell(data, part, recipe, arguments.seed) for (data, part), recipe in itertools.product(parts, RECIPES)]
    for cell in [cell for cell in cells if not cell.path(folder).exists()][: arguments.most]:
        compute(cell, folder)
        print(cell, flush=True)
    with Recorder("fine_tuning", arguments) as record:
        record.table("figures", ("items and model", *METRICS, "epoch kept", "CPU time of training"))
        gains: list[list[str]] = []
        for data, part in parts:
            found = {cell.recipe: cell for cell in cells if cell[:2] == (data, part) and cell.path(folder).exists()}
            if HEAD in found:
                photos = measured(read_catalogue(catalogue(data)), part)[1]
                gains += record_part(found, photos, folder, record)
        record.table("gains", ("gain over the head", *METRICS), gains)


if __name__ == "__main__":
    main()
