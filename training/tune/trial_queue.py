"""Which worker does which trial: claimed one at a time, never lost and never counted twice.

A trial belongs to a worker while the worker holds the lock of its folder. The system takes a lock back when its
process ends, however it ends, so that a running trial without a lock is one that was killed: it is closed as failed
and put back into the queue with the same values.
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

ATTEMPTS = 3  # how often a trial is begun whose worker is killed each time
REFUSALS = 200  # draws in a row whose values do not go together
GUIDED = 5  # of them are drawn around what did well, the rest anywhere: TPE does not learn from what is refused


@dataclass(frozen=True)
class Claim:
    """A trial that this worker, and no other, is to do."""

    trial: Trial
    settings: Settings
    lock: IO[bytes]


def claim(study: optuna.Study, folder: StudyFolder, plan: Plan) -> Claim | None:
    """Return the next trial with its settings, None where enough are done or under way."""
    with folder.claiming():
        recover(study, folder)
        for refusals in range(REFUSALS):
            trials = study.get_trials(deepcopy=False)
            waiting = any(trial.state == TrialState.WAITING for trial in trials)
            busy = sum(trial.state == TrialState.RUNNING for trial in trials)
            if not waiting and counted(trials) + busy >= plan.trials:
                return None
            number = sum("again" not in trial.user_attrs for trial in trials)
            study.sampler = _sampler(plan, number, blind=refusals >= GUIDED)
            trial = study.ask()
            lock = folder.own(trial.number)
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
            return Claim(trial, settings, lock)
    raise InvalidParameter(
        "search", f"hold values that go together; {REFUSALS} draws did not", refused.message, remedy="Narrow the ranges"
    )


def recover(study: optuna.Study, folder: StudyFolder) -> None:
    """Close running trials that no living worker owns, and queue them again with the same values."""
    for trial in study.get_trials(deepcopy=False, states=(TrialState.RUNNING,)):
        lock = folder.own(trial.number)
        if lock is None:
            continue
        if study.get_trials(deepcopy=False)[trial.number].state != TrialState.RUNNING:  # done since the list was read
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


def counted(trials: Sequence[FrozenTrial]) -> int:
    """Return how many trials are done: complete, pruned, failed by themselves, or killed too often."""
    return sum(is_counted(trial) for trial in trials)


def is_counted(trial: FrozenTrial) -> bool:
    """Return whether a trial is one of those that were asked for, and done."""
    if trial.state == TrialState.FAIL:
        given_up = trial.user_attrs.get("attempt", 1) >= ATTEMPTS and "refused" not in trial.user_attrs
        return given_up or "error" in trial.user_attrs
    return trial.state in (TrialState.COMPLETE, TrialState.PRUNED)


def _sampler(plan: Plan, number: int, *, blind: bool) -> BaseSampler:
    """Return TPE whose draws depend on the seed and on how many were made: a resumed study goes on as it would have."""
    seed = (plan.settings.seed * 1_000_003 + number) % 2**32
    if blind:
        return optuna.samplers.RandomSampler(seed=seed)
    return optuna.samplers.TPESampler(n_startup_trials=min(10, max(3, plan.trials // 4)), seed=seed)
