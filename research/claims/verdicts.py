"""Rows of the tables: the effect of each claim on a set, with its interval and verdict."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from .intervals import OPEN, Draws, Effect, effect, first_reached, relative_effect, verdict
from .measures import ANCHORED, RANKED
from .plan import BETTER, CHANGES, FASTER, ROBUST, as_curve, changed, tcm_pairs
from .store import TOLERANCE, Runs
from .training import CHECKPOINTS, OWN_ARGUMENTS, Task

GOAL = -0.25  # change of OPIS
REACHED = 0.95  # share of the reference's rise of R@1, from the untrained model to the last, that must be reached
NONE = "–"
Row = tuple[str, ...]
TCM_COLUMNS = (
    *("set, base loss", "margins, weight", "R@1", "OPIS", "change of OPIS", "change without sampling noise"),
    *("change of R@1", "of TPIR, anchored", "verdict"),
)
BETTER_COLUMNS = ("set, losses", "R@1", "difference of R@1", "of MAP@R", "of TPIR, anchored", "verdict")
CONTEXT_COLUMNS = ("set, training data", "R@1", "difference of R@1", "higher", "difference of the drop", "drops less")
EPOCH_COLUMNS = ("set, losses", "last R@1", "epochs", "ratio of epochs", "verdict")
LOSS_COLUMNS = (
    "set, loss",
    "R@1",
    "MAP@R",
    "OPIS",
    "without sampling noise",
    "TPIR, anchored",
    "FPIR, anchored",
    "TPIR at exactly 5 %",
)


class Comparison:
    """The test figures of tasks on one set for all seeds, and effects between them."""

    def __init__(self, runs: Runs, seeds: int) -> None:
        self.runs, self._seeds = runs, seeds
        self._draws: Draws | None = None

    def figures(self, task: Task, name: str) -> Sequence[Any]:
        """Return a figure by class of every seed (S, T, …)."""
        return [self.runs.test(dataclasses.replace(task, seed=seed))[name] for seed in range(self._seeds)]

    def draws(self, classes: int) -> Draws:
        """Return the draws of the bootstrap, the same for all comparisons of the set."""
        if self._draws is None:
            self._draws = Draws.make(classes=classes, seeds=self._seeds)
        return self._draws

    def means(self, task: Task, name: str) -> np.ndarray:
        """Return the mean (B + 1,) of a figure of the classes."""
        values = np.asarray(self.figures(task, name))
        return self.draws(values.shape[1]).mean(values)

    def log_opis(self, task: Task) -> np.ndarray:
        """Return the mean log OPIS (B + 1,)."""
        utility = np.asarray(self.figures(task, "utility"))
        return self.draws(utility.shape[1]).log_opis(utility)

    def opis_of_halves(self, task: Task) -> np.ndarray:
        """Return the mean OPIS without sampling noise (B + 1,)."""
        utility = np.asarray(self.figures(task, "utility by half"))
        return self.draws(utility.shape[2]).opis_of_halves(utility)

    def difference(self, task: Task, other: Task, name: str) -> Effect:
        """Return the difference of a figure between two tasks."""
        return effect(self.means(task, name) - self.means(other, name))

    def curves(self, task: Task) -> np.ndarray:
        """Return the mean curve (B + 1, C)."""
        values = np.asarray(self.figures(task, "curve"))
        return self.draws(values.shape[2]).curves(values)


def tcm_rows(name: str, comparison: Comparison) -> Iterator[Row]:
    """Yield the rows of TCM: OPIS down by a quarter, R@1 not down by more than the tolerance."""
    for base, both in tcm_pairs(comparison.runs):
        opis = relative_effect(comparison.log_opis(both) - comparison.log_opis(base))
        recall = comparison.difference(both, base, "R@1")
        less = Effect(-opis.value, -opis.high, -opis.low)
        assert both.tcm is not None  # noqa: S101, for mypy
        yield (
            f"{name}, {base.loss} {plain(base.arguments)}",
            "({:g}, {:g}), {:g}".format(*both.tcm),
            f"{mean(comparison, base, 'R@1')} → {mean(comparison, both, 'R@1')}",
            f"{opis_mean(comparison, base)} → {opis_mean(comparison, both)}",
            opis.percent(),
            effect(comparison.opis_of_halves(both) / comparison.opis_of_halves(base) - 1).percent(),
            recall.shown(),
            comparison.difference(both, base, "TPIR, anchored").shown(),
            verdict((less, -GOAL), (recall, -TOLERANCE)),
        )


def better_rows(name: str, comparison: Comparison) -> Iterator[Row]:
    """Yield the rows of EL-nivMF: a higher R@1."""
    for ours, theirs in BETTER:
        one, two = comparison.runs.tuned(ours), comparison.runs.tuned(theirs)
        recall, precision, found = (comparison.difference(one, two, n) for n in ("R@1", "MAP@R", "TPIR, anchored"))
        titles = f"{ours} {plain(one.arguments)} over {theirs} {plain(two.arguments)}"
        recalls = f"{mean(comparison, one, 'R@1')}, {mean(comparison, two, 'R@1')}"
        shown = (recall.shown(), precision.shown(), found.shown())
        yield f"{name}, {titles}", recalls, *shown, verdict((recall, 0.0))


def context_rows(name: str, comparison: Comparison) -> Iterator[Row]:
    """Yield the rows of the contextual loss: a higher R@1, and a smaller drop from all classes with clean labels."""
    one, two = (comparison.runs.tuned(loss) for loss in ROBUST)
    clean = comparison.means(one, "R@1") - comparison.means(two, "R@1")
    for title, noise, classes in CHANGES:
        ours, theirs = changed(one, noise, classes), changed(two, noise, classes)
        gap = comparison.means(ours, "R@1") - comparison.means(theirs, "R@1")
        higher, drop = effect(gap), effect(gap - clean)
        drops = (NONE, NONE) if ours == one else (drop.shown(), verdict((drop, 0.0)))
        recalls = f"{mean(comparison, ours, 'R@1')}, {mean(comparison, theirs, 'R@1')}"
        yield f"{name}, {title}", recalls, higher.shown(), verdict((higher, 0.0)), *drops


def epoch_rows(name: str, comparison: Comparison) -> Iterator[Row]:
    """Yield the rows of the mean-field losses: fewer epochs to 95 % of the other's rise of R@1."""
    epochs = comparison.runs.data.steps / comparison.runs.data.epoch
    for ours, theirs in FASTER:
        one, two = (comparison.curves(as_curve(comparison.runs.tuned(loss))) for loss in (ours, theirs))
        goals = two[:, 0] + REACHED * (two[:, -1] - two[:, 0])
        reached = [epochs * first_reached(curves, goals, CHECKPOINTS) for curves in (one, two)]
        shown = (f"{name}, {ours} over {theirs}", f"{one[0, -1]:.3f}, {two[0, -1]:.3f}")
        if not (reached[1] > 0).all():  # of the sample or of a resample: R@1 does not rise
            yield *shown, NONE, NONE, f"{OPEN}: R@1 of the second hardly rises"
            continue
        ratio = effect(reached[0] / reached[1])
        answer = verdict((Effect(1 - ratio.value, 1 - ratio.high, 1 - ratio.low), 0.0))
        yield *shown, f"{reached[0][0]:.1f}, {reached[1][0]:.1f}", ratio.plain(2), answer


def loss_rows(name: str, comparison: Comparison) -> Iterator[Row]:
    """Yield the figures of the base losses, without and with TCM."""
    pairs = list(tcm_pairs(comparison.runs))
    tasks = [(f"{base.loss} {plain(base.arguments)}", base) for base, _ in pairs]
    for title, task in [*tasks, *((f"{both.loss} + TCM", both) for _, both in pairs)]:
        cells = [effect(comparison.means(task, metric)).plain() for metric in (*RANKED, *ANCHORED)]
        ranked, (anchored, exact, rate) = cells[:2], cells[2:]
        without = f"{comparison.opis_of_halves(task)[0]:.4f}"
        yield f"{name}, {title}", *ranked, opis_mean(comparison, task), without, anchored, rate, exact


def mean(comparison: Comparison, task: Task, name: str) -> str:
    """Return the mean of a figure as text."""
    return f"{comparison.means(task, name)[0]:.3f}"


def opis_mean(comparison: Comparison, task: Task) -> str:
    """Return OPIS (the geometric mean over seeds) as text."""
    return f"{np.exp(comparison.log_opis(task)[0]):.4f}"


def plain(arguments: Mapping[str, Any]) -> str:
    """Return the arguments of a loss, without those of its training, as text."""
    return "(" + ", ".join(f"{k} {v:g}" for k, v in arguments.items() if k not in OWN_ARGUMENTS) + ")"
