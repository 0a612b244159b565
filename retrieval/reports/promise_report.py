"""The report of a promise: its table, the trade between the two error rates, and what costs matches."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.measuring.draws import AllDraws
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.labelled import query_shift
from retrieval.measuring.rates import Mated
from retrieval.promise.contents import Contents
from retrieval.promise.levels import DrawnVectors
from retrieval.promise.table import families_lines, table_rows

from . import render
from .charts import Chart, Line

POINTS = 200  # of a curve
LEAST, MOST = 1e-3, 0.3  # FPIR of the curves
LISTED = 10  # families and pairs


def render_promise_report(promise: Contents, remarks: Sequence[str] = ()) -> str:
    """Return the report of a promise that was just measured, as HTML; `remarks` are further sentences."""
    drawn = promise.drawn
    assert drawn is not None  # noqa: S101 (a measurement has draws)
    head, rows = table_rows(promise)
    return render(
        "promise.html",
        promise=promise,
        head=head,
        rows=rows,
        chart=_trade(promise, drawn),
        families=families_lines(promise, LISTED),
        remarks=remarks,
    )


def _trade(promise: Contents, drawn: DrawnVectors) -> tuple[Chart, str]:
    """Return the chart of TPIR against FPIR, and its caption."""
    shares = np.linspace(LEAST, MOST, POINTS)
    lines = []
    for name, draws, kind in (("decide()", drawn.by_distance, "a"), (promise.metric.noun, drawn.by_score, "b")):
        found = _found(draws, shares, promise.items)
        if found is not None:
            lines.append(Line(name, shares, found, kind))
    lines.append(Line.at("target", promise.target_fpir, 1.0, "c dashed"))
    caption = (
        "Share of known items that are found first, by the share of strangers that are called somebody. The higher "
        "the curve, the better the vectors tell your items from each other."
    )
    chart = Chart("What a threshold costs", lines, "strangers called somebody (FPIR)", "known found", (0.0, MOST))
    return chart, caption


def _found(draws: AllDraws, shares: np.ndarray, items: int) -> np.ndarray | None:
    """Return the TPIR at the thresholds that accept some shares of the draws, None without mated draws."""
    mated = Mated.of(draws.sources, gallery_items=items)
    if mated is None:
        return None
    drawn = DrawnDistances.of(draws.sources, shift=query_shift(draws.sources))
    right = np.sort(mated.scores.correct[np.isfinite(mated.scores.correct)])
    thresholds = [drawn.at_share(share) for share in shares.tolist()]
    return np.asarray(np.searchsorted(right, thresholds, side="right") / len(mated.scores.correct))
