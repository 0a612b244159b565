"""A tuning study: its plan, and its trials in Optuna's storage, from which any number of processes takes them.

study/
  study.json    settings, search space, objective, folds and number of trials
  study.db      the trials, in Optuna's SQLite format: `optuna-dashboard sqlite:///study/study.db` shows them
  trials/0007/  one trial: its log, and the metrics of every epoch of each fold
  best.toml     the best settings, for `retrieval train --config`

A running trial sends heartbeats. When they stop, its process was killed, and Optuna lets its values wait again.
"""

from __future__ import annotations

import dataclasses
import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Literal

import numpy as np
import optuna
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback
from optuna.trial import FrozenTrial, TrialState
from sqlalchemy.exc import OperationalError

from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.splits import make_evaluation_protocol
from retrieval.errors import InvalidParameter, RunError, command, counted
from retrieval.files import write_file
from training.config import SPLIT_SEED, Settings
from training.data.folds import Fold, fold_splits, item_folds, share_of_items, training_items
from training.evaluation.evaluate import make_evaluation_split
from training.loop.recipe import check_recipe

from .search_space import SearchSpace, apply
from .trial import ENDED, GIVEN, REFUSED, run_trial

NAME = "tune"
TRIALS = 50
OBJECTIVES: Mapping[str, tuple[str, Literal["minimize", "maximize"]]] = {  # name of the metric, direction
    "tpir": ("mean TPIR", "maximize"),
    "r@1": ("R@1", "maximize"),
    "opis": ("unfitted OPIS", "minimize"),
}
HEARTBEAT, GRACE = 5, 30  # seconds between heartbeats, and without one until a trial counts as killed
ATTEMPTS = 3  # how often a trial is started if its process is killed
REFUSALS = 200  # draws of values that do not go together, after which the search ends
FAILURES = (RuntimeError, MemoryError, FloatingPointError)  # fail one trial, not the study


@dataclass(frozen=True)
class Plan:
    """Definition of a study, as stored in study.json."""

    settings: Settings
    search: Mapping[str, str]  # values by name (`search_space`)
    objective: str  # one of OBJECTIVES
    folds: tuple[Fold, ...]
    trials: int = TRIALS
    prune: bool = True  # stop trials that do worse than most

    def __post_init__(self) -> None:
        if self.objective not in OBJECTIVES:
            raise InvalidParameter("objective", f"be one of {', '.join(OBJECTIVES)}", self.objective)
        if self.trials < 1:
            raise InvalidParameter("trials", "be at least 1", self.trials)

    @property
    def space(self) -> SearchSpace:
        """Checked search space."""
        return SearchSpace.of(self.search, self.settings)

    @property
    def metric(self) -> str:
        """Name of the metric that is the objective."""
        return OBJECTIVES[self.objective][0]

    @property
    def direction(self) -> Literal["minimize", "maximize"]:
        """Direction of the objective, in Optuna's words."""
        return OBJECTIVES[self.objective][1]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**dataclasses.asdict(self), "settings": self.settings.to_dict()}

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read the plan of a study; raise RunError where there is none or it cannot be read."""
        if not (path / "study.json").exists() or not (path / "study.db").exists():
            start = command("tune", "CATALOGUE", "-o", path, "--search", "learning_rate=1e-5..1e-3:log")
            raise RunError(f"{path} is not a tuning study", remedy=f"Create one with `{start}`")
        try:
            values = json.loads((path / "study.json").read_text())
            folds = tuple((tuple(fit), tuple(validation)) for fit, validation in values["folds"])
            return cls(**{**values, "settings": Settings.from_dict(values["settings"]), "folds": folds})
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path / 'study.json'} cannot be read: {error}", remedy="Start another study") from error


@dataclass(frozen=True)
class Outcome:
    """Plan and trials of a study: complete ones, stopped ones and failed ones."""

    plan: Plan
    trials: Sequence[FrozenTrial]

    @property
    def complete(self) -> list[FrozenTrial]:
        """The trials that finished all folds, best first; ties go to the earlier one."""
        sign = -1 if self.plan.direction == "maximize" else 1
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        return sorted(done, key=lambda trial: (sign * (trial.value or 0.0), trial.number))

    @property
    def settings(self) -> Settings:
        """Settings of the best trial; those of the plan if none is complete."""
        return apply(self.plan.settings, self.complete[0].params if self.complete else {})

    def summary(self) -> str:
        """Return the best trial compared with the given settings, in words."""
        states = [trial.state for trial in self.trials]
        pruned, failed = states.count(TrialState.PRUNED), states.count(TrialState.FAIL)
        lines = [
            f"{counted(len(states), 'trial')}: {len(self.complete)} complete, {pruned} stopped early, {failed} failed."
        ]
        if not self.complete:
            return lines[0]
        best = self.complete[0]
        lines.append(f"Best: trial {best.number}, {self.plan.metric} {best.value:.4g}.")
        given = next((trial for trial in self.complete if trial.user_attrs.get(GIVEN)), None)
        if given is not None and given is not best:
            change = np.subtract(*(trial.user_attrs["metrics"][self.plan.metric] for trial in (best, given)))
            error = change.std(ddof=1) / np.sqrt(len(change))
            lines.append(
                f"Change from the given settings: {change.mean():.3g} ± {error:.2g} (standard error over folds)."
            )
        evaluate = command("evaluate", "RUN")
        lines.append(f"The best of many looks better than it is; confirm it with `{evaluate}` on the test items.")
        return "\n".join(lines)

    def to_toml(self) -> str:
        """Return the best settings as TOML for `retrieval train --config`."""
        values = self.settings.to_dict()
        tables = {name: value for name, value in values.items() if isinstance(value, Mapping)}
        lines = ["# Found by `retrieval tune`", *_entries({k: v for k, v in values.items() if k not in tables})]
        for name, table in tables.items():
            lines += ["", f"[{name}]", *_entries(table)]
        return "\n".join(lines) + "\n"


def make_plan(
    settings: Settings,
    search: Mapping[str, str],
    *,
    objective: str = "tpir",
    folds: int = 4,
    share: float = 1.0,
    trials: int = TRIALS,
    prune: bool = True,
) -> Plan:
    """Return the checked plan of a study on a share of the training items, without writing or opening photos.

    Raises
    ------
    InvalidParameter
        For a name or values that cannot be searched, or fewer than one trial.
    DataError
        If the training items do not fill the folds.
    """
    photos = read_catalogue(settings.catalogue)
    items = share_of_items(photos, training_items(photos, seed=SPLIT_SEED), share=share, seed=SPLIT_SEED)
    parts = tuple(item_folds(photos, items, folds=folds, seed=SPLIT_SEED))
    plan = Plan(settings, dict(search), objective, parts, trials, prune)
    SearchSpace.of(plan.search, settings)
    protocol = make_evaluation_protocol(photos)
    for number, (_, validation) in enumerate(parts):
        make_evaluation_split(f"fold {number + 1} validation", photos, validation, protocol)
    check_recipe(settings, fold_splits(parts[0]))
    return plan


def start_study(plan: Plan, path: Path) -> Outcome:
    """Run a planned study in a new directory, and return its outcome. In one process it depends only on the plan.

    Raises
    ------
    RunError
        If `path` already contains a study.
    """
    if (path / "study.json").exists():
        raise RunError(f"{path} already contains a study", remedy="Continue it with --resume, or choose another place")
    path.mkdir(parents=True, exist_ok=True)
    (path / "study.db").unlink(missing_ok=True)  # left by an interrupted call
    optuna.create_study(storage=_storage(path), study_name=NAME, direction=plan.direction)
    write_file(path / "study.json", json.dumps(plan.to_dict(), indent=2) + "\n")  # its presence makes it a study
    return resume_study(path)


def resume_study(path: Path, *, trials: int | None = None) -> Outcome:
    """Continue a study, optionally up to another number of trials; a finished study is only read.

    Other processes may continue it too: each takes the next trial.
    """
    plan = Plan.read(path)
    if trials is not None and trials != plan.trials:
        plan = dataclasses.replace(plan, trials=trials)
        write_file(path / "study.json", json.dumps(plan.to_dict(), indent=2) + "\n")
    study = open_study(path)
    waiting = study.get_trials(states=[TrialState.WAITING, TrialState.RUNNING])
    if (given := plan.space.given()) and not any(GIVEN in trial.user_attrs for trial in [*waiting, *ended(study)]):
        study.enqueue_trial(given, user_attrs={GIVEN: True})
    work(path)
    return Outcome(plan, ended(study))


def open_study(path: Path) -> optuna.Study:
    """Open the trials of a study."""
    return optuna.load_study(study_name=NAME, storage=_storage(path))


def ended(study: optuna.Study) -> list[FrozenTrial]:
    """Return the trials that count: those that were measured, stopped or failed, but not refused or killed ones."""
    trials = study.get_trials(deepcopy=False)
    return [trial for trial in trials if trial.state == TrialState.COMPLETE or ENDED in trial.user_attrs]


def work(path: Path) -> None:
    """Run trials of a study until as many as planned have ended."""
    plan, study = Plan.read(path), open_study(path)
    study.pruner = (
        optuna.pruners.MedianPruner(n_startup_trials=4, n_min_trials=3) if plan.prune else optuna.pruners.NopPruner()
    )
    startup = min(10, max(3, plan.trials // 4))
    while len(ended(study)) < plan.trials:
        begun = study.get_trials(deepcopy=False, states=[state for state in TrialState if state != TrialState.WAITING])
        refused = [trial.user_attrs[REFUSED] for trial in begun if REFUSED in trial.user_attrs]
        if len(refused) > REFUSALS:
            rule = f"have valid combinations of values; {REFUSALS} draws had none"
            raise InvalidParameter("search", rule, refused[-1], remedy="Narrow the ranges")
        seed = (plan.settings.seed * 1_000_003 + len(begun)) % 2**32  # a resumed study draws anew
        study.sampler = optuna.samplers.TPESampler(n_startup_trials=startup, seed=seed)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # heartbeats are experimental; given settings may lie outside of the space
            study.optimize(partial(run_trial, plan, path), n_trials=1, catch=FAILURES)
        last = max(study.get_trials(deepcopy=False), key=lambda trial: (trial.state.is_finished(), trial.number))
        if REFUSED not in last.user_attrs:
            done, values = len(ended(study)), ", ".join(f"{name} {value}" for name, value in last.params.items())
            what = last.user_attrs.get(ENDED) or f"{plan.metric} {last.value:.4g}"
            print(f"{done} done, trial {last.number}: {what}  {values}", flush=True)


def _entries(values: Mapping[str, Any]) -> list[str]:
    """Return lines of TOML, which shares words, numbers, booleans and lists with JSON; None is left out."""
    plain = {name: json.dumps(value, ensure_ascii=False) for name, value in values.items() if value is not None}
    return [f"{name} = {value}".replace("\x7f", "\\u007f") for name, value in plain.items()]


def _storage(path: Path) -> RDBStorage:
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            return RDBStorage(
                f"sqlite:///{path / 'study.db'}",
                engine_kwargs={"connect_args": {"timeout": 120}},
                heartbeat_interval=HEARTBEAT,
                grace_period=GRACE,
                heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=ATTEMPTS - 1),
            )
    except OperationalError as error:
        raise RunError(f"{path / 'study.db'} cannot be written: {error.orig}", remedy="Check the disk") from error
