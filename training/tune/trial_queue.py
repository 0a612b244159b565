"""Queue of trials: each is assigned to one worker, and repeated if that worker is killed.

A worker owns a trial while it holds the lock of the trial's folder. The system releases the lock when the process ends
for any reason, so a running trial without a lock was killed. It is closed as failed and enqueued again with the same
values.
"""

from __future__ import annotations

import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from typing import IO

import optuna
from optuna.samplers import BaseSampler
from optuna.trial import FrozenTrial, Trial, TrialState

from retrieval.errors import InvalidParameter, RunError
from training.config import Settings
from training.data.folds import fold_splits
from training.loop.recipe import check_recipe

from .plan import Plan
from .study import StudyFolder

ATTEMPTS = 3  # how often a trial is started if its worker is killed
REFUSALS = 200  # invalid draws in a row after which the search ends
GUIDED = 5  # of these, draws by TPE; the rest are random, because TPE does not learn from invalid draws


@dataclass(frozen=True)
class QueuedTrial:
    """A trial that is assigned to this worker."""

    trial: Trial
    settings: Settings
    lock: IO[bytes]


def next_trial(study: optuna.Study, folder: StudyFolder, plan: Plan) -> QueuedTrial | None:
    """Return the next trial with its settings, or None if enough are done or running."""
    with folder.queue_lock():
        recover(study, folder)
        for refusals in range(REFUSALS):
            trials = study.get_trials(deepcopy=False)
            waiting = any(trial.state == TrialState.WAITING for trial in trials)
            busy = sum(trial.state == TrialState.RUNNING for trial in trials)
            if not waiting and count_done(trials) + busy >= plan.trials:
                return None
            number = sum("again" not in trial.user_attrs for trial in trials)
            study.sampler = _sampler(plan, number, blind=refusals >= GUIDED)
            trial = study.ask()
            lock = folder.lock_trial(trial.number)
            if lock is None:
                raise RunError(f"{folder.trial(trial.number)} is locked by another program")
            trial.set_user_attr("attempt", trial.user_attrs.get("attempt", 1))
            try:
                settings = plan.space.suggest(trial, plan.settings)
                check_recipe(settings, fold_splits(plan.folds[0]))
            except InvalidParameter as error:
                refused = error
                trial.set_user_attr("refused", error.message)
                study.tell(trial, state=TrialState.FAIL)
                lock.close()
                shutil.rmtree(folder.trial(trial.number))
                continue
            return QueuedTrial(trial, settings, lock)
    raise InvalidParameter(
        "search",
        f"have valid combinations of values; {REFUSALS} draws had none",
        refused.message,
        remedy="Narrow the ranges",
    )


def recover(study: optuna.Study, folder: StudyFolder) -> None:
    """Close running trials without a running worker, and enqueue them again with the same values."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        lock = folder.lock_trial(trial.number)
        if lock is None:
            continue
        if (
            study.get_trials(deepcopy=False)[trial.number].state != TrialState.RUNNING
        ):  # finished since the list was read
            lock.close()
            continue
        attempt = trial.user_attrs.get("attempt", 1)
        study.tell(trial.number, state=TrialState.FAIL)
        if attempt < ATTEMPTS:
            given = {**trial.system_attrs.get("fixed_params", {}), **trial.params}
            kept = {name: trial.user_attrs[name] for name in ("default",) if name in trial.user_attrs}
            study.enqueue_trial(given, user_attrs={**kept, "attempt": attempt + 1, "again": trial.number})
        lock.close()
        shutil.rmtree(folder.trial(trial.number))


def count_done(trials: Sequence[FrozenTrial]) -> int:
    """Return the number of finished trials: complete, pruned, failed, or killed too often."""
    return sum(is_done(trial) for trial in trials)


def is_done(trial: FrozenTrial) -> bool:
    """Return whether a trial is finished and counts towards the number of trials."""
    if trial.state == TrialState.FAIL:
        given_up = trial.user_attrs.get("attempt", 1) >= ATTEMPTS and "refused" not in trial.user_attrs
        return given_up or "error" in trial.user_attrs
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED)


def _sampler(plan: Plan, number: int, *, blind: bool) -> BaseSampler:
    """Return a TPE sampler seeded by (seed, number of draws), so that a resumed study draws the same trials."""
    seed = (plan.settings.seed * 1_000_003 + number) % 2**32
    if blind:
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(n_startup_trials=min(10, max(3, plan.trials // 4)), seed=seed)
