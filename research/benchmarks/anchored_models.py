"""Fine-tuned models of the anchoring benchmark: trained once, with the embeddings of all their photos.

Every model has the same recipe, chosen for its cost: the default settings with photos of 128 px and 90 steps. A run is
kept in a folder of its own, so an interrupted benchmark can continue.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import torch

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import DataError
from training.config import Settings
from training.data.reader import PhotoReader
from training.data.splits import Splits, make_evaluation_protocol, photos_in_protocol, side
from training.evaluation.distance_selection import choose_distance
from training.evaluation.embedding import embed_photos
from training.loop.run import Run
from training.loop.train import train

from .anchoring import TARGET, Data
from .rotations import rotated, write_catalogue

KEPT_OUT = 0.25  # share of each training family's items that is kept out of training
VECTORS = "vectors.npy"


@dataclass(frozen=True)
class Model:
    """A fine-tuned model: the photos of its data set, searched with the distance that its bundle would serve with."""

    data: Data
    family_of: Mapping[str, str]  # by item
    splits: Splits
    kept_out: Sequence[str] = ()  # siblings of trained items that took no part in training

    @property
    def trained(self) -> list[str]:
        """Return the items of the training partition: the fitted and the validation items."""
        return sorted({*self.splits.fit, *self.splits.validation})

    @property
    def untrained(self) -> list[str]:
        """Return the calibration and test items."""
        return sorted({*self.splits.calibration, *self.splits.test})


def settings_of(catalogue: Path, data: Path, seed: int) -> Settings:
    """Return the settings of a run."""
    return Settings(
        catalogue=str(catalogue.resolve()),
        backbone=str(data / "weights/mobilenet_v1_0.75_224"),
        size=128,
        epochs=3,
        epoch_steps=30,
        dim=128,
        head_start="random",
        precision="fp32",
        decoders=1,
        loggers="",
        seed=seed,
    )


def set_model(name: str, seed: int, output: Path, data: Path) -> Model:
    """Return the model of a data set with its own partition."""
    catalogue = data / "data" / name / f"{name}.csv"
    photos = read_catalogue(catalogue)
    return _model(photos, settings_of(catalogue, data, seed), output / f"{name}-{seed}")


def rotation_model(rotation: int, seed: int, output: Path, data: Path) -> Model:
    """Return the model of a rotation of grocery, trained without a quarter of each training family's items."""
    whole = read_catalogue(data / "data/grocery/grocery.csv")
    photos = photos_in_protocol(whole, sorted({p.item_id for p in whole}), make_evaluation_protocol(whole))
    photos = rotated(photos, rotation)
    kept_out = quarter_of_families(photos, seed=[rotation, seed])
    path = output / f"grocery-{rotation}-{seed}"
    catalogue = output / f"grocery-{rotation}-{seed}.csv"
    write_catalogue([photo for photo in photos if photo.item_id not in kept_out], catalogue)
    return _model(photos, settings_of(catalogue, data, seed), path, kept_out)


def quarter_of_families(photos: Sequence[Photo], *, seed: Sequence[int]) -> list[str]:
    """Return a random quarter, at least one, of the items of each training family with two items or more."""
    generator, chosen = np.random.default_rng(seed), []
    trained = [photo for photo in photos if photo.partition == "train"]
    for family in sorted({photo.group for photo in trained}):
        items = sorted({photo.item_id for photo in trained if photo.group == family})
        if len(items) > 1:
            count = max(1, int(KEPT_OUT * len(items) + 0.5))
            chosen += generator.permutation(items)[:count].tolist()
    return sorted(chosen)


def _model(photos: Sequence[Photo], settings: Settings, path: Path, kept_out: Collection[str] = ()) -> Model:
    run, vectors = _run(settings, path), path / VECTORS
    if not vectors.exists():
        network = run.best_model().to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        reader = PhotoReader(photos, run.preprocessing, cache_bytes=0)
        np.save(vectors, embed_photos(network, reader, len(photos), run.preprocessing))
    splits, protocol = run.splits, make_evaluation_protocol(photos)
    raw = np.load(vectors, allow_pickle=False)
    rows = np.flatnonzero(np.isin([p.item_id for p in photos], [*splits.fit, *splits.validation]))
    choice = choose_distance([photos[int(i)] for i in rows], raw[rows], splits, protocol, target_fpir=TARGET)
    used = raw if choice.whitening is None else choice.whitening(raw)
    in_gallery = np.array([side(photo) == protocol.gallery_source for photo in photos])
    items = np.array([photo.item_id for photo in photos])
    data = Data(path.name, used, items, in_gallery, choice.distance_form)
    return Model(data, {p.item_id: p.group or p.item_id for p in photos}, splits, sorted(kept_out))


def _run(settings: Settings, path: Path) -> Run:
    """Return the finished run at `path`, trained or resumed if needed; raise DataError if its settings differ."""
    started = (path / "settings.json").exists()
    run = Run.open(path) if started else None
    if run is not None:
        here = replace(run.settings, catalogue=settings.catalogue, backbone=settings.backbone)
        if here != settings:
            raise DataError(f"{path} was trained with other settings", remedy="Choose another --output folder")
    if run is None or run.progress.get("epoch") != settings.epochs:
        run = train(settings, path, resume=started)
    return run


def is_trained(path: Path) -> bool:
    """Return whether a model is trained, with its embeddings."""
    return (path / VECTORS).exists()
