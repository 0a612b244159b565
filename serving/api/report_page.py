"""The report over HTTP: the gallery's, with the drift of live photos and a link to the bundle's report."""

from __future__ import annotations

import html
from collections.abc import Sequence

from retrieval.bundle.bundle import REPORT
from retrieval.html import table
from retrieval.threshold.gallery_report.data import GalleryReport
from retrieval.threshold.gallery_report.page import render_gallery_report
from serving.ops.drift_monitor import Drift, drift_warning
from serving.service import Service


def report_page(service: Service) -> str:
    """Return the report as HTML."""
    retriever, drifts = service.retriever, service.drifts()
    report = GalleryReport.of(retriever.bundle, retriever.gallery, retriever.point)
    more = drift_html(drifts, is_warning=bool(drift_warning(drifts)))
    if REPORT in retriever.bundle.manifest["files"]:
        more += "<p><a href='report/bundle'>The report of the model's own threshold</a></p>"
    return render_gallery_report(report, more=more)


def drift_html(drifts: Sequence[Drift], *, is_warning: bool) -> str:
    """Return the drift of live photos as a sentence and a table."""

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.3g}"

    def verdict(drift: Drift) -> str:
        if drift.effect is None:
            return "too few searches" if drift.reference else "nothing to compare with"
        return f"{drift.effect:.2f}, {'differs' if drift.alarm else 'as expected'}"

    rows = [
        (
            html.escape(drift.statistic.replace("_", " ")),
            number(drift.median),
            number(drift.reference_median),
            verdict(drift),
        )
        for drift in drifts
    ]
    searches = max((drift.searches for drift in drifts), default=0)
    told = "Recent photos differ from those that the rates were measured with" if is_warning else "No drift was found"
    return (
        f"<h2>Drift of live photos</h2><p>{told}. Searches compared: {searches:,}.</p><div class='scroll' tabindex='0'>"
        + table(("", "median now", "median before", "difference"), rows)
        + "</div>"
    )
