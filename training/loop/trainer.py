"""The training loop: epochs, validation, checkpoints and resuming."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tqdm import tqdm

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import InvalidParameter
from training.config import Settings
from training.data.reader import require_readable
from training.data.samplers import HardItemSampler
from training.data.sources import FeatureSource, PixelSource, Source
from training.data.splits import (
    EvaluationProtocol,
    Splits,
    make_evaluation_protocol,
    make_splits,
    photos_in_protocol,
    require_mates,
)
from training.evaluation.embedding import to_device
from training.evaluation.evaluate import item_labels, make_evaluation_split, open_set_metrics, rank_metrics, score_split
from training.model import EmbeddingModel, backbone_preprocessing, freeze_batch_norm

from .distributed import ProcessEnded, ProcessGroup, launch, launched
from .learner import Learner
from .loggers import Loggers
from .memory import keep_freed_memory
from .recipe import build_loss, check_recipe, initial_model, make_sampler
from .run import BEST, LAST, Run, Traces

EpochCallback = Callable[[int, Mapping[str, float]], None]
MEANS = "sampler.means"  # mean embeddings of the items, in a checkpoint
SELECT: Mapping[str, Callable[[Mapping[str, float]], list[float]]] = {  # smaller is better
    "fnir": lambda metrics: [metrics["validation FNIR"], -metrics["validation R@1"]],
    "r@1": lambda metrics: [-metrics["validation R@1"], metrics["validation FNIR"]],
    "map@r": lambda metrics: [-metrics["validation MAP@R"], metrics["validation FNIR"]],
    "last": lambda _: [0.0],
}


def train(
    settings: Settings,
    path: Path,
    *,
    resume: bool = False,
    splits: Splits | None = None,
    on_epoch: EpochCallback | None = None,
    unguarded: bool = False,
) -> Run:
    """Train or resume the run at `path`, and return it.

    Every photo is opened before anything is written, and a training that fails before its first epoch is finished
    leaves no files behind, so that the corrected one can use the same path. One that is interrupted or killed can be
    resumed. Every random choice is drawn from (seed, epoch), so that a resumed run ends with the same weights as an
    uninterrupted one on the same machine.

    Parameters
    ----------
    resume:
        Continue the run with its own settings.
    splits:
        Parts of the items, in place of those of `make_splits`. Without validation items, `settings.select` must be
        "last".
    on_epoch:
        Called after each epoch with the number of finished epochs and their metrics. An exception that it raises
        ends the run, which can be resumed. Only for runs of one process.
    unguarded:
        Do not open the photos first, and keep the files of a training that fails. For one of many runs on the same
        photos, whose caller takes care of the directory.

    Raises
    ------
    DataError
        If the labels or the photos cannot be used.
    InvalidParameter
        For settings that cannot be trained.
    RunError
        If `path` already contains a run, or contains none to resume.
    """
    settings = Run.open(path).settings if resume else settings
    several = settings.devices > 1 and not launched()
    if several and on_epoch is not None:
        raise InvalidParameter("devices", "be 1 with on_epoch", settings.devices)
    process_group = ProcessGroup(torch.device("cpu")) if several else ProcessGroup.join(settings.device)
    traces = Traces(path)
    photos, model = None, None
    if not resume:
        photos, model = begin_run(settings, path, splits=splits, process_group=process_group, unguarded=unguarded)
    try:
        if several:
            launch(_train_in_process, (path,), processes=settings.devices)
            return Run.open(path)
        return Trainer(
            Run.open(path), photos=photos, model=model, process_group=process_group, on_epoch=on_epoch
        ).run_epochs()
    except ProcessEnded:  # as if this process had been killed: the run can be resumed
        raise
    except Exception:
        if process_group.is_main and not (resume or unguarded or Run(path).has(LAST)):
            traces.remove()
        raise


def begin_run(
    settings: Settings,
    path: Path,
    *,
    splits: Splits | None = None,
    process_group: ProcessGroup | None = None,
    unguarded: bool = False,
) -> tuple[list[Photo], EmbeddingModel]:
    """Check the settings and, unless `unguarded`, the photos; write the run directory.

    Returns the photos and the initial model.
    """
    process_group = process_group or ProcessGroup.join(settings.device)
    photos = read_catalogue(Path(settings.catalogue))
    splits = splits or make_splits(photos, seed=settings.split_seed)
    protocol = make_evaluation_protocol(
        photos, gallery_source=settings.gallery_source, query_source=settings.query_source
    )
    if splits.validation:
        require_mates("validation", photos, splits.validation, protocol)
    check_recipe(settings, splits)
    fit = photos_in_protocol(photos, splits.fit, protocol)
    make_sampler(settings, fit)
    model, config = initial_model(settings)
    preprocessing = backbone_preprocessing(settings.backbone, size=settings.size, crop_ratio=settings.crop_ratio)
    if not unguarded:
        validation_items = set(splits.validation)
        to_open = [*fit, *(photo for photo in photos if photo.item_id in validation_items)]
        folder, threads = settings.cache_dir, settings.decoders
        process_group.run_on_main(lambda: require_readable(to_open, preprocessing, cache_dir=folder, threads=threads))
    documents: dict[str, Any] = {
        "settings": settings.to_dict(),
        "splits": {"parts": splits.to_dict(), "protocol": vars(protocol)},
        "backbone": {"config": config, "preprocessing": preprocessing.to_dict()},
    }
    process_group.run_on_main(lambda: Run.create(path, **documents))
    return photos, model


def _train_in_process(path: Path) -> None:
    run = Run.open(path)
    Trainer(run, process_group=ProcessGroup.join(run.settings.device)).run_epochs()


class Trainer:
    """Trains one run; `run_epochs` does the remaining epochs."""

    def __init__(
        self,
        run: Run,
        *,
        photos: Sequence[Photo] | None = None,
        model: EmbeddingModel | None = None,
        process_group: ProcessGroup | None = None,
        on_epoch: EpochCallback | None = None,
    ) -> None:
        self.run = run
        self.settings = settings = run.settings
        self.splits: Splits = run.splits
        self.protocol: EvaluationProtocol = run.protocol
        self.process_group = process_group or ProcessGroup.join(settings.device)
        if self.process_group.device.type == "cpu":
            keep_freed_memory()
        self._on_epoch = on_epoch
        photos = run.photos() if photos is None else photos
        fit = photos_in_protocol(photos, self.splits.fit, self.protocol)
        validation_items = set(self.splits.validation)
        self.labels = torch.from_numpy(item_labels(fit))
        self.validation = [photo for photo in photos if photo.item_id in validation_items]
        self.sampler = make_sampler(settings, fit)
        pixels = PixelSource(fit, self.validation, settings, run.preprocessing, process_group=self.process_group)
        torch.manual_seed(settings.seed)
        loss = build_loss(settings, classes=len(self.splits.fit))
        if model is None:
            model = run.new_model() if run.has(LAST) else initial_model(settings)[0]
        if settings.initial_norm and not run.has(LAST):
            self._scale_head(model, pixels)
        self.source: Source = pixels
        if settings.precompute:
            model.to(self.process_group.device)
            self.source = FeatureSource(run.path, pixels, model, settings, self.process_group)
        self.learner = Learner(
            model,
            loss,
            settings,
            process_group=self.process_group,
            steps=self.sampler.batches * settings.epochs,
            prepare=self.source.prepare,
        )

    @property
    def model(self) -> EmbeddingModel:
        """The model that is being trained."""
        return self.learner.model

    def run_epochs(self) -> Run:
        """Train the remaining epochs; each ends with validation and a checkpoint."""
        progress, settings, batches = self._restore(), self.settings, self.sampler.batches
        names = settings.loggers if self.process_group.is_main else ""
        with Loggers(names, self.run.path, settings.to_dict(), step=progress["epoch"] * batches) as loggers:
            while progress["epoch"] < settings.epochs and not _out_of_patience(progress, settings.patience):
                metrics = self._epoch(progress["epoch"])
                loggers.log(metrics, (progress["epoch"] + 1) * batches)
                progress["epoch"] += 1
                self._keep_best(progress, metrics)
                if self.process_group.is_main:
                    self.run.record({"epoch": progress["epoch"], **metrics})  # a resumed run drops it if need be
                    self._checkpoint(progress)
                self.process_group.barrier()
                if self._on_epoch is not None:
                    self._on_epoch(progress["epoch"], metrics)
        return self.run

    def _keep_best(self, progress: dict[str, Any], metrics: Mapping[str, float]) -> None:
        rank, best = SELECT[self.settings.select](metrics), progress["best"]
        if best is None or self.settings.select == "last" or rank < list(best["rank"]):
            progress["best"] = {"epoch": progress["epoch"], "rank": rank, "metrics": dict(metrics)}
            if self.process_group.is_main:
                self.run.save(BEST, self.learner.kept.state_dict())

    def _epoch(self, epoch: int) -> dict[str, float]:
        settings, learner, steps = self.settings, self.learner, self.sampler.batches
        learner.begin(epoch)
        planned = list(self.sampler.epoch(epoch))
        total, started = 0.0, time.perf_counter()
        title = f"epoch {epoch + 1}/{settings.epochs}"
        bar = tqdm(planned, desc=title, unit="batch", disable=not self.process_group.is_main)
        for positions, inputs in zip(bar, self.source.inputs(planned, epoch), strict=True):
            labels = self.labels[positions]
            loss, embeddings = learner.take(inputs, labels)
            if isinstance(self.sampler, HardItemSampler):
                self.sampler.update(F.normalize(embeddings, dim=1).cpu().numpy(), labels.numpy())
            total += loss
            bar.set_postfix(loss=f"{loss:.4f}")
        seconds = time.perf_counter() - started
        metrics = self.process_group.broadcast(self._validate())
        if self.process_group.is_main:
            line = f"{title}: loss {total / steps:.4f}"
            if metrics:
                line += f", validation R@1 {metrics['R@1']:.3f}"
                line += f", FNIR at FPIR {settings.target_fpir:g}: {metrics['FNIR']:.3f}"
            tqdm.write(f"{line}, {seconds:.0f} s")
        return {
            "loss": total / steps,
            "seconds": seconds,
            "learning rate": learner.learning_rate,
            **{f"validation {name}": value for name, value in metrics.items()},
        }

    def _validate(self) -> dict[str, float]:
        """Return rank and open-set metrics on the validation items; {} without validation items."""
        if not self.validation:
            return {}
        vectors = self.source.validation_vectors(self.learner.kept)
        split = make_evaluation_split("validation", self.validation, self.splits.validation, self.protocol)
        labels = item_labels(self.validation)
        scores = score_split(split, vectors, labels)
        ranks = rank_metrics(split, vectors, labels)
        return ranks | open_set_metrics(scores, self.settings.target_fpir)

    def _scale_head(self, model: EmbeddingModel, pixels: PixelSource) -> None:
        """Scale the embedding layer so that embeddings of training photos have the initial norm on average."""
        statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
        model.train()
        if self.settings.freeze_batch_norm:
            freeze_batch_norm(model)
        with torch.no_grad():
            sample = pixels.reader.pixels(range(min(64, len(self.labels))))
            mean = model(to_device(sample, self.run.preprocessing, torch.device("cpu"))).norm(dim=1).mean()
            for name, buffer in model.named_buffers():
                buffer.copy_(statistics[name])
            for parameter in model.head.parameters():
                parameter.mul_(self.settings.initial_norm / mean)

    def _checkpoint(self, progress: dict[str, Any]) -> None:
        tensors, facts = self.learner.state()
        if isinstance(self.sampler, HardItemSampler) and self.sampler.means is not None:
            tensors[MEANS] = torch.from_numpy(self.sampler.means)
        self.run.save(LAST, tensors, {**progress, **facts})
        self.run.write_progress(progress)

    def _restore(self) -> dict[str, Any]:
        """Restore the last checkpoint, if there is one; return the progress."""
        if not self.run.has(LAST):
            return {"epoch": 0, "best": None}
        tensors, facts = self.run.load(LAST)
        self.learner.load(tensors, facts)
        if isinstance(self.sampler, HardItemSampler):
            means = tensors.get(MEANS)
            self.sampler.means = None if means is None else means.numpy().copy()
        if self.process_group.is_main:
            self.run.forget_after(facts["epoch"])
        return {"epoch": facts["epoch"], "best": facts["best"]}


def _out_of_patience(progress: Mapping[str, Any], patience: int) -> bool:
    """Return whether the best checkpoint is `patience` epochs old."""
    return bool(patience and progress["best"] and progress["epoch"] - progress["best"]["epoch"] >= patience)
