"""The calibration report `report.html` of a bundle: the threshold's error rates and the strength of its evidence."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.measuring.point import Point
from retrieval.measuring.sentences import caveats
from retrieval.metrics.consistency import Opis, UtilityCurves, search_curves
from retrieval.metrics.identification import SearchScores, det_curve
from retrieval.reports import number, render

from .charts import Chart, Line, histogram

if TYPE_CHECKING:
    from retrieval.bundle.bundle import Bundle

VARIANT = ("variant", "OPIS of pairs", "OPIS of searches", "FPIR", "TPIR")
WORST = 6  # number of items shown with photos
MOST_CURVES, POINTS = 100, 100  # curves of items in a chart, and thresholds of each


@dataclass(frozen=True)
class ReportData:
    """The data behind a report."""

    point: Point
    scores: SearchScores
    pair_curves: UtilityCurves | None = None  # over pairs of calibration photos
    pair_opis: Mapping[tuple[float, float], Opis] = field(default_factory=dict)  # by FAR range, the default range first
    photos: Callable[[str], Sequence[bytes]] = lambda _: ()  # returns a few JPEGs of an item
    beside_fp32: Sequence[Mapping[str, Any]] = ()  # metrics of fp32 on the CPU and of the exported model


def report_data(bundle: Bundle) -> ReportData | None:
    """Return the data of a report that a bundle itself holds, which has no photos; None if it holds none."""
    point, calibration = bundle.operating_point, bundle.calibration
    if calibration is None or point.basis.items_needed is None:  # the rule has set no threshold
        return None
    return ReportData(point, calibration.scores)


def render_report(data: ReportData) -> str:
    """Render the report as one HTML page."""
    beside = [variant_cells(row) for row in data.beside_fp32]
    return render(
        "bundle.html",
        point=data.point,
        caveats=caveats(data.point),
        evidence=data.point.evidence,
        charts=list(_charts(data)),
        ranges=[
            (f"{low:g} to {high:g}", f"{found.value:.2e}", f"{found.epsilon_value:.3f}")
            for (low, high), found in sorted(data.pair_opis.items())
        ],
        worst=list(_worst(data)),
        variant=VARIANT,
        beside=[{"cells": cells, "chosen": place == len(beside) - 1} for place, cells in enumerate(beside)],
        facts=[(name.replace("_", " "), number(value)) for name, value in data.point.evidence.items()],
    )


def variant_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the metrics of a variant as text: name, OPIS of pairs and of searches, FPIR, TPIR."""
    opis = (f"{row[name]:.2e}" for name in ("opis", "search_opis"))
    return str(row["form"]), *opis, *(f"{row[name]:.3f}" for name in ("fpir", "tpir"))


def _charts(data: ReportData) -> Sequence[tuple[Chart, str]]:
    """Return the charts with their captions."""
    scores, point = data.scores, data.point
    finite = np.concatenate([scores.own[np.isfinite(scores.own)], scores.impostor[np.isfinite(scores.impostor)]])
    last = float(finite.max(initial=1))
    curves = search_curves(scores, np.linspace(0, last, POINTS))
    charts = [
        (
            _utility("Each item's utility against the threshold", curves, {"threshold": point.threshold}),
            "The harmonic mean of 1 − FPIR and TPIR, one line per item; the closer the lines, the more one threshold "
            "means the same for all.",
        ),
        (
            _trade(scores, point),
            "FNIR (searches whose own item is not first) for each FPIR (searches of unknown items that return "
            "something). The line across the chosen threshold reaches to the upper 95 % bound of its FPIR.",
        ),
        (
            _histograms(scores, point.threshold, last),
            "Distances of photos to their own item, and to the nearest other item.",
        ),
    ]
    if data.pair_curves is not None and data.pair_opis:
        found = next(iter(data.pair_opis.values()))
        marks = {"calibration range": found.d_min, "": found.d_max}
        caption = (
            "Specificity and sensitivity over pairs of photos, as papers measure it, with the calibration range, FAR "
            f"1 % to 10 %. OPIS of pairs: {found.value:.2e}, epsilon-OPIS {found.epsilon_value:.3f}."
        )
        charts.append((_utility("The same of pairs, by the plain distance", data.pair_curves, marks), caption))
    return charts


def _utility(title: str, curves: UtilityCurves, marks: Mapping[str, float]) -> Chart:
    """Return a chart of the utility of items, with vertical lines at some distances."""
    rows = np.unique(np.linspace(0, len(curves.utility) - 1, MOST_CURVES).round().astype(int))
    lines = [Line("", curves.distances, utility, "a faint") for utility in curves.utility[rows]]
    lines.append(Line("mean of the items", curves.distances, curves.utility.mean(axis=0), "d"))
    lines += [Line.at(name, place, 1.0, "c") for name, place in marks.items()]
    return Chart(title, lines, "distance", "utility", (0.0, float(curves.distances[-1])), in_percent=False)


def _trade(scores: SearchScores, point: Point) -> Chart:
    curve = det_curve(scores)
    fpir, upper = point.rates.fpir or 0.0, point.rates.fpir_upper or 0.0
    fnir = 1 - (point.rates.tpir or 0.0)
    lines = [
        Line("", np.repeat(curve.fpir, 2)[1:], np.repeat(curve.fnir, 2)[:-1], "a"),
        Line(f"chosen: FPIR {fpir:.3f}, FNIR {fnir:.3f}", np.array([fpir, upper]), np.array([fnir, fnir]), "c"),
        Line.at("", fpir, fnir, "c"),
        Line.at(f"promised FPIR {point.target_fpir:g}", point.target_fpir, 1.0, "d dashed"),
    ]
    return Chart("Misses against false alarms", lines, "FPIR", "FNIR", (0.0, min(1.0, max(0.3, 6 * point.target_fpir))))


def _histograms(scores: SearchScores, threshold: float, last: float) -> Chart:
    edges = np.linspace(0, last, 60)
    own, other = scores.own[scores.mated], scores.impostor[np.isfinite(scores.impostor)]
    lines = [
        histogram("to its own item", own, np.ones(len(own)), edges, "a"),
        histogram("to the nearest other item", other, np.ones(len(other)), edges, "b"),
    ]
    top = 1.1 * max(float(line.y.max()) for line in lines)
    lines.append(Line.at("threshold", threshold, top, "c"))
    return Chart("How far items are", lines, "distance", "share of searches", (0.0, last), (0.0, top))


def _worst(data: ReportData) -> Sequence[Mapping[str, Any]]:
    """Return the items with the lowest utility at the threshold."""
    curves = search_curves(data.scores, [data.point.threshold])
    order = np.argsort(curves.utility[:, 0], kind="stable")[:WORST].tolist()
    return [
        {
            "name": (name := str(curves.classes[place])),
            "found": float(curves.sensitivity[place, 0]),
            "mistaken": float(1 - curves.specificity[place, 0]),
            "photos": data.photos(name),
        }
        for place in order
    ]
