"""Directory of a tuning study, shared by several workers.

study/
  study.json    search space, settings, folds and objectives
  study.db      the trials, in Optuna's SQLite format: `optuna-dashboard sqlite:///study.db` opens it
  trials/0007/  one trial: its log, and the metrics of every epoch of each fold
  features/     features of a frozen backbone, for trials that train only the head (`precompute`)
  best.toml     the best settings, for `retrieval train --config`
  report.html   history, importance, values per setting, and all trials
"""

from __future__ import annotations

import fcntl
import json
import os
import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import IO

import optuna
from optuna.pruners import BasePruner
from sqlalchemy.exc import OperationalError

from retrieval.errors import InvalidParameter, RunError, command
from retrieval.files import write_file

from .plan import Plan

NAME = "tune"
SEARCH = "learning_rate=1e-5..1e-3:log"  # for example
FOLD_STEPS = 1000  # steps per fold that pruning counts, for any number of epochs
WARMUP_STEPS = 2 * FOLD_STEPS // 3  # steps before a trial may be stopped


class StudyFolder:
    """Reads and writes the files of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, plan: Plan) -> StudyFolder:
        """Create a study directory, and enqueue the given settings as the first trial."""
        if (path / "study.json").exists():
            raise RunError(
                f"{path} already contains a study", remedy="Continue it with --resume, or choose another directory"
            )
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        (path / "study.db").unlink(missing_ok=True)  # left by an interrupted call
        with folder.storage(new=True) as storage:
            study = optuna.create_study(storage=storage, study_name=NAME, directions=plan.directions)
            values = plan.space.stored_values(plan.settings)
            study.enqueue_trial(
                {name: value for name, value in values.items() if value is not None},
                user_attrs={"default": None not in values.values()},
            )
        folder.write_plan(plan)  # last: its presence makes the directory a study
        return folder

    @classmethod
    def open(cls, path: Path) -> StudyFolder:
        """Open a study directory; raise RunError where there is none."""
        if not (path / "study.json").exists():
            raise RunError(
                f"{path} is not a tuning study",
                remedy=f"Create one with `{command('tune', 'CATALOGUE', '-o', path, '--search', SEARCH)}`",
            )
        return cls(path)

    @property
    def plan(self) -> Plan:
        """Definition of the study."""
        try:
            return Plan.from_dict(json.loads((self.path / "study.json").read_text()))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidParameter):
                raise
            raise RunError(
                f"{self.path / 'study.json'} cannot be read: {error}", remedy="Start another study"
            ) from error

    def write_plan(self, plan: Plan) -> None:
        """Replace study.json."""
        write_file(self.path / "study.json", json.dumps(plan.to_dict(), indent=2) + "\n")

    @contextmanager
    def storage(self, *, new: bool = False) -> Iterator[optuna.storages.RDBStorage]:
        """Open or create the database, which several processes may use."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        file = self.path / "study.db"
        if not new and not file.exists():
            raise RunError(f"{file} is missing", remedy="Start another study")
        with ExitStack() as closing:
            try:
                storage = optuna.storages.RDBStorage(
                    f"sqlite:///{file}",
                    engine_kwargs={"creator": partial(_connect, file)},
                    skip_table_creation=not new,
                )
                closing.callback(storage.engine.dispose)
                closing.callback(storage.remove_session)
                yield storage
            except OperationalError as error:
                remedy = "Check disk space and permissions, then try again"
                raise RunError(f"{file} cannot be used: {error.orig}", remedy=remedy) from error

    @contextmanager
    def study(self, plan: Plan) -> Iterator[optuna.Study]:
        """Open the study with the plan's pruner."""
        with self.storage() as storage:
            yield optuna.load_study(study_name=NAME, storage=storage, pruner=_pruner(plan))

    def trial(self, number: int) -> Path:
        """Return the folder of a trial."""
        return self.path / "trials" / f"{number:04d}"

    @contextmanager
    def queue_lock(self) -> Iterator[None]:
        """Hold the lock of the queue, waiting for other workers."""
        with _locked(self.path / "queue.lock", wait=True):
            yield

    def lock_trial(self, number: int) -> IO[bytes] | None:
        """Return the open lock of a trial, or None if a running worker holds it."""
        self.trial(number).mkdir(parents=True, exist_ok=True)
        return _lock(self.trial(number) / "lock", wait=False)


def _connect(file: Path) -> sqlite3.Connection:
    """Open the database in WAL mode, without waiting for the disk at each commit.

    Nothing is lost when a process is killed; a power failure may lose the last trials.
    """
    connection = sqlite3.connect(file, timeout=120, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _pruner(plan: Plan) -> BasePruner:
    """Return the pruner of a study. It may stop a trial after two thirds of the first fold.

    Before that, trials with a high learning rate look worse than they are.
    """
    if plan.pruner == "none" or len(plan.objectives) > 1:
        return optuna.pruners.NopPruner()
    if plan.pruner == "hyperband":
        longest = FOLD_STEPS * len(plan.folds)
        return optuna.pruners.HyperbandPruner(min_resource=WARMUP_STEPS, max_resource=longest)
    return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=WARMUP_STEPS, n_min_trials=3)


@contextmanager
def _locked(path: Path, *, wait: bool) -> Iterator[None]:
    lock = _lock(path, wait=wait)
    try:
        yield
    finally:
        if lock is not None:
            lock.close()


def _lock(path: Path, *, wait: bool) -> IO[bytes] | None:
    file = os.fdopen(os.open(path, os.O_RDWR | os.O_CREAT, 0o644), "r+b", buffering=0)
    try:
        fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        file.close()
        return None
    return file
