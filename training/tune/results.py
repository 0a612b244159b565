"""Results of a study: its best trial compared with the given settings, as text, table and TOML."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState
from scipy import stats

from retrieval.errors import command
from retrieval.text import text_table
from training.config import Settings

from .plan import Plan
from .search_space import Choice
from .search_targets import apply
from .trial_queue import is_done

SHOWN = 10  # trials in the table


@dataclass(frozen=True)
class Outcome:
    """Plan and finished trials of a study, with the best one."""

    plan: Plan
    trials: Sequence[FrozenTrial]  # finished ones
    best: FrozenTrial | None
    default: FrozenTrial | None  # the given settings, if they lie in the search space

    @property
    def complete(self) -> list[FrozenTrial]:
        """Trials that finished all folds, best first."""
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        return _ordered(done, self.plan)

    @property
    def settings(self) -> Settings:
        """Settings of the best trial."""
        return self.plan.settings if self.best is None else settings_of(self.best, self.plan)

    def gain(self) -> tuple[float, float] | None:
        """Return the mean change of the first objective from default to best trial, and its standard error."""
        if self.best is None or self.default is None or self.best.number == self.default.number:
            return None
        metric = self.plan.metrics[0]
        change = _folds(self.best, metric) - _folds(self.default, metric)
        return float(change.mean()), _error(change)


def outcome_of(plan: Plan, trials: Sequence[FrozenTrial]) -> Outcome:
    """Return the outcome of a study's trials."""
    done = [trial for trial in trials if is_done(trial)]
    complete = [trial for trial in done if trial.state == TrialState.COMPLETE]
    default = next((trial for trial in complete if trial.user_attrs.get("default")), None)
    return Outcome(plan, done, _best(plan, complete), default)


def settings_of(trial: FrozenTrial, plan: Plan) -> Settings:
    """Return the settings of a trial."""
    values = {}
    for name, stored in trial.params.items():
        axis = plan.space.axes[name]
        values[name] = axis.values[axis.words.index(stored)] if isinstance(axis, Choice) else stored
    return apply(plan.settings, values)


def _best(plan: Plan, complete: Sequence[FrozenTrial]) -> FrozenTrial | None:
    """Return the best trial.

    With two objectives, it is the best by the second among those within a standard error (over the folds) of the best
    by the first.
    """
    if not complete:
        return None
    ordered = _ordered(complete, plan)
    if len(plan.objectives) == 1:
        return ordered[0]
    metric = plan.metrics[0]
    sign = 1 if plan.directions[0] == "minimize" else -1
    equal = []
    for trial in ordered:
        deficit = sign * (_folds(trial, metric) - _folds(ordered[0], metric))
        if deficit.mean() <= _error(deficit):
            equal.append(trial)
    return min(equal, key=lambda trial: _loss(trial, plan, 1))


def _ordered(complete: Sequence[FrozenTrial], plan: Plan) -> list[FrozenTrial]:
    """Return trials by the first objective, best first; ties go to the greater MAP@R, then the earlier trial."""
    return sorted(complete, key=lambda t: (_loss(t, plan), -_folds(t, "MAP@R").mean(), t.number))


def _loss(trial: FrozenTrial, plan: Plan, objective: int = 0) -> float:
    """Return an objective of a complete trial, negated if greater is better."""
    value: float = trial.values[objective]
    return value * (1 if plan.directions[objective] == "minimize" else -1)


def _folds(trial: FrozenTrial, metric: str) -> np.ndarray:
    return np.array(trial.user_attrs["metrics"][metric])


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def number(value: float, metric: str) -> str:
    """Return a metric with few digits."""
    return f"{value:.2e}" if "OPIS" in metric else f"{value:.3f}"


def short(value: object) -> str:
    """Return the value of a parameter with few digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def values_text(trial: FrozenTrial) -> str:
    """Return a trial's values as text."""
    return ", ".join(f"{name} {short(value)}" for name, value in trial.params.items())


def line_of(trial: FrozenTrial, plan: Plan, done: int) -> str:
    """Return the line to print when a trial has ended."""
    if trial.state == TrialState.COMPLETE:
        outcome = ", ".join(
            f"{metric} {number(value, metric)} ± {number(_error(_folds(trial, metric)), metric)}"
            for metric, value in zip(plan.metrics, trial.values, strict=True)
        )
    else:
        outcome = reason(trial)
    seconds = f" ({trial.user_attrs['seconds']:.0f} s)" if "seconds" in trial.user_attrs else ""
    given = " [the given settings]" if trial.user_attrs.get("default") else ""
    return f"{done}/{plan.trials}  trial {trial.number}: {outcome}{seconds}  {values_text(trial)}{given}"


def reason(trial: FrozenTrial) -> str:
    """Return why a trial did not finish all folds."""
    if trial.state == TrialState.PRUNED:
        return f"stopped, {trial.user_attrs.get('pruned', 'worse than most')}"
    return f"failed, {trial.user_attrs.get('error', 'its worker was killed on every attempt')}"


def render(outcome: Outcome) -> str:
    """Return the best trials as a table, with a summary."""
    plan, complete = outcome.plan, outcome.complete
    if outcome.best is None:
        return "No trial finished all folds: " + "; ".join(reason(trial) for trial in outcome.trials[:3])
    shown = complete[:SHOWN]
    for trial in (outcome.best, outcome.default):
        if trial is not None and trial not in shown:
            shown.append(trial)
    metrics = [*plan.metrics, *(f for f in ("FNIR", "R@1", "MAP@R") if f not in plan.metrics)]
    names = list(dict.fromkeys(name for trial in shown for name in trial.params))
    head, rows = ["trial", *metrics, *names, "seconds", ""], []
    for trial in shown:
        cells = [number(float(_folds(trial, metric).mean()), metric) for metric in metrics]
        cells[0] += f" ± {number(_error(_folds(trial, metrics[0])), metrics[0])}"
        mark = "best" if trial.number == outcome.best.number else "given" if trial.user_attrs.get("default") else ""
        values = [short(trial.params.get(name, "")) for name in names]
        rows.append([str(trial.number), *cells, *values, f"{trial.user_attrs['seconds']:.0f}", mark])
    return "\n".join([*text_table(head, rows), "", summary(outcome)])


def summary(outcome: Outcome) -> str:
    """Return the number of trials, the gain and its confidence interval as text."""
    plan, total = outcome.plan, len(outcome.trials)
    pruned = sum(trial.state == TrialState.PRUNED for trial in outcome.trials)
    failed = sum(trial.state == TrialState.FAIL for trial in outcome.trials)
    words = [f"{total} trials: {len(outcome.complete)} complete, {pruned} stopped early, {failed} failed."]
    metric, gain = plan.metrics[0], outcome.gain()
    if gain is not None and outcome.best is not None and outcome.default is not None:
        before, after = (number(float(trial.values[0]), metric) for trial in (outcome.default, outcome.best))
        half = float(stats.t.ppf(0.975, len(plan.folds) - 1)) * gain[1]
        words.append(
            f"{metric} changed from {before} with the given settings to {after}; the change lies between "
            f"{number(gain[0] - half, metric)} and {number(gain[0] + half, metric)} (95 %, {len(plan.folds)} folds)"
            + (", so it may be chance." if abs(gain[0]) <= half else ".")
        )
    elif outcome.best is not None and outcome.best is outcome.default:
        words.append("No trial was better than the given settings.")
    words.append(
        "The best of many trials looks better than it is; confirm it with "
        f"`{command('evaluate', 'RUN')}` on the test items."
    )
    return " ".join(words)


def to_toml(outcome: Outcome) -> str:
    """Return the best settings that differ from the defaults, as TOML for `retrieval train --config`."""
    plan, best = outcome.plan, outcome.best
    lines = [f"# Found by `retrieval tune`; mean over {len(plan.folds)} class-disjoint folds of the training items."]
    if best is not None:
        metrics = (f"{metric} {number(value, metric)}" for metric, value in zip(plan.metrics, best.values, strict=True))
        lines.append(f"# Trial {best.number} of {len(outcome.trials)}: {', '.join(metrics)}.")
    values, defaults = outcome.settings.to_dict(), _defaults()
    searched = {name for name in plan.space.axes if "." not in name}
    tables: list[str] = []
    for name, value in values.items():
        if value == defaults.get(name) and name not in searched:
            continue
        if isinstance(value, Mapping):
            if value:
                tables += ["", f"[{name}]", *(f"{key} = {_toml(v)}" for key, v in value.items() if v is not None)]
            continue
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _defaults() -> dict[str, Any]:
    defaults: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        if field.default_factory is not dataclasses.MISSING:
            defaults[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            defaults[field.name] = field.default
    return defaults


def _toml(value: Any) -> str:
    """Return a plain value as TOML, which shares strings, numbers, booleans and lists with JSON. None is left out."""
    if isinstance(value, Mapping):
        entries = (f"{json.dumps(key)} = {_toml(entry)}" for key, entry in value.items() if entry is not None)
        return f"{{{', '.join(entries)}}}"
    if isinstance(value, (list, tuple)):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
