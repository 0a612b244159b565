"""Tuning studies: workers that run trials.

A trial trains its settings on each of a few class-disjoint folds of the training items; its value is the mean over the
folds' validation items. Calibration and test items are not used, and their photos are not opened.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
from collections.abc import Mapping
from multiprocessing import get_context
from multiprocessing.process import BaseProcess
from pathlib import Path
from time import sleep

import torch
from optuna.trial import TrialState

from retrieval.errors import InvalidParameter, RetrievalError, RunError
from retrieval.process import cores
from training.config import Settings

from .plan import Plan, TuneOptions, make_plan
from .results import Outcome, line_of, outcome_of
from .search_space import Axis
from .study import StudyFolder
from .trial import run_trial
from .trial_queue import count_done, next_trial

REFUSED = 3  # exit status of a worker that raised a RetrievalError
DEATHS = 3  # how often killed workers are replaced, per job


def tune(
    settings: Settings,
    path: Path,
    *,
    search: Mapping[str, Axis],
    options: TuneOptions | None = None,
    jobs: int = 1,
) -> Outcome:
    """Search settings in a new study at `path`, and return its outcome.

    With one job the outcome depends only on the arguments, and a resumed study draws the same trials as an
    uninterrupted one.

    Parameters
    ----------
    search:
        Axes by name (see `search_targets`). If empty, the margins of the TCM regularizer, on a tenth of the training
        items or more.
    jobs:
        Number of worker processes.

    Raises
    ------
    InvalidParameter
        For a name or values that cannot be searched, before anything is written.
    DataError
        If the training items do not fill the folds.
    RunError
        If `path` already contains a study, or workers were killed repeatedly.
    """
    return start_tuning(make_plan(settings, search, options or TuneOptions()), path, jobs=jobs)


def start_tuning(plan: Plan, path: Path, *, jobs: int = 1) -> Outcome:
    """Run a planned study at `path`."""
    check_jobs(jobs)
    return _run(StudyFolder.create(path, plan), jobs)


def resume_tuning(path: Path, *, trials: int | None = None, jobs: int = 1) -> Outcome:
    """Continue a study, optionally with another number of trials. A finished study is only read."""
    check_jobs(jobs)
    folder = StudyFolder.open(path)
    if trials is not None:
        if trials < 1:
            raise InvalidParameter("trials", "be at least 1", trials)
        folder.write_plan(dataclasses.replace(folder.plan, trials=trials))
    return _run(folder, jobs)


def check_jobs(jobs: int) -> None:
    """Raise InvalidParameter for an invalid number of workers."""
    if jobs < 1:
        raise InvalidParameter("jobs", "be at least 1", jobs)


def work(path: Path, threads: int | None) -> None:
    """Run trials of a study until enough are done or running."""
    if threads is not None:
        torch.set_num_threads(threads)
    folder = StudyFolder.open(path)
    plan = folder.plan
    with folder.study(plan) as study:
        while (queued := next_trial(study, folder, plan)) is not None:
            run_trial(study, queued, folder, plan)
            trials = study.get_trials(deepcopy=False)
            print(line_of(trials[queued.trial.number], plan, count_done(trials)), flush=True)


def _run(folder: StudyFolder, jobs: int) -> Outcome:
    if jobs == 1:
        work(folder.path, None)
    else:
        _run_workers(folder, jobs)
    plan = folder.plan
    with folder.study(plan) as study:
        return outcome_of(plan, study.get_trials(deepcopy=True))


def _run_workers(folder: StudyFolder, jobs: int) -> None:
    """Run worker processes. Killed ones are replaced; an error of one stops all."""
    count = min(jobs, _left(folder))
    threads = None if "OMP_NUM_THREADS" in os.environ else max(1, cores() // max(1, count))
    workers = [_start(folder, threads) for _ in range(count)]
    deaths = 0
    try:
        while workers:
            sleep(0.05)
            for worker in [worker for worker in workers if not worker.is_alive()]:
                workers.remove(worker)
                if worker.exitcode == REFUSED:
                    raise RunError("a worker failed with the error above", remedy="Continue with --resume")
                if (worker.exitcode or 0) > 0:
                    raise RunError("a worker failed with the exception above", remedy="Repeat its trial with --resume")
                if worker.exitcode:
                    deaths += 1
                    if deaths > DEATHS * jobs:
                        raise RunError(
                            f"workers were killed {deaths} times, the last by {_cause(worker.exitcode)}",
                            remedy="The usual cause is too little memory: continue with --resume and fewer --jobs",
                        )
                    print(f"a worker was killed by {_cause(worker.exitcode)}; its trial is repeated", flush=True)
                if _left(folder) > len(workers):
                    workers.append(_start(folder, threads))
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _left(folder: StudyFolder) -> int:
    """Return the number of unfinished trials."""
    plan = folder.plan
    with folder.study(plan) as study:
        trials = study.get_trials(deepcopy=False)
        waiting = sum(trial.state == TrialState.WAITING for trial in trials)
        return max(plan.trials - count_done(trials), waiting)


def _start(folder: StudyFolder, threads: int | None) -> BaseProcess:
    worker = get_context("spawn").Process(target=_work, args=(folder.path, threads))
    worker.start()
    return worker


def _work(path: Path, threads: int | None) -> None:
    """Run as a worker process; print a RetrievalError in one line and exit with its own status."""
    try:
        work(path, threads)
    except RetrievalError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        sys.exit(0)


def _cause(status: int | None) -> str:
    return signal.Signals(-(status or 0)).name
