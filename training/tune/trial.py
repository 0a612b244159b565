"""One trial: its settings are trained on each fold, and the figures of the validation items are averaged."""

from __future__ import annotations

import dataclasses
import math
import shutil
import time
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from multiprocessing import parent_process
from pathlib import Path

import numpy as np
import optuna
import torch
from optuna.trial import Trial, TrialState

from retrieval.errors import InvalidParameter
from retrieval.metrics.consistency import search_opis
from training.config import Settings
from training.data.folds import Fold, fold_splits
from training.data.reader import PhotoReader
from training.evaluation.embedding import embed_photos
from training.evaluation.evaluate import consistency_figures, item_labels, make_scene, score_scene
from training.loop.run import Run, choose_device
from training.loop.trainer import EpochCallback, train

from .features import borrow_features, keep_features
from .plan import Plan
from .study import FOLD_STEPS, StudyFolder
from .trial_queue import Claim

PREFIX = "validation "


def run_trial(
    study: optuna.Study, claimed: Claim, folder: StudyFolder, plan: Plan, *, threads: int | None = None
) -> None:
    """Do a claimed trial with so many threads, and write its outcome into the study.

    A trial that diverges is pruned; one that torch cannot do, for want of memory say, or whose values a run refuses,
    has failed and counts. What would end every trial, such as a photo that cannot be read, is raised, and the trial
    is left to be begun again.
    """
    trial, place = claimed.trial, folder.trial(claimed.trial.number)
    started = time.perf_counter()
    settings = dataclasses.replace(claimed.settings, loggers="")
    if threads is not None and not settings.decoders:
        settings = dataclasses.replace(settings, decoders=threads)
    try:
        with (place / "log.txt").open("w") as log, redirect_stdout(log), redirect_stderr(log):
            outcome = _all_folds(trial, settings, folder, plan)
        trial.set_user_attr("figures", {name: [fold[name] for fold in outcome] for name in outcome[0]})
        trial.set_user_attr("seconds", time.perf_counter() - started)
        values = [float(np.mean([fold[figure] for fold in outcome])) for figure in plan.figures]
        if not np.isfinite(values).all():
            raise FloatingPointError(f"{', '.join(plan.figures)} of {values}")
        study.tell(trial, values)
    except optuna.TrialPruned as stopped:
        trial.set_user_attr("seconds", time.perf_counter() - started)
        trial.set_user_attr("pruned", str(stopped))
        study.tell(trial, state=TrialState.PRUNED)
    except InvalidParameter as error:
        if trial.user_attrs.get("default"):
            raise
        _failed(study, trial, error.message)
    except (RuntimeError, MemoryError, FloatingPointError) as error:
        _failed(study, trial, f"{type(error).__name__}: {error}")
    finally:
        claimed.lock.close()


def _failed(study: optuna.Study, trial: Trial, reason: str) -> None:
    trial.set_user_attr("error", " ".join(reason.split())[:500])
    study.tell(trial, state=TrialState.FAIL)


def _all_folds(trial: Trial, settings: Settings, folder: StudyFolder, plan: Plan) -> list[dict[str, float]]:
    done: list[dict[str, float]] = []
    for number, fold in enumerate(plan.folds):
        watch = _watcher(trial, settings, plan, done)
        place = folder.trial(trial.number) / f"fold-{number}"
        kept = folder.path / "features" / f"fold-{number}"
        borrow_features(settings, place, kept)
        done.append(fold_figures(settings, place, fold, plan.figures, on_epoch=watch, keep=kept))
        if len(plan.objectives) == 1:
            _report(
                trial, [fold[plan.figures[0]] for fold in done], FOLD_STEPS * len(done), last=fold == plan.folds[-1]
            )
    return done


def fold_figures(
    settings: Settings,
    place: Path,
    fold: Fold,
    wanted: list[str],
    *,
    on_epoch: EpochCallback | None = None,
    keep: Path | None = None,
) -> dict[str, float]:
    """Train on one fold and return the figures of its validation items by the checkpoint that was kept.

    Only the log of figures is left, as PLACE.jsonl, and features of a frozen backbone, in `keep`.
    """
    try:
        run = train(settings, place, splits=fold_splits(fold), on_epoch=on_epoch, unguarded=True)
        best = run.progress["best"]["figures"]
        figures = {name.removeprefix(PREFIX): value for name, value in best.items() if name.startswith(PREFIX)}
        if not set(wanted) <= set(figures):
            figures |= _consistency(run)
        return figures
    finally:
        if keep is not None:
            keep_features(settings, place, keep)
        if (place / "metrics.jsonl").exists():
            (place / "metrics.jsonl").replace(place.with_suffix(".jsonl"))
        shutil.rmtree(place, ignore_errors=True)


def _consistency(run: Run) -> dict[str, float]:
    """Return OPIS of pairs and of searches on the validation items."""
    items = run.splits.validation
    photos = [photo for photo in run.photos() if photo.item_id in set(items)]
    model = run.best_model().to(choose_device(run.settings.device))
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    vectors = embed_photos(model, PhotoReader(photos, run.preprocessing, cache_bytes=0), len(photos), run.preprocessing)
    scene, labels = make_scene("validation", photos, items, run.protocol), item_labels(photos)
    scores = score_scene(scene, vectors, labels)
    return {
        **consistency_figures(scene, vectors, labels),
        "search OPIS": search_opis(scores, run.settings.target_fpir).value,
    }


def _watcher(trial: Trial, settings: Settings, plan: Plan, done: list[dict[str, float]]) -> EpochCallback:
    """Return what looks at each epoch of the next fold: it prunes, and it ends a worker whose study was killed."""
    figure = plan.figures[0]
    earlier = [fold[figure] for fold in done]
    reported = -1

    def watch(epochs: int, figures: Mapping[str, float]) -> None:
        nonlocal reported
        parent = parent_process()
        if parent is not None and not parent.is_alive():
            raise SystemExit("the study was stopped")  # and its trial is left to be begun again
        single = len(plan.objectives) == 1
        step = FOLD_STEPS * len(done) + min(FOLD_STEPS - 1, round(FOLD_STEPS * epochs / settings.epochs))
        if not math.isfinite(figures["loss"]):
            if single:
                trial.report(math.nan, step)
            raise optuna.TrialPruned(f"the loss was {figures['loss']} in fold {len(done) + 1}, epoch {epochs}")
        known = PREFIX + figure in figures
        if single and known and epochs < settings.epochs and step > reported:
            reported = step
            _report(trial, [*earlier, figures[PREFIX + figure]], step)

    return watch


def _report(trial: Trial, values: list[float], step: int, *, last: bool = False) -> None:
    """Tell the pruner the mean of the folds so far, and stop where it says so."""
    trial.report(float(np.mean(values)), step)
    if not last and trial.should_prune():
        fold, inside = divmod(step, FOLD_STEPS)
        raise optuna.TrialPruned(
            f"worse than most, in fold {fold + 1}" if inside else f"worse than most, after fold {fold}"
        )
