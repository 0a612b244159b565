"""One trial: training on each fold, and the mean metrics on the validation items."""

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
from training.evaluation.evaluate import consistency_metrics, item_labels, make_evaluation_split, score_split
from training.loop.run import Run, choose_device
from training.loop.train import train
from training.loop.trainer import EpochCallback

from .features import borrow_features, keep_features
from .plan import Plan
from .study import FOLD_STEPS, StudyFolder
from .trial_queue import QueuedTrial

PREFIX = "validation "


def run_trial(study: optuna.Study, queued: QueuedTrial, folder: StudyFolder, plan: Plan) -> None:
    """Run a queued trial, and store its outcome in the study.

    A trial that diverges is pruned. One that fails in torch, for example without enough memory, or whose values are
    invalid, is stored as failed. Errors that affect every trial, such as an unreadable photo, are raised, and the trial
    is repeated later.
    """
    trial, path = queued.trial, folder.trial(queued.trial.number)
    started = time.perf_counter()
    settings = dataclasses.replace(queued.settings, loggers="")
    try:
        with (path / "log.txt").open("w") as log, redirect_stdout(log), redirect_stderr(log):
            outcome = _all_folds(trial, settings, folder, plan)
        trial.set_user_attr("metrics", {name: [fold[name] for fold in outcome] for name in outcome[0]})
        trial.set_user_attr("seconds", time.perf_counter() - started)
        values = [float(np.mean([fold[metric] for fold in outcome])) for metric in plan.metrics]
        if not np.isfinite(values).all():
            raise FloatingPointError(f"{', '.join(plan.metrics)} of {values}")
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
        queued.lock.close()


def _failed(study: optuna.Study, trial: Trial, reason: str) -> None:
    trial.set_user_attr("error", " ".join(reason.split())[:500])
    study.tell(trial, state=TrialState.FAIL)


def _all_folds(trial: Trial, settings: Settings, folder: StudyFolder, plan: Plan) -> list[dict[str, float]]:
    done: list[dict[str, float]] = []
    for number, fold in enumerate(plan.folds):
        path = folder.trial(trial.number) / f"fold-{number}"
        callback = _epoch_callback(trial, settings, plan, done, path)
        store = folder.path / "features" / f"fold-{number}"
        borrow_features(settings, path, store)
        done.append(fold_metrics(settings, path, fold, plan.metrics, on_epoch=callback, feature_store=store))
        if len(plan.objectives) == 1:
            _report(
                trial, [fold[plan.metrics[0]] for fold in done], FOLD_STEPS * len(done), last=fold == plan.folds[-1]
            )
    return done


def fold_metrics(
    settings: Settings,
    path: Path,
    fold: Fold,
    wanted: list[str],
    *,
    on_epoch: EpochCallback | None = None,
    feature_store: Path | None = None,
) -> dict[str, float]:
    """Train on one fold and return the metrics of the kept checkpoint on its validation items.

    The run directory `path` is deleted. Its metrics remain as PATH.jsonl, and features of a frozen backbone in
    `feature_store`.
    """
    try:
        run = train(settings, path, splits=fold_splits(fold), on_epoch=on_epoch, unguarded=True)
        best = run.progress["best"]["metrics"]
        metrics = {name.removeprefix(PREFIX): value for name, value in best.items() if name.startswith(PREFIX)}
        if not set(wanted) <= set(metrics):
            metrics |= _consistency(run)
        return metrics
    finally:
        if feature_store is not None:
            keep_features(settings, path, feature_store)
        if (path / "metrics.jsonl").exists():
            (path / "metrics.jsonl").replace(path.with_suffix(".jsonl"))
        shutil.rmtree(path, ignore_errors=True)


def _consistency(run: Run) -> dict[str, float]:
    """Return OPIS of pairs and of searches on the validation items."""
    items = run.splits.validation
    photos = [photo for photo in run.photos() if photo.item_id in set(items)]
    model = run.best_model().to(choose_device())
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    vectors = embed_photos(model, PhotoReader(photos, run.preprocessing, cache_bytes=0), len(photos), run.preprocessing)
    split, labels = make_evaluation_split("validation", photos, items, run.protocol), item_labels(photos)
    scores = score_split(split, vectors, labels)
    return {
        **consistency_metrics(split, vectors, labels),
        "search OPIS": search_opis(scores, run.settings.target_fpir).value,
    }


def _epoch_callback(
    trial: Trial, settings: Settings, plan: Plan, done: list[dict[str, float]], path: Path
) -> EpochCallback:
    """Return a callback for the epochs of the next fold, whose run is at `path`.

    It prunes, and exits if the parent process was killed.
    """
    metric = plan.metrics[0]
    earlier = [fold[metric] for fold in done]
    reported = -1

    def on_epoch(epochs: int, metrics: Mapping[str, float]) -> None:
        nonlocal reported
        parent = parent_process()
        if parent is not None and not parent.is_alive():
            raise SystemExit("the study was stopped")  # its trial is repeated later
        single = len(plan.objectives) == 1
        planned = Run.open(path).settings.epochs if not settings.epochs else settings.epochs
        step = FOLD_STEPS * len(done) + min(FOLD_STEPS - 1, round(FOLD_STEPS * epochs / planned))
        if not math.isfinite(metrics["loss"]):
            if single:
                trial.report(math.nan, step)
            raise optuna.TrialPruned(f"the loss was {metrics['loss']} in fold {len(done) + 1}, epoch {epochs}")
        known = PREFIX + metric in metrics
        if single and known and epochs < planned and step > reported:
            reported = step
            _report(trial, [*earlier, metrics[PREFIX + metric]], step)

    return on_epoch


def _report(trial: Trial, values: list[float], step: int, *, last: bool = False) -> None:
    """Report the mean over the folds so far, and raise TrialPruned if the pruner stops the trial."""
    trial.report(float(np.mean(values)), step)
    if not last and trial.should_prune():
        fold, inside = divmod(step, FOLD_STEPS)
        raise optuna.TrialPruned(
            f"worse than most, in fold {fold + 1}" if inside else f"worse than most, after fold {fold}"
        )
