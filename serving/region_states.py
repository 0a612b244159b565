"""State of the searches by regions, for `/v1/info`."""

from __future__ import annotations

from typing import Any

from retrieval.bundle.operating_point import UNANCHORED
from retrieval.regions.calibration_command import calibration_command
from retrieval.regions.policy import AUTO, DETECTOR
from retrieval.retriever import Retriever


def region_states(retriever: Retriever) -> list[dict[str, Any]]:
    """Return the threshold of each available policy, and its FPIR in the newest version.

    A policy without a threshold of its own is unanchored: searches use the threshold of whole photos.
    """
    if retriever.bundle.verifier is not None:  # such bundles search given boxes only
        return []
    names = [AUTO, *([DETECTOR] if retriever.detector is not None else [])]
    return [_state(retriever, name) for name in names]


def _state(retriever: Retriever, name: str) -> dict[str, Any]:
    region = retriever.region_points.get(name)
    if region is None:
        line = calibration_command("BUNDLE", "GALLERY", "MODEL.onnx" if name == DETECTOR else None)
        return {"regions": name, "threshold_status": UNANCHORED, "set_with": line}
    rates, point = retriever.region_rates(name), region.point
    fpir = None if rates is None else rates.fpir(point.threshold)
    upper = None if rates is None else rates.fpir_upper(point.threshold)
    return {
        "regions": name,
        "threshold_status": point.status,
        "threshold": point.threshold,
        "target_fpir": point.target_fpir,
        "fpir": fpir,
        "fpir_upper": upper,
        "policy": dict(region.policy),
    }
