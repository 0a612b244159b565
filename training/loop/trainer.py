"""The training loop of one run: epochs, validation, checkpoints."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial

import numpy as np
import torch
from torch import Tensor, nn
from tqdm import tqdm

from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import photos_in_protocol
from retrieval.errors import TrainingDiverged
from retrieval.metrics.identification import SearchScores
from training.data.sources import FeatureSource, PixelSource
from training.evaluation.embedding import keep_freed_memory
from training.evaluation.evaluate import item_labels
from training.evaluation.mixed import LEAST_JUDGED, Comparison, MixedGallery
from training.losses.base import Loss
from training.model import EmbeddingModel, freeze_batch_norm

from .distributed import ProcessGroup
from .head_start import photos_to_fit, start_head, starts_fitted
from .learner import Learner, buffers_kept
from .loggers import open_loggers
from .recipe import build_loss, make_sampler
from .run import BEST, LAST, START, Run
from .selection import LAST_EPOCH, Selection, describe
from .warm_start import first_model, model_before

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
        self.process_group = process_group or ProcessGroup.join()
        if self.process_group.device.type == "cpu":
            keep_freed_memory()
        self._on_epoch, self._keeps_start = on_epoch, keep_start
        photos = run.photos() if photos is None else photos
        splits, protocol, held_out = run.splits, run.protocol, run.held_out
        fit = photos_in_protocol(photos, splits.fit, protocol, left_out=held_out)
        self.labels = torch.from_numpy(item_labels(fit, splits.fit))  # stay the same if an item is gone
        self.mixed: MixedGallery | None = None
        if splits.validation:
            self.mixed = MixedGallery.of(photos, held_out=held_out, unfitted=splits.validation, protocol=protocol)
        self._searches_before: SearchScores | None = None
        self.sampler = make_sampler(settings, fit)
        searched = self.mixed.photos if self.mixed else []
        pixels = PixelSource(fit, searched, settings, run.preprocessing, process_group=self.process_group)
        torch.manual_seed(settings.seed)
        loss = build_loss(settings, classes=len(splits.fit))
        if model is None:
            model = first_model(run)
        few = len(splits.validation) < LEAST_JUDGED  # whose choice would be chance
        self.selection = Selection(LAST_EPOCH if few else settings.select, settings.patience)
        self.source: PixelSource | FeatureSource = pixels
        if settings.precompute:
            model.to(self.process_group.device)
            before = partial(model_before, run)
            self.source = FeatureSource(
                run.path, pixels, model, settings, before=before, process_group=self.process_group
            )
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
        """Train the remaining epochs; each ends with validation and a checkpoint.

        Raises TrainingDiverged for an epoch whose losses, weights or embeddings are not finite; it has no checkpoint.
        """
        epoch, settings, batches = self._restore(), self.settings, self.sampler.batches
        names = settings.loggers if self.process_group.is_main else ""
        with open_loggers(names, self.run.path, settings.to_dict(), step=epoch * batches) as log:
            self._search_before()
            start = self._start(log) if not epoch else None
            while epoch < settings.epochs and not self.selection.stops(epoch):
                try:
                    metrics, comparison = self._epoch(epoch)
                except TrainingDiverged as error:
                    kept = f"; the checkpoint of epoch {epoch} is kept" if epoch else ""
                    raise TrainingDiverged(f"training diverged in epoch {epoch + 1}: {error.message}{kept}") from error
                epoch += 1
                log(metrics, epoch * batches)
                improved = self.selection.add(epoch, metrics, comparison)
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

    def _search_before(self) -> None:
        """Search the mixed gallery with the model that training starts from, for comparison."""
        if self.mixed is None or not self._keeps_start:
            return
        scores = self.mixed.search(self.source.vectors_before(partial(model_before, self.run)))
        self._searches_before = self.process_group.broadcast(scores)
        if self.process_group.is_main:
            target = self.settings.target_fpir
            tqdm.write(f"before training: {describe(self.mixed.metrics(scores, target), target)}")

    def _start(self, log: Log) -> dict[str, Tensor] | None:
        """Validate the model before the first step; return its weights, or None if it cannot be selected."""
        if self.selection.select == LAST_EPOCH or self._searches_before is None:
            return None
        values, comparison = self._validate()
        metrics = _named(values)
        self.selection.start(metrics, comparison)
        log(metrics, 0)
        if self.process_group.is_main:
            target, epochs = self.settings.target_fpir, self.settings.epochs
            tqdm.write(f"epoch 0/{epochs}: {describe(values, target)}")
            self.run.record({"epoch": 0, **metrics})
        return {name: value.detach().clone() for name, value in self.model.state_dict().items()}

    def _epoch(self, epoch: int) -> tuple[dict[str, float], Comparison]:
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
        learner.check_weights()
        seconds = time.perf_counter() - started
        metrics, comparison = self._validate()
        if self.process_group.is_main:
            shown = f", {describe(metrics, settings.target_fpir)}" if metrics else ""
            tqdm.write(f"{title}: loss {total / steps:.4f}{shown}, {seconds:.0f} s")
        facts = {"loss": total / steps, "seconds": seconds, "learning rate": learner.learning_rate}
        return facts | _named(metrics), comparison

    def _validate(self) -> tuple[dict[str, float], Comparison]:
        """Return the metrics in the mixed gallery and their comparison with those before training.

        They are those of the main process, and empty without validation items.
        """
        if self.mixed is None:
            return {}, {}
        vectors, target = self.source.vectors(self.model), self.settings.target_fpir
        before = self._searches_before
        if not np.isfinite(vectors).all():
            raise TrainingDiverged("embeddings of validation photos are not finite")
        scores = self.mixed.search(vectors)
        comparison = {} if before is None else self.mixed.compare(before, scores, target)
        return self.process_group.broadcast((self.mixed.metrics(scores, target, before), comparison))

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
            if self.process_group.is_main:
                self.run.forget_after(-1)  # of a run that was interrupted in its first epoch
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
