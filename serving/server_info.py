"""The state of a service as plain JSON values, for `/v1/info`."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from retrieval.threshold.error_rates import unmeasured_warning
from retrieval.threshold.gallery_points import threshold_status
from serving.ops.drift_monitor import drift_warning

from .service import Service


def server_info(service: Service) -> dict[str, Any]:
    """Return the bundle, the gallery, the threshold with its error rate, and the drift of live photos."""
    retriever = service.retriever
    bundle, gallery = retriever.bundle, retriever.gallery
    point, rates, drifts = retriever.point, retriever.rates(), service.drifts()
    unmeasured = unmeasured_warning() if retriever.unmeasured else ""
    drifted = drift_warning(drifts)
    warnings = [retriever.outgrown() if rates is None else rates.warning(point), unmeasured, drifted]
    return {
        "bundle_id": bundle.bundle_id,
        "embedding_id": bundle.embedding_id,
        "threshold": point.threshold_or_none,
        "status": point.status,
        "target_fpir": point.target_fpir,
        "distance": bundle.manifest["distance"]["form"],
        "min_certainty": point.min_certainty,
        "evidence": dict(point.evidence),
        "threshold_status": threshold_status(point, bundle),
        "in_gallery": None if rates is None else {**rates.to_dict(point), "warning": rates.warning(point)},
        "gallery": {
            "version": gallery.version,
            "photos": len(gallery),
            "items": gallery.items,
            "index": gallery.index(),
            "columns": gallery.columns(),
        },
        "warnings": [f"{warning}." for warning in warnings if warning],
        "drift": {"warning": drifted, "statistics": [asdict(drift) for drift in drifts]},
    }
