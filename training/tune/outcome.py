"""Outcome of a study: its best trial compared with the given settings, as text and as TOML."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState

from retrieval.errors import command
from retrieval.text import text_table
from training.config import Settings

from .search_space import apply

if TYPE_CHECKING:
    from .study import Plan

SHOWN = 10  # trials in the table


@dataclass(frozen=True)
class Outcome:
    """Plan and finished trials of a study, with the best one."""

    plan: Plan
    trials: Sequence[FrozenTrial]  # finished ones, the last attempt of each
    complete: Sequence[FrozenTrial]  # those that finished all folds, best first

    @property
    def best(self) -> FrozenTrial | None:
        """The best trial; ties go to the earlier one."""
        return self.complete[0] if self.complete else None

    @property
    def default(self) -> FrozenTrial | None:
        """The trial of the given settings, if they lie in the search space."""
        return next((trial for trial in self.complete if trial.user_attrs.get("default")), None)

    @property
    def settings(self) -> Settings:
        """Settings of the best trial."""
        return self.plan.settings if self.best is None else apply(self.plan.settings, self.best.params)


def outcome_of(plan: Plan, trials: Sequence[FrozenTrial]) -> Outcome:
    """Return the outcome of a study's trials."""
    last = {trial.user_attrs.get("slot", -trial.number): trial for trial in trials}
    done = [trial for trial in last.values() if trial.state.is_finished()]
    sign = 1 if plan.direction == "minimize" else -1
    complete = [trial for trial in done if trial.state == TrialState.COMPLETE]
    complete.sort(key=lambda trial: (sign * (trial.value or 0.0), trial.number))
    return Outcome(plan, done, complete)


def line_of(trial: FrozenTrial, plan: Plan, done: int) -> str:
    """Return the line to print when a trial has ended."""
    given = " [the given settings]" if trial.user_attrs.get("default") else ""
    values = ", ".join(f"{name} {_short(value)}" for name, value in trial.params.items())
    seconds = trial.user_attrs.get("seconds", 0.0)
    return f"{done} done, trial {trial.number}: {_result(trial, plan)} ({seconds:.0f} s)  {values}{given}"


def render(outcome: Outcome) -> str:
    """Return the best trials as a table, with a summary."""
    plan, best, default = outcome.plan, outcome.best, outcome.default
    if best is None:
        return "No trial finished all folds: " + "; ".join(_result(trial, plan) for trial in outcome.trials[:3])
    shown = list(outcome.complete[:SHOWN])
    if default is not None and default not in shown:
        shown.append(default)
    names = list(plan.search)
    rows = [
        [
            str(trial.number),
            _result(trial, plan),
            *(_short(trial.params.get(name, "")) for name in names),
            "best" if trial is best else "given" if trial is default else "",
        ]
        for trial in shown
    ]
    lines = text_table(["trial", "mean of the folds", *names, ""], rows)
    states = [trial.state for trial in outcome.trials]
    pruned, failed = states.count(TrialState.PRUNED), states.count(TrialState.FAIL)
    lines += ["", f"{len(states)} trials: {len(outcome.complete)} complete, {pruned} stopped early, {failed} failed."]
    if default is not None and default is not best:
        change = _folds(best, plan) - _folds(default, plan)
        gain = f"{_number(float(change.mean()), plan)} ± {_number(_error(change), plan)}"
        lines.append(f"Change of {plan.metric} from the given settings: {gain} (standard error over the folds).")
    lines.append(
        "The best of many trials looks better than it is; confirm it with "
        f"`{command('evaluate', 'RUN')}` on the test items."
    )
    return "\n".join(lines)


def to_toml(outcome: Outcome) -> str:
    """Return the best settings that differ from the defaults, as TOML for `retrieval train --config`."""
    plan, best = outcome.plan, outcome.best
    lines = [f"# Found by `retrieval tune`; mean over {len(plan.folds)} class-disjoint folds of the training items."]
    if best is not None:
        lines.append(f"# Trial {best.number} of {len(outcome.trials)}: {_result(best, plan)}.")
    tables: list[str] = []
    defaults = {field.name: field.default for field in dataclasses.fields(Settings)}
    for name, value in outcome.settings.to_dict().items():
        if isinstance(value, Mapping):
            if value:
                tables += ["", f"[{name}]", *(f"{key} = {_toml(v)}" for key, v in value.items() if v is not None)]
        elif value != defaults.get(name) or name in plan.search:
            lines.append(f"{name} = {_toml(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _result(trial: FrozenTrial, plan: Plan) -> str:
    if trial.state == TrialState.COMPLETE:
        return f"{plan.metric} {_number(trial.value or 0.0, plan)} ± {_number(_error(_folds(trial, plan)), plan)}"
    word = "stopped" if trial.state == TrialState.PRUNED else "failed"
    return f"{word}, {trial.user_attrs.get('ended', 'its worker was killed on every attempt')}"


def _folds(trial: FrozenTrial, plan: Plan) -> np.ndarray:
    return np.array(trial.user_attrs["metrics"][plan.metric])


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def _number(value: float, plan: Plan) -> str:
    return f"{value:.2e}" if plan.objective == "opis" else f"{value:.3f}"


def _short(value: object) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _toml(value: Any) -> str:
    """Return a plain value as TOML, which shares strings, numbers, booleans and lists with JSON. None is left out."""
    if isinstance(value, Mapping):
        entries = (f"{json.dumps(key)} = {_toml(entry)}" for key, entry in value.items() if entry is not None)
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
