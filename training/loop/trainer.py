"""The training loop of one run: epochs, validation, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence

import torch
from torch import Tensor, nn
from tqdm import tqdm

from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import (
    EvaluationProtocol,
    Splits,
    photos_in_protocol,
)
from training.data.sources import FeatureSource, PixelSource
from training.evaluation.embedding import keep_freed_memory
from training.evaluation.evaluate import item_labels, make_evaluation_split, validation_metrics
from training.losses.base import Loss
from training.model import EmbeddingModel, freeze_batch_norm

from .distributed import ProcessGroup
from .gradient_cache import buffers_kept
from .head_start import photos_to_fit, start_head, starts_fitted
from .learner import Learner
from .loggers import open_loggers
from .recipe import build_loss, make_sampler
from .run import BEST, LAST, START, Run
from .selection import LAST_EPOCH, Selection, describe
from .warm_start import first_model

Log = Callable[[Mapping[str, float], int], None]
EpochCallback = Callable[[int, Mapping[str, float]], None]


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
        keep_start: bool = True,
    ) -> None:
        self.run = run
        self.settings = settings = run.settings
        self.splits: Splits = run.splits
        self.protocol: EvaluationProtocol = run.protocol
        self.process_group = process_group or ProcessGroup.join()
        if self.process_group.device.type == "cpu":
            keep_freed_memory()
        self._on_epoch, self._keeps_start = on_epoch, keep_start
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
            model = first_model(run)
        self.selection = Selection(settings.select, settings.patience)
        self.source: PixelSource | FeatureSource = pixels
        if settings.precompute:
            model.to(self.process_group.device)
            self.source = FeatureSource(run.path, pixels, model, settings, self.process_group)
        if not (run.has(LAST) or run.has(START)):
            self._start_head(model, loss, pixels)
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
        epoch, settings, batches = self._restore(), self.settings, self.sampler.batches
        names = settings.loggers if self.process_group.is_main else ""
        with open_loggers(names, self.run.path, settings.to_dict(), step=epoch * batches) as log:
            start = self._start(log) if not epoch else None
            while epoch < settings.epochs and not self.selection.stops(epoch):
                metrics = self._epoch(epoch)
                epoch += 1
                log(metrics, epoch * batches)
                improved = self.selection.add(epoch, metrics)
                if self.process_group.is_main:
                    if improved or epoch == 1:
                        best = self.model.state_dict() if improved or start is None else start
                        self.run.save(BEST, best)
                    self.run.record({"epoch": epoch, **metrics})  # a resumed run drops it if need be
                    self._checkpoint(epoch)
                self.process_group.barrier()
                if self._on_epoch is not None:
                    self._on_epoch(epoch, metrics)
        return self.run

    def _start(self, log: Log) -> dict[str, Tensor] | None:
        """Validate the model before training; return its weights, or None if it cannot be selected."""
        if self.settings.select == LAST_EPOCH or not self._keeps_start or not self.validation:
            return None
        values = self._validate()
        metrics = _named(values)
        self.selection.start(metrics)
        log(metrics, 0)
        if self.process_group.is_main:
            tqdm.write(f"before training: {describe(values, self.settings.target_fpir)}")
            self.run.forget_after(-1)  # of a run that was interrupted in its first epoch
            self.run.record({"epoch": 0, **metrics})
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _epoch(self, epoch: int) -> dict[str, float]:
        settings, learner, steps = self.settings, self.learner, self.sampler.batches
        learner.begin(epoch)
        planned = list(self.sampler.epoch(epoch))
        total, started = 0.0, time.perf_counter()
        title = f"epoch {epoch + 1}/{settings.epochs}"
        bar = tqdm(planned, desc=title, unit="batch", disable=not self.process_group.is_main)
        for positions, inputs in zip(bar, self.source.inputs(planned, epoch), strict=True):
            labels = self.labels[positions]
            loss = learner.take(inputs, labels)
            total += loss
            bar.set_postfix(loss=f"{loss:.4f}")
        seconds = time.perf_counter() - started
        metrics = self._validate()
        if self.process_group.is_main:
            shown = f", {describe(metrics, settings.target_fpir)}" if metrics else ""
            tqdm.write(f"{title}: loss {total / steps:.4f}{shown}, {seconds:.0f} s")
        return {
            "loss": total / steps,
            "seconds": seconds,
            "learning rate": learner.learning_rate,
            **_named(metrics),
        }

    def _validate(self) -> dict[str, float]:
        """Return the metrics on the validation items, of the main process; {} without validation items."""
        if not self.validation:
            return {}
        vectors = self.source.validation_vectors(self.model)
        split = make_evaluation_split("validation", self.validation, self.splits.validation, self.protocol)
        labels, target = item_labels(self.validation), self.settings.target_fpir
        return self.process_group.broadcast(validation_metrics(split, vectors, labels, target_fpir=target))

    def _start_head(self, model: EmbeddingModel, loss: nn.Module, pixels: PixelSource) -> None:
        """Set the embedding layer to its start. The main process computes it and shares the weights."""
        if starts_fitted(self.settings) and self.process_group.is_main:
            model.to(self.process_group.device)
            labels = self.labels.numpy()
            chosen = photos_to_fit(labels, seed=self.settings.seed)
            start_head(model.head, self.source.features(model, chosen), labels[chosen])
        norm = max((part.initial_norm for part in loss.modules() if isinstance(part, Loss)), default=0.0)
        if norm:
            self._scale_head(model, pixels, norm)

    def _scale_head(self, model: EmbeddingModel, pixels: PixelSource, norm: float) -> None:
        """Scale the embedding layer so that embeddings of training photos have this norm on average."""
        model.to(self.process_group.device).train()
        if self.settings.frozen_statistics:
            freeze_batch_norm(model)
        sample = pixels.prepare(pixels.reader.pixels(range(min(64, len(self.labels)))))
        with torch.no_grad(), buffers_kept(model):
            factor = norm / model(sample).norm(dim=1).mean()
            for parameter in model.head.parameters():
                parameter.mul_(factor)

    def _checkpoint(self, epoch: int) -> None:
        tensors, facts = self.learner.state()
        progress = {"epoch": epoch, "best": self.selection.best, "best_trained": self.selection.best_trained}
        self.run.save(LAST, tensors, {**progress, **facts})
        self.run.write_progress(progress)

    def _restore(self) -> int:
        """Restore the last checkpoint, if there is one; return the number of finished epochs."""
        if not self.run.has(LAST):
            if self.run.has(START):
                self.learner.begin_with(self.run.load(START)[0])
            return 0
        tensors, facts = self.run.load(LAST)
        self.learner.load(tensors, facts)
        self.selection.best, self.selection.best_trained = facts["best"], facts["best_trained"]
        if self.process_group.is_main:
            self.run.forget_after(facts["epoch"])
        epochs: int = facts["epoch"]
        return epochs


def _named(metrics: Mapping[str, float]) -> dict[str, float]:
    """Return validation metrics with the names that are logged."""
    return {f"validation {name}": value for name, value in metrics.items()}
