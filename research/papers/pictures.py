"""Plots of results: lines, scatter, bars, ranks, learning curves. Plots of embeddings are in `embedding_pictures`."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.errors import InvalidParameter

from .canvas import new_figure, save
from .configuration import Configuration
from .embedding_pictures import EMBEDDING_PICTURES, Gallery
from .results import Cells, half_width
from .runs import Job

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


def picture(kind: str, configuration: Configuration, cells: Cells, jobs: Gallery, folder: Path) -> str:
    """Draw a plot of a configuration's results and return its file name; raise InvalidParameter for an unknown kind."""
    word, _, rest = kind.partition(" ")
    if kind in EMBEDDING_PICTURES:
        return save(EMBEDDING_PICTURES[kind](jobs), kind, folder)
    if kind == LOSS_AGAINST:
        return save(_loss_against(jobs), kind, folder)
    if word == "epochs":
        return save(_epochs(jobs, rest), kind, folder)
    if word not in RESULT_PICTURES:
        known = [*RESULT_PICTURES, "epochs FIGURE", LOSS_AGAINST, *EMBEDDING_PICTURES]
        raise InvalidParameter("picture", f"be one of {', '.join(known)}", kind)
    figure, panels = new_figure(max(1, len(cells)))
    for panel, (dataset, rows) in zip(panels, cells.items(), strict=True):
        panel.set_title(dataset)
        RESULT_PICTURES[word](panel, configuration, rows, rest)
    return save(figure, kind, folder)


Rows = Mapping[str, Mapping[str, list[float]]]


def _lines(panel: Axes, configuration: Configuration, rows: Rows, metric: str) -> None:
    """Draw a metric (default: the first) against x, one line per series; variants without x are horizontal lines."""
    metric = metric or configuration.metrics[0]
    curves: dict[str, list[tuple[float, float, float]]] = {}
    for name, row in rows.items():
        variant, values = configuration.variants[name], row[metric]
        mean = float(np.mean(values))
        if variant.x is None:
            panel.axhline(mean, linestyle=":", color="grey")
            panel.annotate(name, (0.02, mean), xycoords=("axes fraction", "data"), fontsize=7)
        else:
            curves.setdefault(variant.series, []).append((variant.x, mean, half_width(values) or 0.0))
    for series, points in curves.items():
        x, y, half = zip(*sorted(points), strict=True)
        panel.errorbar(x, y, yerr=half, marker="o", markersize=3, capsize=2, label=series)
    panel.set_ylabel(metric)
    if curves:
        panel.legend(fontsize=6, loc="upper right")


def _scatter(panel: Axes, configuration: Configuration, rows: Rows, _: str) -> None:
    """Draw the first metric against the second, one point per variant and one colour per series."""
    first, second = configuration.metrics[:2]
    series = sorted({configuration.variants[name].series for name in rows})
    for number, kind in enumerate(series):
        variants = [name for name in rows if configuration.variants[name].series == kind]
        x, y = ([float(np.mean(rows[name][metric])) for name in variants] for metric in (first, second))
        panel.scatter(x, y, color=f"C{number % 10}", label=kind, s=18)
        for name, px, py in zip(variants, x, y, strict=True):
            panel.annotate(name, (px, py), fontsize=5)
    panel.set_xlabel(first)
    panel.set_ylabel(second)
    if any(series):
        panel.legend(fontsize=7, loc="upper right")


def _bars(panel: Axes, configuration: Configuration, rows: Rows, metric: str) -> None:
    """Draw one metric as a bar per variant."""
    metric = metric or configuration.metrics[0]
    means = [float(np.mean(row[metric])) for row in rows.values()]
    halves = [half_width(row[metric]) or 0.0 for row in rows.values()]
    panel.bar(range(len(means)), means, yerr=halves)
    panel.set_xticks(range(len(means)), list(rows), rotation=60, ha="right", fontsize=7)
    panel.set_ylabel(metric)


def _ranks(panel: Axes, configuration: Configuration, rows: Rows, _: str) -> None:
    """Draw the rank of each variant for each metric, 1 for the smallest value."""
    values = np.array([[np.mean(row[metric]) for metric in configuration.metrics] for row in rows.values()])
    ranks = values.argsort(axis=0, kind="stable").argsort(axis=0, kind="stable") + 1
    for name, row in zip(rows, ranks, strict=True):
        panel.plot(range(ranks.shape[1]), row, marker="o", label=name)
    panel.set_xticks(range(ranks.shape[1]), configuration.metrics, rotation=30, ha="right", fontsize=7)
    panel.set_ylabel("rank")
    panel.legend(fontsize=6, loc="upper right")


RESULT_PICTURES: Mapping[str, Callable[[Axes, Configuration, Rows, str], None]] = {
    "lines": _lines,
    "scatter": _scatter,
    "bars": _bars,
    "ranks": _ranks,
}


def log_of(job: Job) -> list[dict[str, Any]]:
    """Return the logged values of each trained epoch of a run."""
    lines = [json.loads(line) for line in (job.path / "metrics.jsonl").read_text().splitlines()]
    return [line for line in lines if line["epoch"]]


LOSS_AGAINST = "loss against MAP@R"


def _by_dataset(jobs: Gallery) -> tuple[Figure, dict[str, Axes]]:
    names = list(dict.fromkeys(dataset for dataset, _ in jobs))
    figure, panels = new_figure(len(names))
    for name, panel in zip(names, panels, strict=True):
        panel.set_title(name)
    return figure, dict(zip(names, panels, strict=True))


def _epochs(jobs: Gallery, name: str) -> Figure:
    """Draw a validation metric, or the loss, by epoch."""
    figure, panels = _by_dataset(jobs)
    for (dataset, variant), job in jobs.items():
        lines = log_of(job)
        key = name if name in lines[0] else f"validation {name}"
        panels[dataset].plot(
            [line["epoch"] for line in lines], [line[key] for line in lines], marker=".", label=variant
        )
    for panel in panels.values():
        panel.set(xlabel="epoch", ylabel=name)
        panel.legend(fontsize=6, loc="upper right")
    return figure


def _loss_against(jobs: Gallery) -> Figure:
    """Draw the loss against 1 - MAP@R, epoch by epoch."""
    figure, panels = _by_dataset(jobs)
    for (dataset, variant), job in jobs.items():
        lines = log_of(job)
        x = [1 - line["validation MAP@R"] for line in lines]
        panels[dataset].plot(x, [line["loss"] for line in lines], marker=".", label=variant)
    for panel in panels.values():
        panel.set(xlabel="1 - MAP@R", ylabel="loss")
        panel.legend(fontsize=6, loc="upper right")
    return figure
