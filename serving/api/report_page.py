"""The report over HTTP: the gallery's, with the drift of live photos and a link to the bundle's report."""

from __future__ import annotations

from retrieval.bundle.bundle import REPORT
from retrieval.reports.gallery_report import GalleryReport, render_gallery_report
from serving.ops.drift_monitor import Drift, drift_warning
from serving.service import Service


def report_page(service: Service) -> str:
    """Return the report as HTML."""
    retriever, drifts = service.retriever, service.drifts()
    report = GalleryReport.of(retriever.bundle, retriever.gallery, retriever.point)
    told = "No drift was found"
    if drift_warning(drifts):
        told = "Recent photos differ from those that the rates were measured with"
    live = {
        "told": told,
        "searches": f"{max((drift.searches for drift in drifts), default=0):,}",
        "rows": [
            (drift.statistic.replace("_", " "), _number(drift.median), _number(drift.reference_median), _verdict(drift))
            for drift in drifts
        ],
        "has_bundle_report": REPORT in retriever.bundle.manifest["files"],
    }
    return render_gallery_report(report, live=live)


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.3g}"


def _verdict(drift: Drift) -> str:
    if drift.effect is None:
        return "too few searches" if drift.reference else "nothing to compare with"
    return f"{drift.effect:.2f}, {'differs' if drift.alarm else 'as expected'}"
