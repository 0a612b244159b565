"""Charts and tables of the report: distances, error rates against the threshold, and the sources of draws."""

from __future__ import annotations

import html

import numpy as np

from index.search.leave_one_out import OWN
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.html import table
from retrieval.svg import Line, chart, histogram, percent
from retrieval.threshold.drawn_distances import LABELLED, PROBE, REFERENCE, UNKNOWN, DrawnDistances, GalleryRates

from .data import GalleryReport, found_shares, mated_distances

POINTS = 161  # thresholds of the curves
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)  # FPIRs in the table of other thresholds
SOURCES = {
    OWN: "photos of this catalogue, with their own item left out",
    PROBE: "calibration photos of the model, of other items",
    LABELLED: "labelled photos of users, with their own item left out",
    UNKNOWN: "photos of users that show no item of this catalogue",
}


def _range(report: GalleryReport, rates: GalleryRates) -> tuple[float, float]:
    last = max(float(source.distances[-1]) for source in rates.sources.values() if len(source.distances))
    return 0.0, max(last, 1.2 * report.point.threshold)


def distances_figure(report: GalleryReport, rates: GalleryRates) -> tuple[str, str, str]:
    """Return a figure with the distances of mated searches and of draws."""
    low, high = _range(report, rates)
    edges = np.linspace(low, high, 41)
    lines = []
    own = mated_distances(report)
    if own is not None:
        lines.append(histogram("to their own item", *own, edges, "a"))
    name, source = max(rates.sources.items(), key=lambda entry: entry[1].fpir(report.point.threshold))
    lines.append(histogram("to the nearest other item", source.distances, source.weights, edges, "b"))
    top = 1.1 * max(float(line.y.max()) for line in lines)
    lines.append(_threshold_line(report.point, top))
    picture = chart(
        lines, title="Distances", x_label="distance", y_label="share of photos", x_range=(low, high),
        y_range=(0, top), y_text=percent,
    )  # fmt: skip
    kinds = "Searches for unknown items" if own is None else "Searches for catalogue items, and for unknown items"
    caption = f"{kinds} ({SOURCES[name]}). Matches are left of the threshold."
    return "Distances", picture, caption


def curves_figure(report: GalleryReport, rates: GalleryRates) -> tuple[str, str, str]:
    """Return a figure with FPIR, its bound and TPIR against the threshold."""
    x_range = _range(report, rates)
    grid = np.linspace(*x_range, POINTS)
    lines = [Line("false matches (FPIR)", grid, np.array([rates.fpir(t) for t in grid]), "b")]
    upper = np.array([rates.fpir_upper(t) for t in grid])
    lines.append(Line("FPIR, upper 95 % bound", grid, upper, "b", dashed=True))
    found = found_shares(report, grid)
    if found is not None:
        lines.append(Line("items found (TPIR)", grid, found, "a"))
    target = np.array([report.point.target_fpir] * 2)
    lines += [Line("target", np.array(x_range), target, "d", dashed=True), _threshold_line(report.point, 1.0)]
    picture = chart(
        lines, title="Error rates against the threshold", x_label="threshold", y_label="share of searches",
        x_range=x_range, y_range=(0, 1), y_text=percent,
    )  # fmt: skip
    caption = "Searches for unknown items that return a match, and searches for catalogue items that find them first."
    return "Error rates at other thresholds", picture, caption


def _threshold_line(point: OperatingPoint, top: float) -> Line:
    return Line("threshold", np.array([point.threshold] * 2), np.array([0, top]), "c")


def thresholds_table(report: GalleryReport, rates: GalleryRates) -> str:
    """Return a table of thresholds with other FPIRs."""
    served = report.point.threshold
    chosen = [(served, "chosen")]
    chosen += [(min(source.at_share(share) for source in rates.sources.values()), "") for share in SHARES]
    chosen = sorted(dict(reversed(chosen)).items())
    found = found_shares(report, np.array([threshold for threshold, _ in chosen]))
    rows = [
        (
            f"{threshold:.3f}{' (in use)' if mark else ''}",
            f"{rates.fpir(threshold):.1%}",
            f"{rates.fpir_upper(threshold):.1%}",
            "not measured" if found is None else f"{found[n]:.0%}",
        )
        for n, (threshold, mark) in enumerate(chosen)
    ]
    columns = ("threshold", "unknown items that return a match", "upper 95 % bound", "items found")
    return scrolling(table(columns, rows, marks=[mark for _, mark in chosen]))


def sources_table(report: GalleryReport, rates: GalleryRates) -> str:
    """Return a table of the sources of draws side by side."""
    evidence, draws = report.point.evidence, report.draws or {}
    rows = []
    for name, source in draws.items():
        if name == REFERENCE:
            continue
        drawn = rates.sources.get(name) or DrawnDistances.of_source(name, source, shift=report.shift, fitted=())
        proposed = evidence.get("sources", {}).get(name, {}).get("threshold")
        replaced = name == OWN and LABELLED in rates.sources  # by users' photos
        rows.append(
            (
                html.escape(SOURCES.get(name, name)) + (" (in use)" if name == evidence.get("source") else ""),
                f"{drawn.items:,}",
                f"{len(drawn.distances):,}",
                f"{drawn.fpir(report.point.threshold):.1%}" if drawn.items else "–",
                f"{drawn.fpir_upper(report.point.threshold):.1%}" if drawn.items else "–",
                f"{proposed:.3f}" if proposed is not None else "replaced" if replaced else "too few items",
            )
        )
    columns = ("searches with", "items", "photos", "return a match", "upper 95 % bound", "proposed threshold")
    return (
        "<h2>How it was measured</h2><p>The catalogue was searched for items that are not in it, or that were left out "
        "for the search. The strictest of the proposed thresholds is used.</p>"
        + scrolling(table(columns, rows))
        + _expected(report, rates)
    )


def scrolling(content: str) -> str:
    """Return content that scrolls sideways where it is too wide."""
    return f"<div class='scroll' tabindex='0'>{content}</div>"


def _expected(report: GalleryReport, rates: GalleryRates) -> str:
    """Return a sentence on the rate to expect of new items, if it is higher than the measured one."""
    measured = rates.fpir(report.point.threshold)
    expected = float(report.point.evidence.get("fpir_expected", 0))
    if expected <= measured:
        return ""
    return (
        f"<p>{measured:.1%} of these searches return a match. The threshold was chosen on the same items, so expect "
        f"{expected:.1%} for new ones.</p>"
    )
