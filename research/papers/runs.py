"""Training runs of configurations, trained once and shared between tables, and their embeddings.

The folder of a run is named after a hash of everything that determines it, including the content of the photos.
Finished runs are reused, two tables with the same run share it, and changed data with the same name is trained anew:

DIR/catalogues/…jsonl        the photos of each data set and transformation, named by content hash
DIR/runs/1f3a…/              a training run, with `finished`, and test.npz and train.npz after embedding
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import Splits
from retrieval.errors import InvalidParameter
from training.config import Settings
from training.data.reader import PhotoReader
from training.evaluation.embedding import embed_with_norms
from training.evaluation.evaluate import EvaluationSplit, make_evaluation_split
from training.loop.run import Run
from training.loop.train import train
from training.model import choose_device

from .configuration import Configuration, Variant
from .labelled_photos import Contents, LabelledPhotos, digest_of, read_labelled_photos, write_labelled_photos
from .metrics import Embedded
from .transformations import transform

SMOKE_TEST = {
    "backbone": "small", "size": 32, "epochs": 1, "epoch_steps": 2, "micro_batch_size": 0, "learning_rate": 1e-3,
    "colour": 0.0, "precision": "fp32", "loggers": "", "patience": 0,
}  # fmt: skip
SMALL_DIM, SMALL_P, SMALL_K = 16, 4, 4


@dataclass(frozen=True)
class Options:
    """Options of a run: location of data and results, and changes to the configuration."""

    data: Path
    output: Path
    changes: Mapping[str, Any] = field(default_factory=dict)  # settings that override all others
    seeds: int | None = None
    smoke_test: bool = False
    datasets: Sequence[str] = ()  # data sets to run, () for all
    strangers: Sequence[Photo] = ()

    def seeds_of(self, configuration: Configuration) -> int:
        """Return the number of seeds per variant, at most two in a smoke test."""
        wanted = configuration.seeds if self.seeds is None else self.seeds
        if wanted < 1:
            raise InvalidParameter("seeds", "be at least 1", wanted)
        return min(2, wanted) if self.smoke_test else wanted


@dataclass(frozen=True)
class Job:
    """One training run: photos, their splits and settings."""

    dataset: str
    labelled: LabelledPhotos
    splits: Splits
    settings: Settings
    path: Path


# of recipes that do not say otherwise
BASE: Mapping[str, Any] = {"backbone": "small", "dim": 128, "epochs": 8, "head_start": "random"}


def settings_of(
    configuration: Configuration, variant: Variant, dataset: str, options: Options, *, catalogue: str = ""
) -> Settings:
    """Return the settings of a variant on a data set; raise InvalidParameter for an unknown setting."""
    values: dict[str, Any] = {"catalogue": catalogue, **BASE}
    layers = (
        configuration.settings,
        configuration.by_dataset.get(dataset, {}),
        variant.settings,
        variant.by_dataset.get(dataset, {}),
        options.changes,
    )
    for layer in layers:
        if "loss" in layer and "loss_arguments" not in layer:
            values.pop("loss_arguments", None)  # they belong to another loss
        values |= layer
    return Settings.from_dict(_as_smoke_test(values) if options.smoke_test else values)


def _as_smoke_test(values: dict[str, Any]) -> dict[str, Any]:
    small = values | SMOKE_TEST
    several = values.get("photos_per_item", 4) > 1 and values.get("sampler") != "random"
    small["dim"] = min(SMALL_DIM, values.get("dim", SMALL_DIM))
    small["precompute"] = min(2, values.get("precompute", 0))
    small["projector"] = min(SMALL_DIM, values.get("projector", 0))
    small["items_per_batch"] = min(SMALL_P if several else SMALL_P * 2, values.get("items_per_batch", SMALL_P))
    small["photos_per_item"] = min(SMALL_K, values.get("photos_per_item", SMALL_K))
    return small


class PhotoSets:
    """Cache of the photos of the data sets of one call."""

    def __init__(self, options: Options) -> None:
        self._options = options
        self._kept: dict[tuple[str, str], LabelledPhotos] = {}
        self._catalogues: dict[tuple[str, str], Path] = {}
        self._contents = Contents()

    def get(self, dataset: str, split: str) -> LabelledPhotos:
        """Return a data set with a split."""
        if (dataset, split) not in self._kept:
            self._kept[dataset, split] = read_labelled_photos(dataset, self._options.data, split=split)
        return self._kept[dataset, split]

    def job(self, configuration: Configuration, variant: Variant, dataset: str, seed: int) -> Job:
        """Return the training job of one table cell."""
        labelled = self.get(dataset, configuration.split)
        photos = transform(
            labelled.photos, labelled.train, variant.photos, seed=seed, strangers=self._options.strangers
        )
        left = {photo.item_id for photo in photos}
        labelled = LabelledPhotos(photos, tuple(item for item in labelled.train if item in left), labelled.test)
        return self.prepare(
            dataset, labelled, labelled.splits(configuration.selection, seed=0),
            settings_of(configuration, variant, dataset, self._options), seed,
            about=(configuration.split, variant.photos, seed if variant.photos else 0),
        )  # fmt: skip

    def prepare(
        self, dataset: str, labelled: LabelledPhotos, splits: Splits, settings: Settings, seed: int, *, about: Any
    ) -> Job:
        """Return a job with its catalogue file and folder name; `about` distinguishes variants of one data set."""
        catalogue = self._catalogue(dataset, labelled, about)
        select = settings.select if splits.validation else "last"
        chosen = {"seed": seed, "select": select}
        values = settings.to_dict() | {"catalogue": str(catalogue.resolve()), **chosen}
        key = json.dumps([values, splits.to_dict()], sort_keys=True)
        path = self._options.output / "runs" / hashlib.sha256(key.encode()).hexdigest()[:16]
        return Job(dataset, labelled, splits, Settings.from_dict(values), path)

    def _catalogue(self, dataset: str, labelled: LabelledPhotos, about: Any) -> Path:
        """Return the catalogue file of a data set, named after its rows and the content of its photos."""
        place = (dataset, json.dumps(about, default=str))
        if place not in self._catalogues:
            name = f"{dataset}-{digest_of(labelled, self._contents)}.jsonl"
            self._catalogues[place] = write_labelled_photos(labelled, self._options.output / "catalogues" / name)
        return self._catalogues[place]


def trained(job: Job) -> Run:
    """Return the run of a job: finished runs are read, interrupted ones continued, others trained."""
    if (job.path / "finished").exists():
        return Run.open(job.path)
    begun = (job.path / "settings.json").exists()
    splits = None if begun else job.splits
    run = train(job.settings, job.path, resume=begun, splits=splits, check_photos=False, keep_start=False)
    (job.path / "finished").touch()
    return run


def embedded(job: Job, *, train_part: bool = False) -> Embedded:
    """Return the embeddings of one split with the run's checkpoint; vectors are computed once."""
    items = job.splits.fit if train_part else job.splits.test
    wanted = set(items)
    photos = [photo for photo in job.labelled.photos if photo.item_id in wanted]
    run = trained(job)
    file = job.path / ("train.npz" if train_part else "test.npz")
    if not file.exists():
        model = run.best_model().to(choose_device())
        reader = PhotoReader(photos, run.preprocessing, cache_bytes=0)
        unit, norms = embed_with_norms(model, reader, len(photos), run.preprocessing, progress=len(photos) > 1000)
        aside = file.with_suffix(".partial.npz")
        np.savez(aside, unit=unit, norms=norms)
        aside.replace(file)
    with np.load(file, allow_pickle=False) as kept:
        unit, norms = kept["unit"], kept["norms"]
    everyone = np.arange(len(photos))
    split = (
        EvaluationSplit("train", everyone, everyone)
        if train_part
        else make_evaluation_split("test", photos, items, run.protocol)
    )
    return Embedded(job.dataset, photos, unit, norms, split)
