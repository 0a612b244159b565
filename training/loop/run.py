"""A training run as a directory: settings, splits, backbone, checkpoints, metrics.

run/
  settings.json     format number of the run, and all settings (training.config)
  splits.json       item_ids of each part, the evaluation protocol, photos of fitted items that are held out
  backbone.json     configuration that rebuilds the network without a download
  checkpoints/      best.safetensors (the model), last.safetensors (everything that resuming needs)
  progress.json     number of finished epochs, best epoch, its metrics, and how they differ from those before training
  metrics.jsonl     one line per epoch
  warm_start.json   if the run continues another one: its path, and the catalogues of both
  fitted.npz        hashes of the items and photos that the run, and those that it continues, were fitted on
  tensorboard/      the same for TensorBoard
  folds/            of a run on all items: runs that each leave out a fold of the items (training.loop.train)
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from safetensors.torch import save_file
from torch import Tensor

from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.splits import EvaluationProtocol, Splits
from retrieval.errors import RunError, check_format, command
from retrieval.files import naming, write_file
from retrieval.images import Preprocessing
from training.backbones import rebuild_backbone
from training.config import AUTO, SMALL, Settings
from training.data.continued import is_fitted, merge_catalogues, photo_content
from training.evaluation.mixed import Comparison, worse
from training.model import EmbeddingModel

FORMAT = 1  # of what a run's files hold
BEST, LAST, START = "best", "last", "start"
FITTED, FOLDS = "fitted.npz", "folds"
PROGRESS = ("epoch", "best", "best_trained")
FOLD_COUNT = 5


class Run:
    """Reads and writes the files of one run directory."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(
        cls, path: Path, documents: Mapping[str, Mapping[str, Any]], *, prepare: Callable[[Run], object] | None = None
    ) -> Run:
        """Create a run directory with its JSON documents; raise RunError for an existing run.

        `prepare` writes further files. The settings come last: their presence makes the directory a run.
        """
        run = cls(path)
        if (path / "settings.json").exists():
            new = "" if run.has(LAST) else ", or remove it: no epoch of it is finished"
            raise RunError(
                f"{path} holds a run already", remedy=f"Continue it with --resume, or choose another directory{new}"
            )
        try:
            (path / "checkpoints").mkdir(parents=True, exist_ok=True)
            if prepare is not None:
                prepare(run)
            for name in sorted(documents, key=lambda name: name == "settings"):
                run._write_json(name, {**({"format": FORMAT} if name == "settings" else {}), **documents[name]})
        except OSError as error:
            raise RunError(f"{path} cannot be written: {error.strerror}") from error
        return run

    @classmethod
    def open(cls, path: Path) -> Run:
        """Open a run directory; raise RunError where there is none, or one of another format."""
        if not (path / "settings.json").exists():
            raise RunError(
                f"{path} is not a training run",
                remedy=f"Create one with `{command('train', 'CATALOGUE', '-o', 'RUN' if path.exists() else path)}`",
            )
        run = cls(path)
        check_format(run._read_json("settings").get("format", 1), FORMAT, path, RunError, remedy="Train it again")
        return run

    @property
    def settings(self) -> Settings:
        """Settings of the run."""
        values = self._read_json("settings")
        return Settings.from_dict({name: value for name, value in values.items() if name != "format"})

    @property
    def splits(self) -> Splits:
        """Class-disjoint parts of the items."""
        return Splits.from_dict(self._read_json("splits")["parts"])

    @property
    def protocol(self) -> EvaluationProtocol:
        """Sources of the query and gallery photos."""
        return EvaluationProtocol(**self._read_json("splits")["protocol"])

    @property
    def held_out(self) -> list[str]:
        """Ids of photos of fitted items that training left out, to search for them."""
        return list(self._read_json("splits").get("held_out", []))

    @property
    def preprocessing(self) -> Preprocessing:
        """Preprocessing of the model's input."""
        return Preprocessing.from_dict(self._read_json("backbone")["preprocessing"])

    @property
    def progress(self) -> dict[str, Any]:
        """Number of finished epochs, the best one and its metrics; empty before the first epoch.

        Those of the last checkpoint count: a run that was killed may have no progress.json that belongs to it.
        """
        stored = self._read_json("progress") if (self.path / "progress.json").exists() else {}
        if not self.has(LAST):
            return stored
        facts = self._facts(LAST)
        return stored if stored.get("epoch") == facts["epoch"] else {name: facts[name] for name in PROGRESS}

    @property
    def warm_start(self) -> dict[str, Any]:
        """The facts about the run that this one continues; empty if there is none."""
        return self._read_json("warm_start") if (self.path / "warm_start.json").exists() else {}

    def photos(self) -> list[Photo]:
        """Read the run's catalogue, and those of the runs that it continues, `without_fitted`."""
        return self.without_fitted(self._listed_photos())

    def _listed_photos(self) -> list[Photo]:
        noted = self.warm_start
        if not noted:
            return read_catalogue(self.settings.catalogue)
        left_out = frozenset(noted.get("left_out", ()))  # by runs of version 0.2.0
        photos = merge_catalogues(noted["catalogues"], self.protocol)
        return [photo for photo in photos if photo.photo_id not in left_out]

    def without_fitted(self, photos: Sequence[Photo]) -> list[Photo]:
        """Return photos without those of held-out items that are in the list of what the run was fitted on.

        They are copies, the catalogue had them under another item when the run was trained, or their item is of the
        group of a fitted one by now.
        """
        fitted, fit = _listed(self.path), set(self.splits.fit)
        if fitted is None:
            return list(photos)
        groups = {photo.group_key for photo in photos if photo.item_id in fit}
        known = {
            photo.photo_id
            for photo in photos
            if photo.item_id not in fit
            and (photo.group_key in groups or is_fitted(photo, fitted, photo_content(photo)))
        }
        return [photo for photo in photos if photo.photo_id not in known]

    @property
    def folds(self) -> list[Run]:
        """The fold runs of a run on all items, in order; empty for others. Raises RunError if some are not finished."""
        if not self.settings.all_items:
            return []
        paths = [self.path / FOLDS / str(number) for number in range(FOLD_COUNT)]
        runs = [Run(path) for path in paths if (path / "settings.json").exists()]
        if sum(run.progress.get("epoch") == self.settings.epochs for run in runs) < FOLD_COUNT:
            again = command("train", "--resume", "-o", self.path)
            raise RunError(f"{self.path} has not trained all of its {FOLD_COUNT} fold models", remedy=f"`{again}`")
        return runs

    @property
    def comparison(self) -> Comparison:
        """The comparison with the model before training, of a run on all items by its first fold run."""
        judged = self.folds[0] if self.folds else self
        comparison: Comparison = (judged.progress.get("best") or {}).get("comparison", {})
        return comparison

    @property
    def worse(self) -> list[str]:
        """What is worse than before training beyond chance, as sentences; empty if nothing is."""
        return worse(self.comparison)

    @property
    def export_command(self) -> str:
        """The command that exports the run, or the model that it started from if the run is worse."""
        output, backbone = f"bundles/{self.path.resolve().name}", self.settings.backbone
        if not self.worse:
            return command("export", self.path, "-o", output)
        if self.warm_start:
            return command("export", self.warm_start["run"], "-o", output)
        return command("export", "--pretrained", AUTO if backbone == SMALL else backbone, "-o", output)

    def fitted_on(self) -> Fitted:
        """Return the training items of the run and of those that it continues, and the content of all their photos.

        The groups of the items are those that they had then, and those that the catalogue names now.
        """
        items, photos, listed = set(self.splits.fit), self._listed_photos(), _listed(self.path)
        groups = Fitted.of((photo.group_key for photo in photos if photo.item_id in items), ())
        listed = fitted_on(items, photos) if listed is None else groups.union(listed)
        return listed.with_folds([run.fitted_on() for run in self.folds])

    @property
    def backbone_config(self) -> dict[str, Any] | None:
        """Return the configuration that rebuilds the backbone, None for the small one."""
        config: dict[str, Any] | None = self._read_json("backbone")["config"]
        return config

    def new_model(self) -> EmbeddingModel:
        """Return the run's network with random weights."""
        settings, backbone = self.settings, rebuild_backbone(self.backbone_config)
        return EmbeddingModel(backbone, dim=settings.embedding_size, pooling=settings.pooling)

    def best_model(self) -> EmbeddingModel:
        """Return the model of the best epoch, in evaluation mode."""
        model = self.new_model()
        model.load_state_dict(self.load(BEST)[0])
        return model.eval()

    def has(self, name: str) -> bool:
        """Return whether a checkpoint of this name exists."""
        return (self.path / "checkpoints" / f"{name}.safetensors").exists()

    def save(self, name: str, tensors: Mapping[str, Tensor], facts: Mapping[str, Any] | None = None) -> None:
        """Write a checkpoint atomically."""
        target = self.path / "checkpoints" / f"{name}.safetensors"
        aside = target.with_suffix(".partial")
        packed = {key: value.detach().cpu().contiguous() for key, value in tensors.items()}
        try:
            save_file(packed, aside, metadata={"facts": json.dumps(facts or {})})
            with aside.open("rb") as file:
                os.fsync(file.fileno())
            aside.replace(target)
        except SafetensorError as error:
            remedy = "Check disk space and permissions, then continue with --resume"
            raise RunError(f"{target} cannot be written: {error}", remedy=remedy) from error
        finally:
            aside.unlink(missing_ok=True)

    def load(self, name: str) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Return a checkpoint's tensors and plain values."""
        with self._checkpoint(name) as file:
            return {key: file.get_tensor(key) for key in file.keys()}, json.loads(file.metadata()["facts"])  # noqa: SIM118

    def _facts(self, name: str) -> dict[str, Any]:
        with self._checkpoint(name) as file:
            facts: dict[str, Any] = json.loads(file.metadata()["facts"])
        return facts

    @contextmanager
    def _checkpoint(self, name: str) -> Iterator[Any]:
        path = self.path / "checkpoints" / f"{name}.safetensors"
        if not path.exists():
            raise RunError(f"{self.path} has no checkpoint {name!r} yet", remedy="Finish its first epoch with --resume")
        try:
            with safe_open(path, framework="pt") as file:
                yield file
        except SafetensorError as error:
            raise RunError(f"{path} is damaged: {error}", remedy="Train the run again") from error

    def record(self, line: Mapping[str, Any]) -> None:
        """Append one line to metrics.jsonl."""
        path = self.path / "metrics.jsonl"
        with naming(path), path.open("a") as file:
            file.write(json.dumps(dict(line)) + "\n")

    def forget_after(self, epoch: int) -> None:
        """Drop the metrics of epochs after `epoch`, which a resumed run repeats."""
        path = self.path / "metrics.jsonl"
        if path.exists():
            lines = [line for line in path.read_text().split("\n")[:-1] if line.strip()]  # the last may be cut off
            kept = [line for line in lines if json.loads(line)["epoch"] <= epoch]
            write_file(path, "".join(line + "\n" for line in kept))

    def write_progress(self, values: Mapping[str, Any]) -> None:
        """Replace progress.json."""
        self._write_json("progress", values)

    def _write_json(self, name: str, values: Mapping[str, Any] | None) -> None:
        target = self.path / f"{name}.json"
        write_file(target, json.dumps(values, indent=2) + "\n")

    def _read_json(self, name: str) -> dict[str, Any]:
        path = self.path / f"{name}.json"
        try:
            values: dict[str, Any] = json.loads(path.read_text())
        except (OSError, ValueError) as error:
            raise RunError(f"{path} cannot be read: {error}", remedy="Train the run again") from error
        return values


def _listed(path: Path) -> Fitted | None:
    file = path / FITTED
    try:
        return Fitted.unpack(file.read_bytes()) if file.exists() else None
    except (TypeError, ValueError) as error:
        raise RunError(f"{file} is damaged: {error}", remedy="Restore it, or train the run again") from error


def fitted_on(items: Collection[str], photos: Iterable[Photo]) -> Fitted:
    """Return what a model is fitted on: the items, their groups, and the content of all of their photos."""
    fit = [photo for photo in photos if photo.item_id in items]
    names = {*items, *(photo.group_key for photo in fit)}
    return Fitted.of(names, (content_hash(photo.read(), photo.bbox) for photo in fit))


def started_from(run: Run) -> str:
    """Return the name of the model that training started from: an earlier run, a pretrained model or random weights."""
    backbone = run.settings.backbone
    return str(run.warm_start.get("run", "random weights" if backbone == SMALL else backbone))


def held_out_in(run: Run, photos: Iterable[Photo]) -> list[str]:
    """Return the ids of the photos that a run held out and that are still the same: names may be of others now."""
    known = run._read_json("splits").get("held_out_content")
    if known is None:  # a run of an earlier version
        return run.held_out
    return [
        photo.photo_id for photo in photos if photo.photo_id in known and known[photo.photo_id] == photo_content(photo)
    ]


def note_fitted(run: Run, photos: Iterable[Photo]) -> None:
    """Add the photos of fitted items to the list of what a run was fitted on, if it keeps one."""
    earlier = _listed(run.path)
    if earlier is not None:
        write_file(run.path / FITTED, fitted_on(set(run.splits.fit), photos).union(earlier).pack())


def entries(path: Path) -> frozenset[Path] | None:
    """Return the contents of a folder, None where there is none."""
    return frozenset(path.iterdir()) if path.is_dir() else None


def remove_new(path: Path, before: frozenset[Path] | None) -> None:
    """Remove what was written to a folder since `entries` was called."""
    if before is None:
        shutil.rmtree(path, ignore_errors=True)
        return
    for entry in frozenset(path.iterdir()) - before:
        if entry.is_dir():
            shutil.rmtree(entry)
        else:
            entry.unlink()
