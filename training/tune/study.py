"""A tuning study as a directory that several workers share.

study/
  study.json    what is searched, around which settings, on which folds, by which figure
  study.db      the trials, in Optuna's SQLite form: `optuna-dashboard sqlite:///study.db` shows it too
  trials/0007/  one trial: its log, and the figures of every epoch of each fold
  features/     of a frozen backbone, where trials train a head alone (`precompute`)
  best.toml     the best settings, for `retrieval train --config`
  report.html   history, importance, what each setting does, and all trials
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

from index.shell import command
from retrieval.catalogue.byte_ranges import write_file
from retrieval.errors import InvalidParameter, RunError

from .plan import Plan

NAME = "tune"
SEARCH = "learning_rate=1e-5..1e-3:log"  # for example
FOLD_STEPS = 1000  # steps of a fold, as pruning counts them, whatever its number of epochs
QUIET = 2 * FOLD_STEPS // 3  # of them pass before a trial may be stopped


class StudyFolder:
    """Reads and writes the files of one study."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, path: Path, plan: Plan) -> StudyFolder:
        """Make a study directory with its first trial in the queue: the settings as given, as far as searched."""
        if (path / "study.json").exists():
            raise RunError(
                f"{path} holds a study already", remedy="Continue it with --resume, or choose another directory"
            )
        path.mkdir(parents=True, exist_ok=True)
        folder = cls(path)
        (path / "study.db").unlink(missing_ok=True)  # of a call that was interrupted here
        with folder.storage(new=True) as storage:
            study = optuna.create_study(storage=storage, study_name=NAME, directions=plan.directions)
            place = plan.space.place_of(plan.settings)
            study.enqueue_trial(
                {name: value for name, value in place.items() if value is not None},
                user_attrs={"default": None not in place.values()},
            )
        folder.write_plan(plan)  # last: its presence makes the directory a study
        return folder

    @classmethod
    def open(cls, path: Path) -> StudyFolder:
        """Open a study directory, or say that it is none."""
        if not (path / "study.json").exists():
            raise RunError(
                f"{path} is not a tuning study",
                remedy=f"`{command('tune', 'CATALOGUE', '-o', path, '--search', SEARCH)}` makes one",
            )
        return cls(path)

    @property
    def plan(self) -> Plan:
        """What decides the study."""
        try:
            return Plan.from_dict(json.loads((self.path / "study.json").read_text()))
        except (ValueError, KeyError, TypeError) as error:
            if isinstance(error, InvalidParameter):
                raise
            raise RunError(
                f"{self.path / 'study.json'} cannot be read: {error}", remedy="Begin another study"
            ) from error

    def write_plan(self, plan: Plan) -> None:
        """Replace study.json."""
        write_file(self.path / "study.json", json.dumps(plan.to_dict(), indent=2) + "\n")

    @contextmanager
    def storage(self, *, new: bool = False) -> Iterator[optuna.storages.RDBStorage]:
        """Open the database, or make one; for many processes at a time."""
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        file = self.path / "study.db"
        if not new and not file.exists():
            raise RunError(f"{file} is missing", remedy="Begin another study")
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
    def claiming(self) -> Iterator[None]:
        """Wait until no other worker makes a claim."""
        with _locked(self.path / "claims.lock", wait=True):
            yield

    def own(self, number: int) -> IO[bytes] | None:
        """Return the open lock of a trial, None where a living worker holds it."""
        self.trial(number).mkdir(parents=True, exist_ok=True)
        return _lock(self.trial(number) / "lock", wait=False)


def _connect(file: Path) -> sqlite3.Connection:
    """Open the database so that many may wait for it, and a commit need not wait for the disk.

    A process that is killed loses nothing; a machine that loses its power may lose its last trials.
    """
    connection = sqlite3.connect(file, timeout=120, check_same_thread=False)
    connection.execute("PRAGMA journal_mode=WAL")
    connection.execute("PRAGMA synchronous=NORMAL")
    return connection


def _pruner(plan: Plan) -> BasePruner:
    """Return the pruner of a study; two thirds of a fold pass before it may stop a trial.

    Earlier, a high learning rate that has not begun to fall looks worse than it is.
    """
    if plan.pruner == "none" or len(plan.objectives) > 1:
        return optuna.pruners.NopPruner()
    if plan.pruner == "hyperband":
        longest = FOLD_STEPS * len(plan.folds)
        return optuna.pruners.HyperbandPruner(min_resource=QUIET, max_resource=longest)
    return optuna.pruners.MedianPruner(n_startup_trials=4, n_warmup_steps=QUIET, n_min_trials=3)


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
