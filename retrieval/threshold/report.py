"""The calibration report `report.html`: plots of the threshold's error rates and the strength of its evidence.

The report is a single HTML file without scripts or external resources.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from retrieval.bundle.operating_point import CERTIFIED, OperatingPoint
from retrieval.html import document, drawn, figure_grid, legend_above, picture, table
from retrieval.metrics.consistency import Opis, UtilityCurves, search_curves, search_opis
from retrieval.metrics.identification import SearchScores, det_curve

if TYPE_CHECKING:
    from matplotlib.axes import Axes

WORST = 6  # number of items shown with photos
MANY = 60  # number of curves above which they are rasterized
CONFIDENT = "95 %"
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


@dataclass(frozen=True)
class ReportData:
    """The data behind a report."""

    point: OperatingPoint
    scores: SearchScores
    distances_tried: Sequence[Mapping[str, Any]] = ()
    pair_curves: UtilityCurves | None = None  # over pairs of calibration photos
    pair_opis: Mapping[tuple[float, float], Opis] = field(default_factory=dict)  # by FAR range, the default range first
    photos: Callable[[str], Sequence[bytes]] = lambda _: ()  # returns a few JPEGs of an item
    beside_fp32: Sequence[Mapping[str, Any]] = ()  # metrics of fp32 on the CPU and of the exported model
    verification: str = ""  # what geometric verification gains and costs, in sentences


def render_report(data: ReportData) -> str:
    """Render the report as HTML; raise MissingDependency if matplotlib is not installed."""
    figures = [
        (
            "Each item's utility against the threshold",
            drawn(lambda axes: _utility(axes, search_curves(data.scores, _range(data.scores)), data.point.threshold)),
            "The harmonic mean of 1 − FPIR and TPIR, one line per item; the closer the lines, the more one threshold "
            "means the same for all. OPIS of searches: "
            f"{_opis_words(search_opis(data.scores, data.point.target_fpir))}.",
        ),
        (
            "Misses against false alarms",
            drawn(lambda axes: _trade(axes, data.scores, data.point)),
            "FNIR (searches whose own item is not first) for each FPIR (searches of unknown items that return "
            "something). The dot is the chosen threshold, the bar reaches to the upper 95 % bound of its FPIR.",
        ),
        (
            "How far items are",
            drawn(lambda axes: _histograms(axes, data.scores, data.point.threshold)),
            "Distances of photos to their own item, and to the nearest other item.",
        ),
    ]
    if data.pair_curves is not None and data.pair_opis:
        curves, pair_opis = data.pair_curves, next(iter(data.pair_opis.values()))
        figures.append(
            (
                "The same of pairs, by the plain distance",
                drawn(lambda axes: _utility(axes, curves, None, (pair_opis.d_min, pair_opis.d_max))),
                "Specificity and sensitivity over pairs of photos, as papers measure it; the band is the calibration "
                f"range, FAR 1 % to 10 %. OPIS of pairs: {_opis_words(pair_opis)}.",
            )
        )
        figures.append(
            (
                "How much that depends on the range",
                drawn(lambda axes: _ranges(axes, data.pair_opis)),
                "OPIS of pairs for other calibration ranges: a comparison of models that turns round with the range "
                "says little.",
            )
        )
    title = "How far this threshold can be believed"
    body = (
        f"<h1>{title}</h1>{_status(data.point)}{figure_grid(figures)}{_worst(data)}"
        f"{_tried(data.distances_tried)}{_verification(data.verification)}{_beside(data.beside_fp32)}{_evidence(data.point)}"
    )
    return document(title, style=STYLE, body=body)


def _status(point: OperatingPoint) -> str:
    evidence, target = point.evidence, f"{point.target_fpir:.1%}"
    share = f"{evidence['fpir']:.1%}"
    if point.status == CERTIFIED:
        told = (
            f"<b>Certified.</b> At most {target} of photos of unknown items return something, with {CONFIDENT} "
            f"confidence, in a gallery of {evidence['gallery_items']} items."
        )
    else:
        more = max(0, int(evidence["items_needed"]) - int(evidence["clusters"]))
        told = (
            f"<b>Estimated.</b> {share} of photos of unknown items returned something; the promise of {target} is not "
            f"certified: the upper bound is {evidence['fpir_upper']:.1%}."
            + (f" At least {more} more independent items are needed, without a single error." if more else "")
        )
    return (
        f'<div class="status {html.escape(point.status)}"><p>{told}</p><p>A match is a distance of at most '
        f"<b>{point.threshold:.4f}</b>. Of photos whose item is in the gallery, {evidence['tpir']:.1%} find it first, "
        f"and {evidence['misidentification']:.1%} are answered with another item.</p>"
        + "".join(f"<p>{html.escape(caveat)}.</p>" for caveat in point.caveats())
        + "</div>"
    )


def _evidence(point: OperatingPoint) -> str:
    rows = [(html.escape(name.replace("_", " ")), _number(value)) for name, value in point.evidence.items()]
    return f"<h2>The evidence</h2>{table((), rows)}"


def _tried(tried: Sequence[Mapping[str, Any]]) -> str:
    if not tried:
        return ""
    rows = [(html.escape(_form(entry)), f"{entry['FNIR']:.3f}", f"{entry['search_opis']:.2e}") for entry in tried]
    marks = ["chosen", *[""] * (len(tried) - 1)]
    return (
        "<h2>What was chosen, and what was not</h2><p>Distances were compared on validation items, which neither "
        "the loss nor the threshold saw: FNIR at the target FPIR, then OPIS among those within a standard error, and "
        "the plain one where nothing is gained. The first is used.</p>"
        + table(("distance", "FNIR", "OPIS of searches"), rows, marks=marks)
    )


def _verification(text: str) -> str:
    return f"<h2>Verification of matches</h2><p>{html.escape(text)}</p>" if text else ""


def variant_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the metrics of a variant as text: name, images per second, OPIS of pairs and of searches, FPIR, TPIR."""
    return (
        str(row["form"]),
        f"{row['images_per_second']:.0f}",
        f"{row['opis']:.2e}",
        f"{row['search_opis']:.2e}",
        f"{row['fpir']:.3f}",
        f"{row['tpir']:.3f}",
    )


def _beside(rows: Sequence[Mapping[str, Any]]) -> str:
    if not rows:
        return ""
    cells = [tuple(map(html.escape, variant_cells(row))) for row in rows]
    columns = ("variant", "images/s", "OPIS of pairs", "OPIS of searches", "FPIR", "TPIR")
    return (
        "<h2>This form of the model beside fp32</h2><p>Both on the calibration photos, by the same kind of distance, "
        "each with its own threshold: the largest that keeps the target FPIR there. The last is served.</p>"
        + table(columns, cells, marks=["", *["chosen"] * (len(rows) - 1)])
    )


def _form(entry: Mapping[str, Any]) -> str:
    words = str(entry["form"]).replace("_", " ") + (f", k = {entry['k']}" if "k" in entry else "")
    return words + (", whitened" if entry.get("whitened") else "")


def _worst(data: ReportData) -> str:
    curves = search_curves(data.scores, [data.point.threshold])
    order = np.argsort(curves.utility[:, 0], kind="stable")[:WORST]
    rows = []
    for place in order:
        item = str(curves.classes[place])
        pictures = "".join(picture(jpeg) for jpeg in data.photos(item))
        rows.append(
            f"<h3>{html.escape(item)}</h3><p>{curves.sensitivity[place, 0]:.0%} of its photos find it first; without "
            f"it in the gallery {1 - curves.specificity[place, 0]:.0%} of them return another item.</p>"
            f'<div class="photos">{pictures}</div>'
        )
    return f"<h2>The items it serves worst</h2>{''.join(rows)}"


def _number(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else html.escape(str(value))


def _opis_words(value: Opis) -> str:
    return f"{value.value:.2e}, epsilon-OPIS {value.epsilon_value:.3f}"


def _range(scores: SearchScores) -> np.ndarray:
    finite = np.concatenate([scores.own[np.isfinite(scores.own)], scores.impostor[np.isfinite(scores.impostor)]])
    return np.linspace(0, float(finite.max(initial=1)), 150)


def _utility(
    axes: Axes, curves: UtilityCurves, threshold: float | None, band: tuple[float, float] | None = None
) -> None:
    many = len(curves.classes) > MANY
    lines = axes.plot(curves.distances, curves.utility.T, color=BLUE, alpha=0.15 if many else 0.35, linewidth=0.8)
    for line in lines:
        line.set_rasterized(many)
    axes.plot(curves.distances, curves.utility.mean(axis=0), color="black", linewidth=1.8, label="mean of the items")
    if threshold is not None:
        axes.axvline(threshold, color=RED, label="threshold")
    if band is not None:
        axes.axvspan(*band, color=ORANGE, alpha=0.2, label="calibration range")
    axes.set(xlabel="distance", ylabel="utility", ylim=(0, 1.02))
    legend_above(axes)


def _trade(axes: Axes, scores: SearchScores, point: OperatingPoint) -> None:
    curve = det_curve(scores)
    axes.step(curve.fpir, curve.fnir, where="post", color=BLUE)
    fpir, fnir = float(point.evidence["fpir"]), 1 - float(point.evidence["tpir"])
    axes.plot([fpir, float(point.evidence["fpir_upper"])], [fnir, fnir], color=RED)
    axes.plot([fpir], [fnir], "o", color=RED, label=f"chosen: FPIR {fpir:.3f}, FNIR {fnir:.3f}")
    axes.axvline(point.target_fpir, color=GREY, linestyle="--", label=f"promised FPIR {point.target_fpir:g}")
    axes.set(xlabel="FPIR", ylabel="FNIR", xlim=(-0.01, min(1, max(0.3, 6 * point.target_fpir))), ylim=(0, 1.02))
    legend_above(axes)


def _histograms(axes: Axes, scores: SearchScores, threshold: float) -> None:
    points = _range(scores)
    bins = np.linspace(0, points[-1], 60)
    for values, color, name in (
        (scores.own[scores.mated], BLUE, "to its own item"),
        (scores.impostor[np.isfinite(scores.impostor)], ORANGE, "to the nearest other item"),
    ):
        axes.hist(values, bins=list(bins), color=color, alpha=0.55, label=name)
    axes.axvline(threshold, color=RED, label="threshold")
    axes.set(xlabel="distance", ylabel="searches")
    legend_above(axes)


def _ranges(axes: Axes, found: Mapping[tuple[float, float], Opis]) -> None:
    ordered = sorted(found.items())
    names = [f"{low:g} to {high:g}" for (low, high), _ in ordered]
    axes.plot(names, [value.value for _, value in ordered], "o-", color=BLUE, label="OPIS")
    axes.plot(names, [value.epsilon_value for _, value in ordered], "s--", color=ORANGE, label="epsilon-OPIS")
    axes.set(xlabel="FAR range", ylim=(0, None))
    legend_above(axes)
