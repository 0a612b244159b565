"""Calibration of a threshold for 1:1 verification, which decides whether two photos show the same item.

The rule and the range follow threshold consistency (arXiv 2307.04047): among the distances between two false accept
rates, choose the greatest mean utility over items; see `calibrate.best_threshold`.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from retrieval.bundle.operating_point import ESTIMATED, PAIRS, OperatingPoint
from retrieval.errors import CalibrationError
from retrieval.metrics.consistency import FAR_RANGE, opis, utility_curves
from retrieval.metrics.identification import SearchScores, identification_rates

from .bounds import items_needed
from .calibrate import best_threshold

GRID = 1000


def calibrate_pairs(
    vectors: np.ndarray,
    labels: Sequence[str],
    scores: SearchScores,
    *,
    far_range: tuple[float, float] = FAR_RANGE,
    allow_estimate: bool = False,
) -> OperatingPoint:
    """Choose a threshold for pairs within a FAR range. Its status is `estimated`, because pairs share photos.

    Parameters
    ----------
    vectors, labels:
        Embeddings (n, d) of photos that were used for nothing else, and their item ids (n,).
    scores:
        Searches with the same photos. The evidence includes their error rates at the threshold.
    far_range:
        Lowest and highest share of pairs of different items that are accepted as the same.
    allow_estimate:
        Must be True, because a threshold for pairs cannot be certified.
    """
    if not allow_estimate:
        raise CalibrationError(
            "a threshold of pairs is never certified: a photo is in many pairs, which do not err independently",
            remedy="Accept the word `estimated` with --allow-estimate",
        )
    found = opis(vectors, labels, far_range=far_range)
    curves = utility_curves(vectors, labels, np.linspace(found.d_min, found.d_max, GRID))
    threshold = best_threshold(curves)
    if threshold is None:
        raise CalibrationError(
            f"no threshold with a FAR between {far_range[0]:g} and {far_range[1]:g} accepts a pair of the same item",
            remedy="Train a better model, or allow more with --far-range",
        )
    place = int(np.argmin(np.abs(curves.distances - threshold)))
    rates = identification_rates(scores, threshold)
    target = min(max(rates.fpir, 1e-6), 1 - 1e-6)
    evidence = {
        "protocol": PAIRS,
        "far_range": list(far_range),
        "far_mean_over_items": float(1 - curves.specificity[:, place].mean()),
        "frr_mean_over_items": float(1 - curves.sensitivity[:, place].mean()),
        "opis": found.value,
        "fpir": rates.fpir,
        "fpir_upper": 1.0,  # no target for searches
        "tpir": rates.tpir,
        "misidentification": rates.misidentification,
        "items": len(curves.classes),
        "clusters": len(curves.classes),
        "items_needed": items_needed(target),
        "gallery_items": scores.gallery_items,
        "gallery_size": scores.gallery_items,
    }
    return OperatingPoint(threshold, ESTIMATED, target, evidence)
