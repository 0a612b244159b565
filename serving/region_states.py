"""State of the searches by regions, for `/v1/info`."""

from __future__ import annotations

from typing import Any

from retrieval.bundle.operating_point import UNANCHORED
from retrieval.regions.policy import AUTO, DETECTOR
from retrieval.retriever import Retriever


def region_states(retriever: Retriever) -> list[dict[str, Any]]:
    """Return the available policies: searches use the threshold of whole photos, which is unanchored for them."""
    if retriever.bundle.verifier is not None:  # such bundles search given boxes only
        return []
    names = [AUTO, *([DETECTOR] if retriever.detector is not None else [])]
    return [{"regions": name, "threshold_status": UNANCHORED} for name in names]
