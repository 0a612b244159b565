"""A tuning study: its plan, its trials in Optuna's storage, and the workers that run them.

study/
  study.json    settings, search space, objective and folds
  study.db      the trials, in Optuna's SQLite format: `optuna-dashboard sqlite:///study/study.db` shows them
  trials/0007/  one trial: its log, and the metrics of every epoch of each fold
  best.toml     the best settings, for `retrieval train --config`

All trials wait in Optuna's storage from the beginning. A running trial sends heartbeats. When they stop, its process
was killed, and another worker repeats the trial.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from time import sleep
from typing import Any, Literal

import optuna
import torch
from optuna.storages import RDBStorage, RetryHeartbeatStaleTrialCallback, fail_stale_trials
from optuna.trial import FrozenTrial, TrialState

from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.splits import make_evaluation_protocol
from retrieval.errors import InvalidParameter, RetrievalError, RunError, command
from retrieval.files import write_file
from retrieval.process import cores
from training.config import SPLIT_SEED, Settings
from training.data.folds import Fold, fold_splits, item_folds, share_of_items, training_items
from training.evaluation.evaluate import BALANCED, make_evaluation_split
from training.loop.recipe import check_recipe

from .outcome import Outcome, line_of, outcome_of
from .search_space import TCM_MARGINS, SearchSpace
from .trial import run_trial

NAME = "tune"
Direction = Literal["minimize", "maximize"]
OBJECTIVES: Mapping[str, tuple[str, Direction]] = {  # name of the metric, direction
    "fnir": ("FNIR", "minimize"),
    "opis": ("OPIS", "minimize"),
    "r@1": ("R@1", "maximize"),
    "map@r": ("MAP@R", "maximize"),
    "balanced": (BALANCED, "maximize"),
}
TCM_SHARE = 0.1  # of the training items, on which arXiv 2307.04047 tunes the margins of TCM
MIN_ITEMS = 10  # items per fold that this share is raised to
HEARTBEAT, GRACE = 5, 30  # seconds between heartbeats, and without one until a trial counts as killed
ATTEMPTS = 3  # how often a trial is started if its worker is killed
FAILURES = (RuntimeError, MemoryError, FloatingPointError)  # fail one trial, not the study
REFUSED = 3  # exit status of a worker that raised a RetrievalError


@dataclass(frozen=True)
class Plan:
    """Definition of a study, as stored in study.json."""

    settings: Settings
    search: Mapping[str, str]  # values by name (`search_space`)
    objective: str  # one of OBJECTIVES
    folds: tuple[Fold, ...]
    prune: bool = True  # stop trials that do worse than most

    @property
    def space(self) -> SearchSpace:
        """Checked search space."""
        return SearchSpace.of(self.search, self.settings)

    @property
    def metric(self) -> str:
        """Name of the metric that is the objective."""
        return OBJECTIVES[self.objective][0]

    @property
    def direction(self) -> Direction:
        """Direction of the objective, in Optuna's words."""
        return OBJECTIVES[self.objective][1]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {**dataclasses.asdict(self), "settings": self.settings.to_dict()}

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read the plan of a study; raise RunError where there is none or it cannot be read."""
        if not (path / "study.json").exists():
            start = command("tune", "CATALOGUE", "-o", path, "--search", "learning_rate=1e-5..1e-3:log")
            raise RunError(f"{path} is not a tuning study", remedy=f"Create one with `{start}`")
        try:
            values = json.loads((path / "study.json").read_text())
            folds = tuple((tuple(fit), tuple(validation)) for fit, validation in values["folds"])
            return cls(**{**values, "settings": Settings.from_dict(values["settings"]), "folds": folds})
        except (ValueError, KeyError, TypeError) as error:
            raise RunError(f"{path / 'study.json'} cannot be read: {error}", remedy="Start another study") from error


def make_plan(
    settings: Settings,
    search: Mapping[str, str],
    *,
    objective: str = "fnir",
    folds: int = 4,
    share: float | None = None,
    prune: bool = True,
) -> Plan:
    """Return the checked plan of a study, without writing anything or opening photos.

    Without `search`, the margins of the regularizer `tcm` are searched, on a tenth of the training items or more.

    Raises
    ------
    InvalidParameter
        For a name or values that cannot be searched.
    DataError
        If the training items do not fill the folds.
    """
    if objective not in OBJECTIVES:
        raise InvalidParameter("objective", f"be one of {', '.join(OBJECTIVES)}", objective)
    photos = read_catalogue(settings.catalogue)
    items = training_items(photos, seed=SPLIT_SEED)
    if not search and settings.regularizer == "tcm":
        search = TCM_MARGINS
        share = max(TCM_SHARE, min(1.0, MIN_ITEMS * folds / len(items))) if share is None else share
    if share is not None and share != 1:
        items = share_of_items(photos, items, share=share, seed=SPLIT_SEED)
    parts = tuple(item_folds(photos, items, folds=folds, seed=SPLIT_SEED))
    plan = Plan(settings, dict(search), objective, parts, prune)
    SearchSpace.of(plan.search, settings)
    protocol = make_evaluation_protocol(photos)
    for number, (_, validation) in enumerate(parts):
        make_evaluation_split(f"fold {number + 1} validation", photos, validation, protocol)
    check_recipe(settings, fold_splits(parts[0]))
    return plan


def start_study(plan: Plan, path: Path, *, trials: int = 50, jobs: int = 1) -> Outcome:
    """Run a planned study in a new directory, and return its outcome.

    With one job the outcome depends only on the arguments.

    Raises
    ------
    InvalidParameter
        For fewer than one trial or job.
    RunError
        If `path` already contains a study, or a worker failed.
    """
    _check(trials, jobs)
    if (path / "study.json").exists():
        raise RunError(f"{path} already contains a study", remedy="Continue it with --resume, or choose another place")
    path.mkdir(parents=True, exist_ok=True)
    (path / "study.db").unlink(missing_ok=True)  # left by an interrupted call
    optuna.create_study(storage=_storage(path), study_name=NAME, direction=plan.direction)
    write_file(path / "study.json", json.dumps(plan.to_dict(), indent=2) + "\n")  # its presence makes it a study
    return resume_study(path, trials=trials, jobs=jobs)


def resume_study(path: Path, *, trials: int | None = None, jobs: int = 1) -> Outcome:
    """Continue a study, optionally up to another number of trials; a finished study is only read."""
    _check(1 if trials is None else trials, jobs)
    plan, study = Plan.read(path), open_study(path)
    _enqueue(study, plan, trials)
    if jobs == 1:
        work(path)
    else:
        _run_workers(path, jobs)
    return outcome_of(plan, study.get_trials(deepcopy=False))


def open_study(path: Path) -> optuna.Study:
    """Open the trials of a study."""
    if not (path / "study.db").exists():
        raise RunError(f"{path / 'study.db'} is missing", remedy="Start another study")
    return optuna.load_study(study_name=NAME, storage=_storage(path))


def work(path: Path) -> None:
    """Run trials of a study until none waits or runs."""
    plan, study = Plan.read(path), open_study(path)
    run = partial(run_trial, study, plan, path)
    pruner = optuna.pruners.MedianPruner(n_startup_trials=4, n_min_trials=3)
    study.pruner = pruner if plan.prune else optuna.pruners.NopPruner()
    while True:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
            fail_stale_trials(study)
        trials = study.get_trials(deepcopy=False)
        if any(trial.state == TrialState.WAITING for trial in trials):
            begun = [trial for trial in trials if trial.state != TrialState.WAITING]
            study.sampler = _sampler(plan.settings.seed, len(begun), len(trials))
            study.optimize(run, n_trials=1, catch=FAILURES)
            ended = [trial for trial in study.get_trials(deepcopy=False) if trial.state.is_finished()]
            print(line_of(max(ended, key=_end), plan, len(outcome_of(plan, ended).trials)), flush=True)
        elif any(trial.state == TrialState.RUNNING for trial in trials):
            sleep(1)  # of another worker, or of one that was killed
        else:
            return


def _check(trials: int, jobs: int) -> None:
    for name, value in (("trials", trials), ("jobs", jobs)):
        if value < 1:
            raise InvalidParameter(name, "be at least 1", value)


def _end(trial: FrozenTrial) -> float:
    return trial.datetime_complete.timestamp() if trial.datetime_complete else 0.0


def _storage(path: Path) -> RDBStorage:
    optuna.logging.set_verbosity(optuna.logging.CRITICAL)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        return RDBStorage(
            f"sqlite:///{path / 'study.db'}",
            engine_kwargs={"connect_args": {"timeout": 120}},
            heartbeat_interval=HEARTBEAT,
            grace_period=GRACE,
            heartbeat_stale_trial_callback=RetryHeartbeatStaleTrialCallback(max_retry=ATTEMPTS - 1),
        )


def _enqueue(study: optuna.Study, plan: Plan, trials: int | None) -> None:
    """Let trials wait until there are `trials`; the first has the given settings."""
    slots = {trial.user_attrs["slot"] for trial in study.get_trials(deepcopy=False) if "slot" in trial.user_attrs}
    for slot in range(len(slots), trials or 0):
        given = plan.space.given() if not slot else {}
        study.enqueue_trial(given, user_attrs={"slot": slot, "default": bool(given)})


def _sampler(seed: int, number: int, total: int) -> optuna.samplers.BaseSampler:
    """Return a TPE sampler seeded by (seed, number of trials begun), so that a resumed study draws anew."""
    startup = min(10, max(3, total // 4))
    return optuna.samplers.TPESampler(n_startup_trials=startup, seed=(seed * 1_000_003 + number) % 2**32)


def _run_workers(path: Path, jobs: int) -> None:
    """Run worker processes; the others go on when one is killed, and an error of one stops all."""
    threads = None if "OMP_NUM_THREADS" in os.environ else max(1, cores() // jobs)
    workers = [get_context("spawn").Process(target=_work, args=(path, threads)) for _ in range(jobs)]
    for worker in workers:
        worker.start()
    try:
        while any(worker.is_alive() for worker in workers):
            sleep(0.1)
            if any((worker.exitcode or 0) > 0 for worker in workers):
                raise RunError("a worker failed with the error above", remedy="Continue with --resume")
    finally:
        for worker in workers:
            worker.terminate()
            worker.join()
    if all(worker.exitcode for worker in workers):
        raise RunError("every worker was killed", remedy="Continue with --resume and fewer --jobs")


def _work(path: Path, threads: int | None) -> None:
    """Run as a worker process; print a RetrievalError in one line and exit with its own status."""
    if threads is not None:
        torch.set_num_threads(threads)
    try:
        work(path)
    except RetrievalError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(REFUSED)
