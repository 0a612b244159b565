"""HTML report of a study: history, importance of the settings, values per setting, and all trials.

It is one file without scripts and external resources.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import optuna
from optuna.trial import FrozenTrial, TrialState

from retrieval.html import document, drawn, figure_grid, legend_above, table

from .results import Outcome, number, reason, short, summary
from .search_space import Axis, Range
from .study import FOLD_STEPS

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MIN_TRIALS = 12  # complete trials that importances need
Figure = tuple[str, str, str]  # heading, picture, caption
OTHERS = ("FNIR", "R@1", "MAP@R", "OPIS", "search OPIS")
BLUE, ORANGE, GREY, RED = "#2b6cb0", "#c05621", "#718096", "#c53030"
STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; color: #1a202c; max-width: 62rem; margin: 2rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; margin-bottom: .3rem; } h2 { font-size: 1.15rem; margin: 2rem 0 .3rem; }
p { max-width: 46rem; overflow-wrap: anywhere; } svg { width: 100%; height: auto; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1rem; }
figure { margin: 0; } figcaption { font-size: .92rem; color: #4a5568; }
.status { border-left: 5px solid; padding: .2rem .9rem; } .certified { border-color: #2f855a; }
.estimated { border-color: #c05621; }
table { border-collapse: collapse; font-size: .92rem; } td, th { padding: .2rem .8rem .2rem 0; text-align: right; }
td:first-child, th:first-child { text-align: left; } tr.chosen { font-weight: 600; }
tbody th { font-weight: inherit; }
.photos { display: flex; flex-wrap: wrap; gap: .3rem; } .photos img { height: 6rem; }
table { display: block; overflow-x: auto; } td { overflow-wrap: anywhere; }
@media (prefers-color-scheme: dark) {
  body { color: #e8edf4; background: #0b1220; } figcaption { color: #a8b5c7; }
  svg { background: #fff; border-radius: 8px; }
}
@media print { body { margin: 0; } }
"""
MORE_STYLE = """
table.trials { display: block; overflow-x: auto; white-space: nowrap; } tr.stopped { color: #718096; }
td:last-child { text-align: left; }
"""


def render_study(outcome: Outcome) -> str:
    """Return the page; raise MissingDependency without matplotlib."""
    title = f"Tuning for {outcome.plan.judged_by}"
    figures = [*_trial_figures(outcome), *_objective_figures(outcome), *_setting_figures(outcome)]
    body = (
        f"<h1>{title}</h1><p>{_marked(summary(outcome))}</p>{_how(outcome)}{figure_grid(figures)}"
        f"<h2>All trials</h2>{_table(outcome)}"
    )
    return document(title, style=STYLE + MORE_STYLE, body=body)


def _trial_figures(outcome: Outcome) -> Iterator[Figure]:
    """Yield the history of each metric, and the importance of the settings for it."""
    for place, metric in enumerate(outcome.plan.metrics):
        yield (
            f"{metric} of each trial",
            drawn(lambda axes, place=place: _history(axes, outcome, place)),  # type: ignore[misc]
            "One dot per trial, the mean over the folds; the line is the best so far. Crosses are trials that were "
            "stopped early, at their last mean.",
        )
        weights = importances(outcome, place)
        if weights:
            yield (
                f"Importance of the settings for {metric}",
                drawn(lambda axes, weights=weights: _bars(axes, weights)),  # type: ignore[misc]
                "Share of each setting in the variance between trials (fANOVA): how much it matters within its "
                "range, not which value is good. Settings that only some trials have are left out. "
                f"Based on {len(outcome.complete)} complete trials; a few dozen make it reliable.",
            )


def _objective_figures(outcome: Outcome) -> Iterator[Figure]:
    """Yield both objectives against each other, or the progress of the trials by the only one."""
    if len(outcome.plan.metrics) == 2:
        yield (
            "Both objectives",
            drawn(lambda axes: _scatter(axes, outcome)),
            "One dot per trial. The selected one, in red, is the best by the second objective among those within a "
            "standard error of the best by the first.",
        )
    elif any(trial.intermediate_values for trial in outcome.trials):
        yield (
            "Progress of the trials",
            drawn(lambda axes: _curves(axes, outcome)),
            "Mean over the folds so far, after each epoch, which pruning compares. Grey lines were stopped.",
        )


def _setting_figures(outcome: Outcome) -> Iterator[Figure]:
    """Yield the first metric against the values of each setting."""
    plan = outcome.plan
    for name in plan.space.axes:
        if any(name in trial.params for trial in outcome.complete):
            yield (
                html.escape(name),
                drawn(lambda axes, name=name: _slice(axes, outcome, name)),  # type: ignore[misc]
                f"{html.escape(plan.metrics[0])} against the value tried, searched in "
                f"{html.escape(str(plan.space.axes[name]))}. Darker dots are later trials, the selected is red. "
                "Crosses were stopped early, at their last mean.",
            )


def importances(outcome: Outcome, place: int = 0) -> dict[str, float]:
    """Return the fANOVA importance of each setting for an objective, greatest first; {} for too few or equal trials.

    Only settings that every complete trial has are compared.
    """
    complete = outcome.complete
    values = [trial.values[place] for trial in complete]
    common = [name for name in outcome.plan.space.axes if all(name in trial.params for trial in complete)]
    varied = [name for name in common if len({trial.params[name] for trial in complete}) > 1]
    if len(complete) < MIN_TRIALS or len(set(values)) < 2 or not varied:
        return {}
    study = optuna.create_study(direction=outcome.plan.directions[place])
    for trial, value in zip(complete, values, strict=True):
        study.add_trial(optuna.create_trial(params=trial.params, distributions=trial.distributions, value=value))
    importance = optuna.importance.get_param_importances(
        study, params=varied, evaluator=optuna.importance.FanovaImportanceEvaluator(seed=0)
    )
    return {name: float(weight) for name, weight in importance.items()}


def _history(axes: Axes, outcome: Outcome, place: int) -> None:
    complete = sorted(outcome.complete, key=lambda trial: trial.number)
    order = {trial.number: position + 1 for position, trial in enumerate(outcome.trials)}
    at = [order[trial.number] for trial in complete]
    values = [trial.values[place] for trial in complete]
    best = (
        np.minimum.accumulate(values) if outcome.plan.directions[place] == "minimize" else np.maximum.accumulate(values)
    )
    axes.plot(at, values, "o", color=BLUE, alpha=0.6, markersize=4)
    axes.step([*at, len(order)], [*best, *best[-1:]], where="post", color="black", label="best so far")
    stopped = _stopped(outcome)
    if stopped:
        at = [order[trial.number] for trial in stopped]
        axes.plot(at, [_last(trial) for trial in stopped], "x", color=GREY, label="stopped early")
    metric = outcome.plan.metrics[place]
    if outcome.default is not None:
        value = outcome.default.values[place]
        axes.axhline(value, color=ORANGE, linestyle="--", label=f"the given settings: {number(value, metric)}")
    if outcome.best is not None:
        value = outcome.best.values[place]
        axes.plot([order[outcome.best.number]], [value], "o", color=RED, label=f"selected: {number(value, metric)}")
    axes.set(xlabel="trial", ylabel=metric)
    axes.locator_params(axis="x", integer=True)
    legend_above(axes)


def _last(trial: FrozenTrial) -> float:
    """Return the last finite value that a trial reported, or NaN."""
    finite = [value for _, value in sorted(trial.intermediate_values.items()) if math.isfinite(value)]
    return finite[-1] if finite else math.nan


def _bars(axes: Axes, weights: dict[str, float]) -> None:
    names = list(weights)[::-1]
    bars = axes.barh(names, [weights[name] for name in names], color=BLUE)
    axes.bar_label(bars, [f" {weights[name]:.0%}" for name in names], fontsize=9)
    axes.set(xlabel="importance", xlim=(0, 1.1))


def _scatter(axes: Axes, outcome: Outcome) -> None:
    first, second = (np.array([trial.values[i] for trial in outcome.complete]) for i in (0, 1))
    axes.plot(first, second, "o", color=BLUE, alpha=0.6, markersize=4)
    for trial, color, name in ((outcome.default, ORANGE, "the given settings"), (outcome.best, RED, "selected")):
        if trial is not None:
            axes.plot([trial.values[0]], [trial.values[1]], "o", color=color, label=name)
    axes.set(xlabel=outcome.plan.metrics[0], ylabel=outcome.plan.metrics[1])
    legend_above(axes)


def _curves(axes: Axes, outcome: Outcome) -> None:
    for trial in outcome.trials:
        points = sorted((step / FOLD_STEPS, value) for step, value in trial.intermediate_values.items())
        if not points:
            continue
        steps, values = zip(*points, strict=True)
        best = outcome.best is not None and trial.number == outcome.best.number
        pruned = trial.state == TrialState.PRUNED
        style = {"color": RED, "linewidth": 2.0, "zorder": 3} if best else {"color": GREY if pruned else BLUE}
        axes.plot(steps, values, marker="x" if pruned else None, markevery=[-1], **({"alpha": 0.5} | style))
    axes.set(xlabel="folds trained", ylabel=f"mean {outcome.plan.metrics[0]} so far")


def _slice(axes: Axes, outcome: Outcome, name: str) -> None:
    complete = sorted((t for t in outcome.complete if name in t.params), key=lambda trial: trial.number)
    stopped = [t for t in _stopped(outcome) if name in t.params]
    axis = outcome.plan.space.axes[name]
    axes.plot(_places(axis, stopped, name), [_last(trial) for trial in stopped], "x", color=GREY, alpha=0.6)
    places, values = _places(axis, complete, name), [trial.values[0] for trial in complete]
    order = [trial.number for trial in complete]
    axes.scatter(places, values, c=order, cmap="Blues", vmin=-len(outcome.trials), s=22, zorder=2)
    for place, trial in zip(places, complete, strict=True):
        if outcome.best is not None and trial.number == outcome.best.number:
            axes.plot([place], [trial.values[0]], "o", color=RED)
    if isinstance(axis, Range):
        axes.set(xlim=(axis.low, axis.high), xscale="log" if axis.log else "linear")
    else:
        axes.set_xticks(range(len(axis.words)), axis.words, rotation=20 if max(map(len, axis.words)) > 12 else 0)
        axes.set_xlim(-0.5, len(axis.words) - 0.5)
    axes.set(xlabel=name, ylabel=outcome.plan.metrics[0])


def _places(axis: Axis, trials: Sequence[FrozenTrial], name: str) -> list[float]:
    """Return the positions of trials on an axis; trials with the same choice are spread out."""
    if isinstance(axis, Range):
        return [float(trial.params[name]) for trial in trials]
    spread = np.linspace(-0.2, 0.2, len(trials))
    return [axis.words.index(trial.params[name]) + float(spread[i]) for i, trial in enumerate(trials)]


def _stopped(outcome: Outcome) -> list[FrozenTrial]:
    """Return the trials that were stopped early at a finite mean. With two objectives there are none."""
    if len(outcome.plan.metrics) > 1:
        return []
    return [trial for trial in outcome.trials if trial.state == TrialState.PRUNED and math.isfinite(_last(trial))]


def _marked(text: str) -> str:
    """Return text as HTML, with words between backticks as code."""
    parts = html.escape(text).split("`")
    return "".join(f"<code>{part}</code>" if i % 2 else part for i, part in enumerate(parts))


def _how(outcome: Outcome) -> str:
    plan = outcome.plan
    items = sum(len(validation) for _, validation in plan.folds)
    return (
        f"<p>Each trial trained on {len(plan.folds)} class-disjoint folds of {items} training items and was evaluated "
        "on the items left out. Calibration and test items were not used.</p>"
    )


def _table(outcome: Outcome) -> str:
    plan, complete = outcome.plan, outcome.complete
    measured = complete[0].user_attrs["metrics"] if complete else {}
    metrics = [*plan.metrics, *(name for name in OTHERS if name in measured and name not in plan.metrics)]
    names = list(plan.space.axes)
    columns = [html.escape(name) for name in ("trial", *metrics, *names, "")]
    rest = [trial for trial in outcome.trials if trial.state != TrialState.COMPLETE]
    rows, marks = [], []
    for trial in [*complete, *rest]:
        done = trial.user_attrs.get("metrics", {})
        cells = [number(float(np.mean(done[metric])), metric) if metric in done else "" for metric in metrics]
        last = _last(trial)
        if trial in rest and math.isfinite(last):
            cells[0] = f"({number(last, metrics[0])})"
        cells += [short(trial.params.get(name, "")) for name in names]
        best = outcome.best is not None and trial.number == outcome.best.number
        word = "selected" if best else "given" if trial.user_attrs.get("default") else ""
        word = reason(trial) if trial in rest else word
        marks.append("chosen" if best else "stopped" if trial in rest else "")
        rows.append([html.escape(cell) for cell in (str(trial.number), *cells, word)])
    return table(columns, rows, kind="trials", marks=marks)
