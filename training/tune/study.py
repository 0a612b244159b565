"""A tuning study: trials of settings, each trained on every fold, in a storage that several processes may share.

study/
  study.db      the plan and the trials, in Optuna's SQLite format, which `optuna-dashboard` shows
  trials/0007/  one trial: its log, and the metrics of every epoch of each fold
  features/     of a frozen backbone, for each fold
  best.toml     the best settings, for `retrieval train --config`

A running trial sends heartbeats. When they stop, its process was killed, and Optuna tries its values again.
"""

from __future__ import annotations

import dataclasses
import json
import math
import os
import shutil
import warnings
from collections.abc import Mapping, Sequence
from contextlib import redirect_stderr, redirect_stdout
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.pruners import MedianPruner, NopPruner
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.study import MaxTrialsCallback
from optuna.trial import FrozenTrial, Trial, TrialState
from sqlalchemy.exc import OperationalError

from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.splits import make_evaluation_protocol
from retrieval.errors import InvalidParameter, RunError, TrainingDiverged, command, counted
from training.config import Settings
from training.data.folds import FOLD_SEED, Fold, fold_splits, item_folds, training_items
from training.data.sources import FEATURES
from training.evaluation.evaluate import make_evaluation_split
from training.loop.recipe import check_recipe
from training.loop.train import train

from .space import Space, check_space, default_space, draw_settings, given_values

TRIALS = 50
OBJECTIVES: Mapping[str, tuple[str, Literal["minimize", "maximize"]]] = {  # name of the metric, direction
    "tpir": ("mean TPIR", "maximize"),
    "r@1": ("R@1", "maximize"),
    "opis": ("unfitted OPIS", "minimize"),
}
PREFIX = "validation "  # of these metrics in a run
HEAD = {  # settings on which the features of a frozen backbone do not depend, as on arguments of losses
    *("dim", "loss", "regularizer", "epochs", "items_per_batch", "photos_per_item", "sampler", "weight_decay"),
    *("learning_rate", "head_learning_rate", "proxy_learning_rate"),
}
NAME, PLAN, NUMBER, STOPPED = "tune", "plan", "trials", "stopped"  # of the study, and of what it and a trial keep
ENDED = (TrialState.COMPLETE, TrialState.PRUNED)
STOPS = (optuna.TrialPruned, InvalidParameter, TrainingDiverged, RuntimeError, MemoryError, FloatingPointError)
HEARTBEAT, GRACE = 5, 30  # seconds between heartbeats, and without one until a trial counts as killed
ATTEMPTS = 3  # how often a trial is started if its process is killed


@dataclass(frozen=True)
class Plan:
    """What a study searches, and how a trial is measured."""

    settings: Settings
    space: Space
    objective: str  # one of OBJECTIVES
    folds: tuple[Fold, ...]
    prune: bool = True  # stop trials that do worse than most

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InvalidParameter("objective", f"be one of {', '.join(OBJECTIVES)}", self.objective)
        check_space(self.settings, self.space)

    @property
    def metric(self) -> str:
        """Name of the metric that is the objective."""
        return OBJECTIVES[self.objective][0]

    @property
    def shares_features(self) -> bool:
        """Whether all trials have the same features of a frozen backbone."""
        return self.settings.precompute > 0 and all("." in name or name in HEAD for name in self.space)

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**dataclasses.asdict(self), "settings": self.settings.to_dict()}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Plan:
        """Build a plan from `to_dict`."""
        folds = tuple((tuple(fit), tuple(validation)) for fit, validation in values["folds"])
        return cls(**{**values, "settings": Settings.from_dict(values["settings"]), "folds": folds})


def make_plan(settings: Settings, space: Space | None = None, *, objective: str = "tpir", folds: int = 4) -> Plan:
    """Return the checked plan of a study on the training items, with the default search space if none is given.

    Nothing is written, and no photo opened. Raises InvalidParameter for a name that cannot be searched, and DataError
    if the training items do not fill the folds.
    """
    photos = read_catalogue(settings.catalogue)
    parts = tuple(item_folds(photos, training_items(photos), folds=folds, seed=FOLD_SEED))
    plan = Plan(settings, default_space() if space is None else space, objective, parts)
    protocol = make_evaluation_protocol(photos)
    for number, (_, validation) in enumerate(parts):
        make_evaluation_split(f"fold {number + 1} validation", photos, validation, protocol)
    check_recipe(settings, fold_splits(parts[0]))
    return plan


def run_study(path: Path, plan: Plan | None = None, *, trials: int | None = None) -> Outcome:
    """Start a study by its plan, or continue the one at `path`, until `trials` trials have ended.

    The first trial has the plan's own settings. Without `trials`, the earlier number counts, or else 50. Other
    processes may continue the study at the same time.

    Raises RunError if a plan is given and `path` contains a study, or if no plan is given and it contains none.
    """
    if trials is not None and trials < 1:
        raise InvalidParameter("trials", "be at least 1", trials)
    study = _open(path, plan)
    if trials is not None:
        study.set_user_attr(NUMBER, trials)
    plan, trials = Plan.from_dict(study.user_attrs[PLAN]), study.user_attrs.get(NUMBER, TRIALS)
    if not study.get_trials(deepcopy=False, states=(*ENDED, TrialState.WAITING, TrialState.RUNNING)):
        study.enqueue_trial(given_values(plan.settings, plan.space))
    if len(study.get_trials(deepcopy=False, states=ENDED)) < trials:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # heartbeats are experimental; given settings may lie outside of the space
            study.optimize(
                partial(objective, plan=plan, path=path),
                callbacks=[partial(_show, metric=plan.metric), MaxTrialsCallback(trials, states=ENDED)],
            )
    return Outcome(plan, study.get_trials(deepcopy=False, states=ENDED))


def objective(trial: Trial, *, plan: Plan, path: Path) -> float:
    """Train the settings of a trial on every fold, and return the mean of the metric over the folds.

    A trial is pruned if it does worse than most, diverges, fails in torch or has values that do not go together.
    Errors that affect every trial are raised.
    """
    folder, values = path / "trials" / f"{trial.number:04d}", list[float]()
    folder.mkdir(parents=True, exist_ok=True)
    try:
        settings = dataclasses.replace(draw_settings(trial, plan.settings, plan.space), loggers="")
        check_recipe(settings, fold_splits(plan.folds[0]))
        for number, fold in enumerate(plan.folds):
            features = path / "features" / f"fold-{number}.safetensors" if plan.shares_features else None
            with (folder / "log.txt").open("a") as log, redirect_stdout(log), redirect_stderr(log):
                values.append(fold_metrics(settings, folder / f"fold-{number}", fold, features)[plan.metric])
            if not math.isfinite(values[-1]):
                raise FloatingPointError(f"{plan.metric} is {values[-1]}")
            trial.report(float(np.mean(values)), number)
            if trial.should_prune() and number + 1 < len(plan.folds):
                raise optuna.TrialPruned(f"worse than most, after fold {number + 1}")
    except STOPS as error:
        trial.set_user_attr(STOPPED, " ".join(str(error).split())[:500] or type(error).__name__)
        raise optuna.TrialPruned from error
    return float(np.mean(values))


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


@dataclass(frozen=True)
class Outcome:
    """Plan of a study, and its trials that have ended."""

    plan: Plan
    trials: Sequence[FrozenTrial]

    @property
    def complete(self) -> list[FrozenTrial]:
        """The trials that finished all folds, best first; ties go to the earlier one."""
        sign = -1 if OBJECTIVES[self.plan.objective][1] == "maximize" else 1
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        return sorted(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number))

    @property
    def settings(self) -> Settings:
        """Settings of the best trial; those of the plan if none is complete."""
        if not self.complete:
            return self.plan.settings
        return draw_settings(optuna.trial.FixedTrial(self.complete[0].params), self.plan.settings, self.plan.space)

    def summary(self) -> str:
        """Return the outcome of the trials, and the best trial, in words."""
        done = self.complete
        early = len(self.trials) - len(done)
        text = f"{counted(len(self.trials), 'trial')}: {len(done)} complete, {early} stopped early."
        if not done:
            return text
        first = min(done, key=lambda trial: trial.number)
        value, given = (f"{self.plan.metric} {trial.value:.4g}" for trial in (done[0], first))
        evaluate = command("evaluate", "RUN")
        return (
            f"{text}\nBest: trial {done[0].number}, {value} (trial {first.number}: {given}).\n"
            f"The best of many looks better than it is; confirm it with `{evaluate}` on the test items."
        )

    def to_toml(self) -> str:
        """Return the best settings as TOML for `retrieval train --config`."""
        values = self.settings.to_dict()
        tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
        lines = ["# Best settings of `retrieval tune`", *_entries({k: v for k, v in values.items() if k not in tables})]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *_entries(table)]
        return "\n".join(lines) + "\n"


def _entries(values: Mapping[str, Any]) -> list[str]:
    """Return lines of TOML, which shares words, numbers, booleans and lists with JSON; None is left out."""
    plain = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items() if value is not None}
    return [f"{name} = {value}".replace("\x7f", "\\u007f") for name, value in plain.items()]


def _show(study: optuna.Study, trial: FrozenTrial, *, metric: str) -> None:  # noqa: ARG001
    """Print the outcome of a trial."""
    if trial.state in ENDED:
        result = trial.user_attrs.get(STOPPED) or f"{metric} {trial.value:.4g}"
        values = ", ".join(f"{name} {value}" for name, value in trial.params.items())
        print(f"trial {trial.number}: {result}  {values}", flush=True)


def _open(path: Path, plan: Plan | None) -> optuna.Study:
    """Return the study at `path`, a new one if there is a plan."""
    exists = (path / "study.db").exists()
    if plan is not None and exists:
        raise RunError(f"{path} already contains a study", remedy="Continue it with --resume, or choose another place")
    if plan is None and not exists:
        start = command("tune", "CATALOGUE", "-o", path)
        raise RunError(f"{path} is not a tuning study", remedy=f"Create one with `{start}`")
    path.mkdir(parents=True, exist_ok=True)
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            storage = RDBStorage(
                f"sqlite:///{path / 'study.db'}",
                engine_kwargs={"connect_args": {"timeout": 120}},
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=ATTEMPTS - 1),
            )
    except OperationalError as error:
        raise RunError(f"{path / 'study.db'} cannot be written: {error.orig}", remedy="Check the disk") from error
    if plan is not None:
        new = optuna.create_study(storage=storage, study_name=NAME, direction=OBJECTIVES[plan.objective][1])
        new.set_user_attr(PLAN, plan.to_dict())
    try:
        study = optuna.load_study(study_name=NAME, storage=storage)
        plan = Plan.from_dict(study.user_attrs[PLAN])
    except KeyError as error:
        raise RunError(f"{path / 'study.db'} is not a tuning study", remedy="Start another study") from error
    count = len(study.get_trials(deepcopy=False))  # a process that joins or resumes draws other values
    study.sampler = optuna.samplers.TPESampler(seed=plan.settings.seed + count)
    study.pruner = MedianPruner(n_startup_trials=4, n_min_trials=3) if plan.prune else NopPruner()
    return study
