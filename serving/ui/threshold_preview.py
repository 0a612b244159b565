"""Error rates of other thresholds on the bundle's calibration photos, for display only."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.bundle import Bundle
from retrieval.metrics.identification import identification_rates
from retrieval.threshold.certainty import without_uncertain

POINTS = 201


@dataclass(frozen=True)
class ThresholdCurves:
    """FPIR and FNIR over a grid of thresholds from 0."""

    thresholds: NDArray[np.float64]  # (POINTS,) ascending
    fpir: NDArray[np.float64]
    fnir: NDArray[np.float64]
    items: int  # in the calibration gallery

    @classmethod
    @lru_cache(maxsize=2)  # the current and the previous bundle
    def of(cls, bundle: Bundle) -> ThresholdCurves | None:
        """Return the curves of a bundle, or None if it has no calibration photos."""
        searches = bundle.calibration
        if searches is None:
            return None
        scores = without_uncertain(searches.scores, searches.certainties, bundle.operating_point.min_certainty)
        near = np.minimum(scores.own, scores.impostor)
        most = max(1.5 * bundle.threshold, float(np.max(near[np.isfinite(near)], initial=0)))
        thresholds = np.linspace(0, most, POINTS)
        rates = [identification_rates(scores, float(threshold)) for threshold in thresholds]
        fpir, fnir = (np.array([getattr(rate, name) for rate in rates]) for name in ("fpir", "fnir"))
        return cls(thresholds, fpir, fnir, scores.gallery_items)

    def at(self, threshold: float) -> tuple[float, float]:
        """Return FPIR and FNIR at the largest grid threshold that does not exceed `threshold`."""
        place = max(0, int(np.searchsorted(self.thresholds, threshold + 1e-12, side="right")) - 1)
        return float(self.fpir[place]), float(self.fnir[place])
