"""Rates of open-set identification (`retrieval.metrics.identification`)."""

from .metrics.identification import (
    DetCurve,
    IdentificationRates,
    SearchScores,
    det_curve,
    identification_rates,
    search_scores,
    threshold_at_fpir,
)

__all__ = [
    "DetCurve",
    "IdentificationRates",
    "SearchScores",
    "det_curve",
    "identification_rates",
    "search_scores",
    "threshold_at_fpir",
]
