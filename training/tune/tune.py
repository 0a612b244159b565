"""Tuning: which settings do best on items that training may see but the loss of a trial did not.

A trial trains its settings on each of a few class-disjoint folds of the training items; its value is the mean over
the folds' validation items. Calibration and test items take no part, and none of their photos is opened.
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

from retrieval.cores import cores
from retrieval.errors import InvalidParameter, RetrievalError, RunError
from training.config import Settings

from .plan import Plan, TuneOptions, make_plan
from .results import Outcome, line_of, outcome_of
from .search_space import Axis
from .study import StudyFolder
from .trial import run_trial
from .trial_queue import claim, counted

REFUSED = 3  # status of a worker that refused to go on
DEATHS = 3  # how often a worker that was killed is replaced, for each of the jobs


def tune(
    settings: Settings,
    path: Path,
    *,
    search: Mapping[str, Axis],
    options: TuneOptions | None = None,
    jobs: int = 1,
) -> Outcome:
    """Search around settings, and return what was found; the study is at `path`.

    With one job the result depends on the arguments alone, and an interrupted and resumed study draws what an
    uninterrupted one would have drawn.

    Parameters
    ----------
    search:
        What is varied, by name (`search_targets`); nothing: the margins of a TCM regularizer, on a tenth of the
        training items where that is enough.
    jobs:
        Trials at a time, in processes that share the study.

    Raises
    ------
    InvalidParameter
        For a name or values that cannot be searched, before anything is written.
    DataError
        Where the catalogue's training items do not fill the folds.
    RunError
        Where `path` holds a study already, or its workers were killed time and again.
    """
    return start_tuning(make_plan(settings, search, options or TuneOptions()), path, jobs=jobs)


def start_tuning(plan: Plan, path: Path, *, jobs: int = 1) -> Outcome:
    """Do a planned study at `path`."""
    check_jobs(jobs)
    return _run(StudyFolder.create(path, plan), jobs)


def resume_tuning(path: Path, *, trials: int | None = None, jobs: int = 1) -> Outcome:
    """Continue a study, to another number of trials where one is given; a finished one is only read."""
    check_jobs(jobs)
    folder = StudyFolder.open(path)
    if trials is not None:
        if trials < 1:
            raise InvalidParameter("trials", "be at least 1", trials)
        folder.write_plan(dataclasses.replace(folder.plan, trials=trials))
    return _run(folder, jobs)


def check_jobs(jobs: int) -> None:
    """Refuse a number of workers that is none."""
    if jobs < 1:
        raise InvalidParameter("jobs", "be at least 1", jobs)


def work(path: Path, threads: int | None) -> None:
    """Do trials of a study until enough are done or under way."""
    if threads is not None:
        torch.set_num_threads(threads)
    folder = StudyFolder.open(path)
    plan = folder.plan
    with folder.study(plan) as study:
        while (claimed := claim(study, folder, plan)) is not None:
            run_trial(study, claimed, folder, plan, threads=threads)
            trials = study.get_trials(deepcopy=False)
            print(line_of(trials[claimed.trial.number], plan, counted(trials)), flush=True)


def _run(folder: StudyFolder, jobs: int) -> Outcome:
    if jobs == 1:
        work(folder.path, None)
    else:
        _run_workers(folder, jobs)
    plan = folder.plan
    with folder.study(plan) as study:
        return outcome_of(plan, study.get_trials(deepcopy=True))


def _run_workers(folder: StudyFolder, jobs: int) -> None:
    """Keep so many workers at work; those that are killed are replaced, and a refusal of one ends all."""
    alone = min(jobs, _left(folder))
    threads = None if "OMP_NUM_THREADS" in os.environ else max(1, cores() // max(1, alone))
    workers = [_start(folder, threads) for _ in range(alone)]
    deaths = 0
    try:
        while workers:
            sleep(0.05)
            for worker in [worker for worker in workers if not worker.is_alive()]:
                workers.remove(worker)
                if worker.exitcode == REFUSED:
                    raise RunError("a worker refused to go on; its reason is above", remedy="--resume continues")
                if (worker.exitcode or 0) > 0:
                    raise RunError("a worker failed; how is above", remedy="--resume begins its trial again")
                if worker.exitcode:
                    deaths += 1
                    if deaths > DEATHS * jobs:
                        raise RunError(
                            f"workers were killed {deaths} times, the last by {_cause(worker.exitcode)}",
                            remedy="Often that is too little memory: continue with --resume and fewer --jobs",
                        )
                    print(f"a worker was killed by {_cause(worker.exitcode)}; its trial is begun again", flush=True)
                if _left(folder) > len(workers):
                    workers.append(_start(folder, threads))
    finally:
        for worker in workers:
            worker.terminate()
        for worker in workers:
            worker.join()


def _left(folder: StudyFolder) -> int:
    """Return how many trials are not done yet."""
    plan = folder.plan
    with folder.study(plan) as study:
        trials = study.get_trials(deepcopy=False)
        waiting = sum(trial.state == TrialState.WAITING for trial in trials)
        return max(plan.trials - counted(trials), waiting)


def _start(folder: StudyFolder, threads: int | None) -> BaseProcess:
    worker = get_context("spawn").Process(target=_work, args=(folder.path, threads))
    worker.start()
    return worker


def _work(path: Path, threads: int | None) -> None:
    """Be a worker process: a refusal is one line, and a status that says so."""
    try:
        work(path, threads)
    except RetrievalError as error:
        print(f"error: {' '.join(str(error).split())}", file=sys.stderr, flush=True)
        sys.exit(REFUSED)
    except KeyboardInterrupt:
        sys.exit(0)


def _cause(status: int | None) -> str:
    return signal.Signals(-(status or 0)).name
