"""The training loop: epochs, validation, checkpoints, and resuming as if nothing had happened."""

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
from training.data.splits import Protocol, Splits, make_protocol, make_splits, protocol_photos, require_mates
from training.evaluation.embedding import to_device
from training.evaluation.evaluate import item_labels, make_scene, open_set_figures, rank_figures, score_scene
from training.model import EmbeddingModel, backbone_preprocessing, freeze_batch_norm

from .distributed import ProcessEnded, Team, launch, launched
from .learner import Learner
from .loggers import Loggers
from .memory import keep_freed_memory
from .recipe import build_loss, check_recipe, initial_model, make_sampler
from .run import BEST, LAST, Run, Traces

EpochCallback = Callable[[int, Mapping[str, float]], None]
MEANS = "sampler.means"  # of items, in a checkpoint
SELECT: Mapping[str, Callable[[Mapping[str, float]], list[float]]] = {  # smaller is better
    "fnir": lambda figures: [figures["validation FNIR"], -figures["validation R@1"]],
    "r@1": lambda figures: [-figures["validation R@1"], figures["validation FNIR"]],
    "map@r": lambda figures: [-figures["validation MAP@R"], figures["validation FNIR"]],
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
    """Train, or continue, a run at `path`, and return it.

    Every photo is opened before anything is written, and a training that fails before its first epoch is finished
    leaves nothing behind: the corrected one may take the same path. One that is interrupted or killed can be resumed.
    The result depends on the settings alone: an interrupted and resumed run ends with the same weights as an
    uninterrupted one on the same machine, because every random choice is drawn from (seed, epoch).

    Parameters
    ----------
    resume:
        Continue, with the run's own settings.
    splits:
        Who may see what, in place of `make_splits`. Without validation items the last checkpoint is kept, which
        `settings.select` must say.
    on_epoch:
        Called after each epoch with the number of epochs done and their figures; what it raises ends the run there, to
        be resumed. For a run of one process.
    unguarded:
        Do not open the photos first, and let a failed training be: for one run of many on the same photos, whose
        caller looks after its directory.

    Raises
    ------
    DataError
        Where the labels or the photos cannot be used.
    InvalidParameter
        For settings that cannot be trained.
    RunError
        Where `path` holds a run already, or none to resume.
    """
    settings = Run.open(path).settings if resume else settings
    several = settings.devices > 1 and not launched()
    if several and on_epoch is not None:
        raise InvalidParameter("devices", "be 1 where epochs are watched", settings.devices)
    team = Team(torch.device("cpu")) if several else Team.join(settings.device)
    traces = Traces(path)
    photos, model = None, None
    if not resume:
        photos, model = begin_run(settings, path, splits=splits, team=team, unguarded=unguarded)
    try:
        if several:
            launch(_train_in_team, (path,), processes=settings.devices)
            return Run.open(path)
        return Trainer(Run.open(path), photos=photos, model=model, team=team, on_epoch=on_epoch).run_epochs()
    except ProcessEnded:  # as if this one had been killed: it can be resumed
        raise
    except Exception:
        if team.leads and not (resume or unguarded or Run(path).has(LAST)):
            traces.remove()
        raise


def begin_run(
    settings: Settings,
    path: Path,
    *,
    splits: Splits | None = None,
    team: Team | None = None,
    unguarded: bool = False,
) -> tuple[list[Photo], EmbeddingModel]:
    """Check that a run can be trained and write its directory, without a step; return its photos and first model.

    The photos are opened, too, unless it is `unguarded` (`train`).
    """
    team = team or Team.join(settings.device)
    photos = read_catalogue(Path(settings.catalogue))
    splits = splits or make_splits(photos, seed=settings.split_seed)
    protocol = make_protocol(photos, gallery_source=settings.gallery_source, query_source=settings.query_source)
    if splits.validation:
        require_mates("validation", photos, splits.validation, protocol)
    check_recipe(settings, splits)
    fit = protocol_photos(photos, splits.fit, protocol)
    make_sampler(settings, fit)
    model, config = initial_model(settings)
    preprocessing = backbone_preprocessing(settings.backbone, size=settings.size, view=settings.view)
    if not unguarded:
        wanted = set(splits.validation)
        seen = [*fit, *(photo for photo in photos if photo.item_id in wanted)]
        folder, threads = settings.cache_dir, settings.decoders
        team.lead(lambda: require_readable(seen, preprocessing, cache_dir=folder, threads=threads))
    documents: dict[str, Any] = {
        "settings": settings.to_dict(),
        "splits": {"parts": splits.to_dict(), "protocol": vars(protocol)},
        "backbone": {"config": config, "preprocessing": preprocessing.to_dict()},
    }
    team.lead(lambda: Run.create(path, **documents))
    return photos, model


def _train_in_team(path: Path) -> None:
    run = Run.open(path)
    Trainer(run, team=Team.join(run.settings.device)).run_epochs()


class Trainer:
    """One run in the making; `run_epochs` does what is left to do."""

    def __init__(
        self,
        run: Run,
        *,
        photos: Sequence[Photo] | None = None,
        model: EmbeddingModel | None = None,
        team: Team | None = None,
        on_epoch: EpochCallback | None = None,
    ) -> None:
        self.run = run
        self.settings = settings = run.settings
        self.splits: Splits = run.splits
        self.protocol: Protocol = run.protocol
        self.team = team or Team.join(settings.device)
        if self.team.device.type == "cpu":
            keep_freed_memory()
        self._on_epoch = on_epoch
        photos = run.photos() if photos is None else photos
        fit = protocol_photos(photos, self.splits.fit, self.protocol)
        wanted = set(self.splits.validation)
        self.labels = torch.from_numpy(item_labels(fit))
        self.validation = [photo for photo in photos if photo.item_id in wanted]
        self.sampler = make_sampler(settings, fit)
        pixels = PixelSource(fit, self.validation, settings, run.preprocessing, team=self.team)
        torch.manual_seed(settings.seed)
        loss = build_loss(settings, classes=len(self.splits.fit))
        if model is None:
            model = run.new_model() if run.has(LAST) else initial_model(settings)[0]
        if settings.initial_norm and not run.has(LAST):
            self._scale_head(model, pixels)
        self.source: Source = pixels
        if settings.precompute:
            model.to(self.team.device)
            self.source = FeatureSource(run.path, pixels, model, settings, self.team)
        self.learner = Learner(
            model,
            loss,
            settings,
            team=self.team,
            steps=self.sampler.batches * settings.epochs,
            prepare=self.source.prepare,
        )

    @property
    def model(self) -> EmbeddingModel:
        """The model in training."""
        return self.learner.model

    def run_epochs(self) -> Run:
        """Do the epochs that are left; each ends with validation and a checkpoint."""
        progress, settings, batches = self._restore(), self.settings, self.sampler.batches
        names = settings.loggers if self.team.leads else ""
        with Loggers(names, self.run.path, settings.to_dict(), step=progress["epoch"] * batches) as loggers:
            while progress["epoch"] < settings.epochs and not _tired(progress, settings.patience):
                figures = self._epoch(progress["epoch"])
                loggers.log(figures, (progress["epoch"] + 1) * batches)
                progress["epoch"] += 1
                self._keep_best(progress, figures)
                if self.team.leads:
                    self.run.record({"epoch": progress["epoch"], **figures})  # a resumed run forgets it if need be
                    self._checkpoint(progress)
                self.team.wait()
                if self._on_epoch is not None:
                    self._on_epoch(progress["epoch"], figures)
        return self.run

    def _keep_best(self, progress: dict[str, Any], figures: Mapping[str, float]) -> None:
        rank, best = SELECT[self.settings.select](figures), progress["best"]
        if best is None or self.settings.select == "last" or rank < list(best["rank"]):
            progress["best"] = {"epoch": progress["epoch"], "rank": rank, "figures": dict(figures)}
            if self.team.leads:
                self.run.save(BEST, self.learner.kept.state_dict())

    def _epoch(self, epoch: int) -> dict[str, float]:
        settings, learner, steps = self.settings, self.learner, self.sampler.batches
        learner.begin(epoch)
        planned = list(self.sampler.epoch(epoch))
        total, started = 0.0, time.perf_counter()
        title = f"epoch {epoch + 1}/{settings.epochs}"
        bar = tqdm(planned, desc=title, unit="batch", disable=not self.team.leads)
        for positions, inputs in zip(bar, self.source.inputs(planned, epoch), strict=True):
            labels = self.labels[positions]
            loss, embeddings = learner.take(inputs, labels)
            if isinstance(self.sampler, HardItemSampler):
                self.sampler.update(F.normalize(embeddings, dim=1).cpu().numpy(), labels.numpy())
            total += loss
            bar.set_postfix(loss=f"{loss:.4f}")
        seconds = time.perf_counter() - started
        figures = self.team.agree(self._validate())
        if self.team.leads:
            told = f"{title}: loss {total / steps:.4f}"
            if figures:
                told += f", validation R@1 {figures['R@1']:.3f}"
                told += f", FNIR at FPIR {settings.target_fpir:g}: {figures['FNIR']:.3f}"
            tqdm.write(f"{told}, {seconds:.0f} s")
        return {
            "loss": total / steps,
            "seconds": seconds,
            "learning rate": learner.learning_rate,
            **{f"validation {name}": value for name, value in figures.items()},
        }

    def _validate(self) -> dict[str, float]:
        """Return R@1 and the open-set figures on validation items, which choose the checkpoint; {} without any."""
        if not self.validation:
            return {}
        vectors = self.source.validation_vectors(self.learner.kept)
        scene = make_scene("validation", self.validation, self.splits.validation, self.protocol)
        labels = item_labels(self.validation)
        scores = score_scene(scene, vectors, labels)
        ranks = rank_figures(scene, vectors, labels)
        return ranks | open_set_figures(scores, self.settings.target_fpir)

    def _scale_head(self, model: EmbeddingModel, pixels: PixelSource) -> None:
        """Scale the embedding layer so that training photos have the initial norm: a probabilistic loss reads it."""
        statistics = {name: buffer.clone() for name, buffer in model.named_buffers()}
        model.train()
        if self.settings.freeze_batch_norm:
            freeze_batch_norm(model)
        with torch.no_grad():
            some = pixels.reader.pixels(range(min(64, len(self.labels))))
            mean = model(to_device(some, self.run.preprocessing, torch.device("cpu"))).norm(dim=1).mean()
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
        """Continue from the last checkpoint; return the progress, which is fresh where there is none."""
        if not self.run.has(LAST):
            return {"epoch": 0, "best": None}
        tensors, facts = self.run.load(LAST)
        self.learner.load(tensors, facts)
        if isinstance(self.sampler, HardItemSampler):
            means = tensors.get(MEANS)
            self.sampler.means = None if means is None else means.numpy().copy()
        if self.team.leads:
            self.run.forget_after(facts["epoch"])
        return {"epoch": facts["epoch"], "best": facts["best"]}


def _tired(progress: Mapping[str, Any], patience: int) -> bool:
    """Return whether so many epochs went by without a better checkpoint."""
    return bool(patience and progress["best"] and progress["epoch"] - progress["best"]["epoch"] >= patience)
