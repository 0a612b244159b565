"""What a study found: its best trial beside the settings it began with, as text, as a table and as a TOML file."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from optuna.trial import FrozenTrial, TrialState
from scipy import stats

from index.shell import command
from training.config import Settings

from .plan import Plan
from .search_space import Choice
from .search_targets import apply
from .trial_queue import is_counted

SHOWN = 10  # trials of the table


@dataclass(frozen=True)
class Outcome:
    """A study's plan and trials, and which of them is the best."""

    plan: Plan
    trials: Sequence[FrozenTrial]  # those that were asked for and are done
    best: FrozenTrial | None
    default: FrozenTrial | None  # the settings as they were given, where they lie in the search space

    @property
    def complete(self) -> list[FrozenTrial]:
        """The trials that went through all folds, best first."""
        done = [trial for trial in self.trials if trial.state == TrialState.COMPLETE]
        return _ordered(done, self.plan)

    @property
    def settings(self) -> Settings:
        """The settings of the best trial."""
        return self.plan.settings if self.best is None else settings_of(self.best, self.plan)

    def gain(self) -> tuple[float, float] | None:
        """Return the mean change of the first objective from default to best over the folds, and its standard error."""
        if self.best is None or self.default is None or self.best.number == self.default.number:
            return None
        figure = self.plan.figures[0]
        change = _folds(self.best, figure) - _folds(self.default, figure)
        return float(change.mean()), _error(change)


def outcome_of(plan: Plan, trials: Sequence[FrozenTrial]) -> Outcome:
    """Return what the trials of a study come to."""
    done = [trial for trial in trials if is_counted(trial)]
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
    """Return the trial with the best value.

    With two objectives: of those that are within a standard error (over the folds) of the best by the first one, the
    best by the second.
    """
    if not complete:
        return None
    ordered = _ordered(complete, plan)
    if len(plan.objectives) == 1:
        return ordered[0]
    figure = plan.figures[0]
    sign = 1 if plan.directions[0] == "minimize" else -1
    equal = []
    for trial in ordered:
        behind = sign * (_folds(trial, figure) - _folds(ordered[0], figure))
        if behind.mean() <= _error(behind):
            equal.append(trial)
    return min(equal, key=lambda trial: _loss(trial, plan, 1))


def _ordered(complete: Sequence[FrozenTrial], plan: Plan) -> list[FrozenTrial]:
    """Return trials by the first objective, best first; of several the one with the greater MAP@R, then the earlier."""
    return sorted(complete, key=lambda t: (_loss(t, plan), -_folds(t, "MAP@R").mean(), t.number))


def _loss(trial: FrozenTrial, plan: Plan, objective: int = 0) -> float:
    """Return an objective of a complete trial so that smaller is better."""
    value: float = trial.values[objective]
    return value * (1 if plan.directions[objective] == "minimize" else -1)


def _folds(trial: FrozenTrial, figure: str) -> np.ndarray:
    return np.array(trial.user_attrs["figures"][figure])


def _error(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / np.sqrt(len(values)))


def number(value: float, figure: str) -> str:
    """Return a figure in few digits; OPIS is small."""
    return f"{value:.2e}" if "OPIS" in figure else f"{value:.3f}"


def short(value: object) -> str:
    """Return the value of a parameter in few digits."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def told(trial: FrozenTrial) -> str:
    """Return a trial's values in words."""
    return ", ".join(f"{name} {short(value)}" for name, value in trial.params.items())


def line_of(trial: FrozenTrial, plan: Plan, done: int) -> str:
    """Return the line that is printed when a trial has ended."""
    if trial.state == TrialState.COMPLETE:
        outcome = ", ".join(
            f"{figure} {number(value, figure)} ± {number(_error(_folds(trial, figure)), figure)}"
            for figure, value in zip(plan.figures, trial.values, strict=True)
        )
    else:
        outcome = reason(trial)
    seconds = f" ({trial.user_attrs['seconds']:.0f} s)" if "seconds" in trial.user_attrs else ""
    given = " [the settings as given]" if trial.user_attrs.get("default") else ""
    return f"{done}/{plan.trials}  trial {trial.number}: {outcome}{seconds}  {told(trial)}{given}"


def reason(trial: FrozenTrial) -> str:
    """Return in words why a trial did not go through all folds."""
    if trial.state == TrialState.PRUNED:
        return f"stopped, {trial.user_attrs.get('pruned', 'worse than most')}"
    return f"failed, {trial.user_attrs.get('error', 'its worker was killed each time')}"


def render(outcome: Outcome) -> str:
    """Return the best trials as a table, and in words what was gained."""
    plan, complete = outcome.plan, outcome.complete
    if outcome.best is None:
        return "No trial went through all folds: " + "; ".join(reason(trial) for trial in outcome.trials[:3])
    shown = complete[:SHOWN]
    for trial in (outcome.best, outcome.default):
        if trial is not None and trial not in shown:
            shown.append(trial)
    figures = [*plan.figures, *(f for f in ("FNIR", "R@1", "MAP@R") if f not in plan.figures)]
    names = list(dict.fromkeys(name for trial in shown for name in trial.params))
    rows = [["trial", *figures, *names, "seconds", ""]]
    for trial in shown:
        cells = [number(float(_folds(trial, figure).mean()), figure) for figure in figures]
        cells[0] += f" ± {number(_error(_folds(trial, figures[0])), figures[0])}"
        mark = "best" if trial.number == outcome.best.number else "as given" if trial.user_attrs.get("default") else ""
        values = [short(trial.params.get(name, "")) for name in names]
        rows.append([str(trial.number), *cells, *values, f"{trial.user_attrs['seconds']:.0f}", mark])
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.rjust(w) for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]
    lines.insert(1, "  ".join("-" * w for w in widths[:-1]))
    return "\n".join([*lines, "", summary(outcome)])


def summary(outcome: Outcome) -> str:
    """Return in words how many trials there were, what was gained, and how far that can be believed."""
    plan, total = outcome.plan, len(outcome.trials)
    pruned = sum(trial.state == TrialState.PRUNED for trial in outcome.trials)
    failed = sum(trial.state == TrialState.FAIL for trial in outcome.trials)
    words = [f"{total} trials: {len(outcome.complete)} complete, {pruned} stopped early, {failed} failed."]
    figure, gain = plan.figures[0], outcome.gain()
    if gain is not None and outcome.best is not None and outcome.default is not None:
        before, after = (number(float(trial.values[0]), figure) for trial in (outcome.default, outcome.best))
        half = float(stats.t.ppf(0.975, len(plan.folds) - 1)) * gain[1]
        words.append(
            f"{figure} from {before} with the settings as given to {after}; the change lies between "
            f"{number(gain[0] - half, figure)} and {number(gain[0] + half, figure)} (95 %, {len(plan.folds)} folds)"
            + (", so it may be chance." if abs(gain[0]) <= half else ".")
        )
    elif outcome.best is not None and outcome.best is outcome.default:
        words.append("No trial did better than the settings as given.")
    words.append(
        f"The best of many trials looks better than it is: `{command('evaluate', 'RUN')}` on test items decides."
    )
    return " ".join(words)


def to_toml(outcome: Outcome) -> str:
    """Return the best settings as TOML that `retrieval train --config` takes: what differs from the defaults."""
    plan, best = outcome.plan, outcome.best
    lines = [f"# Found by `retrieval tune`; mean over {len(plan.folds)} class-disjoint folds of the training items."]
    if best is not None:
        figures = (f"{figure} {number(value, figure)}" for figure, value in zip(plan.figures, best.values, strict=True))
        lines.append(f"# Trial {best.number} of {len(outcome.trials)}: {', '.join(figures)}.")
    values, defaults = outcome.settings.to_dict(), _defaults()
    searched = {name for name in plan.space.axes if "." not in name}
    tables: list[str] = []
    for name, value in values.items():
        if value == defaults.get(name) and name not in searched:
            continue
        if isinstance(value, Mapping):
            if value:
                tables += ["", f"[{name}]", *(f"{key} = {_toml(entry)}" for key, entry in value.items())]
            continue
        lines.append(f"{name} = {_toml(value)}")
    return "\n".join([*lines, *tables]) + "\n"


def _defaults() -> dict[str, Any]:
    found: dict[str, Any] = {}
    for field in dataclasses.fields(Settings):
        if field.default_factory is not dataclasses.MISSING:
            found[field.name] = field.default_factory()
        elif field.default is not dataclasses.MISSING:
            found[field.name] = field.default
    return found


def _toml(value: Any) -> str:
    """Return a plain value in TOML, which reads JSON's words, numbers, truth values and lists."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
