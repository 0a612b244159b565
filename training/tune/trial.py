"""One trial: training on each fold, and the mean metric on the validation items."""

from __future__ import annotations

import dataclasses
import math
import os
import shutil
import time
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.trial import Trial

from retrieval.errors import InvalidParameter, RetrievalError, TrainingDiverged
from training.config import Settings
from training.data.folds import Fold, fold_splits
from training.data.sources import FEATURES
from training.loop.recipe import check_recipe
from training.loop.train import train

if TYPE_CHECKING:
    from .study import Plan

# what a trial records: that it has the given settings, why it ended early, why its values were refused
GIVEN, ENDED, REFUSED = "given", "ended", "refused"
PREFIX = "validation "
HEAD = {  # settings on which the features of a frozen backbone do not depend; nor do they on arguments of losses
    *("dim", "loss", "regularizer", "epochs", "items_per_batch", "photos_per_item", "sampler", "weight_decay"),
    *("head_learning_rate", "proxy_learning_rate"),
}


def run_trial(plan: Plan, path: Path, trial: Trial) -> float:
    """Train a trial on every fold and return its objective, the mean over the folds.

    A trial that diverges, or whose values do not go together, is pruned. One that fails in torch is stored as failed.
    Errors that affect every trial are raised.
    """
    started = time.perf_counter()
    try:
        settings = plan.space.suggest(trial)
        check_recipe(settings, fold_splits(plan.folds[0]))
        folder = path / "trials" / f"{trial.number:04d}"
        folder.mkdir(parents=True, exist_ok=True)
        with (folder / "log.txt").open("w") as log, redirect_stdout(log), redirect_stderr(log):
            return _all_folds(trial, dataclasses.replace(settings, loggers=""), plan, folder)
    except InvalidParameter as error:
        if trial.user_attrs.get(GIVEN):
            raise
        trial.set_user_attr(REFUSED, error.message)
        raise optuna.TrialPruned from error
    except (optuna.TrialPruned, TrainingDiverged) as stopped:
        trial.set_user_attr(ENDED, str(stopped))
        raise optuna.TrialPruned from stopped
    except RetrievalError:
        raise
    except Exception as error:
        trial.set_user_attr(ENDED, " ".join(f"{type(error).__name__}: {error}".split())[:500])
        raise
    finally:
        trial.set_user_attr("seconds", time.perf_counter() - started)


def _all_folds(trial: Trial, settings: Settings, plan: Plan, folder: Path) -> float:
    done: list[dict[str, float]] = []
    shared = None
    if settings.precompute and all("." in name or name in HEAD for name in plan.search):
        shared = folder.parent.parent / "features"
    for number, fold in enumerate(plan.folds):
        features = None if shared is None else shared / f"fold-{number}.safetensors"
        done.append(fold_metrics(settings, folder / f"fold-{number}", fold, features))
        trial.report(float(np.mean([metrics[plan.metric] for metrics in done])), number)
        if number + 1 < len(plan.folds) and trial.should_prune():
            raise optuna.TrialPruned(f"worse than most, after fold {number + 1}")
    trial.set_user_attr("metrics", {name: [metrics[name] for metrics in done] for name in done[0]})
    value = float(np.mean([metrics[plan.metric] for metrics in done]))
    if not math.isfinite(value):
        raise FloatingPointError(f"{plan.metric} of {value}")
    return value


def fold_metrics(settings: Settings, path: Path, fold: Fold, features: Path | None = None) -> dict[str, float]:
    """Train on one fold and return the metrics of the kept checkpoint on its validation items.

    The run directory `path` is deleted; its metrics remain as PATH.jsonl, and features of a frozen backbone at
    `features`, for later trials.
    """
    try:
        if features is not None and features.exists():
            path.mkdir(parents=True, exist_ok=True)
            os.link(features, path / FEATURES)
        run = train(settings, path, splits=fold_splits(fold), check_photos=False)
        best = run.progress["best"]["metrics"]
        return {name.removeprefix(PREFIX): value for name, value in best.items() if name.startswith(PREFIX)}
    finally:
        if features is not None and (path / FEATURES).exists():  # computed again if the photos have changed
            features.parent.mkdir(exist_ok=True)
            (path / FEATURES).replace(features)
        if (path / "metrics.jsonl").exists():
            (path / "metrics.jsonl").replace(path.with_suffix(".jsonl"))
        shutil.rmtree(path, ignore_errors=True)
