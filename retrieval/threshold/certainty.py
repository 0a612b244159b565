"""Certainty: how far to believe an embedding, by its norm before it is scaled to length one.

With the von Mises-Fisher losses the norm is a concentration: ambiguous photos have a low one. Whether it tells anything
for a model is measured (`auroc`, `risk_coverage`), and searches below a cut may be rejected.
Shapes: n searches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir

QUANTILES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # of the certainties of searches, that are tried as a cut
NEVER = 1e9  # the distance to the own item of a search that was rejected: mated still, and never found

Floats = NDArray[np.float64]


def wrong_answers(scores: SearchScores) -> NDArray[np.bool_]:
    """Return which mated searches have another item nearest (n,)."""
    return scores.mated & (scores.impostor <= scores.own)


def auroc(certainties: ArrayLike, wrong: ArrayLike) -> float | None:
    """Return the chance that a wrong search has a lower certainty than a right one, None where one kind is missing."""
    values, bad = np.asarray(certainties, dtype=np.float64), np.asarray(wrong, dtype=bool)
    below = np.sort(values[bad])
    good = values[~bad]
    if not len(below) or not len(good):
        return None
    less, tied = np.searchsorted(below, good, side="left"), np.searchsorted(below, good, side="right")
    return float((less + tied).mean() / 2 / len(below))


@dataclass(frozen=True)
class RiskCoverage:
    """Share of wrong answers among the most certain searches, for each share of them that is answered (n,)."""

    coverage: Floats
    risk: Floats

    @property
    def area(self) -> float:
        """The mean risk over all coverages."""
        return float(self.risk.mean())


def risk_coverage(certainties: ArrayLike, wrong: ArrayLike) -> RiskCoverage:
    """Return the risk-coverage curve, the most certain first."""
    values, bad = np.asarray(certainties, dtype=np.float64), np.asarray(wrong, dtype=bool)
    if values.shape != bad.shape or not len(values):
        raise InvalidParameter("certainties", "have one value a search", (values.shape, bad.shape))
    order = np.argsort(-values, kind="stable")
    counts = np.arange(1, len(values) + 1)
    return RiskCoverage(counts / len(values), bad[order].cumsum() / counts)


def without_uncertain(scores: SearchScores, certainties: ArrayLike, cut: float) -> SearchScores:
    """Return the scores where searches of a certainty below the cut return nothing."""
    low = np.asarray(certainties, dtype=np.float64) < cut
    if low.shape != scores.own.shape:
        raise InvalidParameter("certainties", "have one value a search", low.shape)
    near = None if scores.near is None else np.where(low[:, None], np.inf, scores.near)
    own = np.where(low & scores.mated, NEVER, scores.own)
    return replace(scores, own=own, impostor=np.where(low, np.inf, scores.impostor), near=near)


def choose_cut(scores: SearchScores, certainties: ArrayLike, target_fpir: float) -> tuple[float, dict[float, float]]:
    """Return the cut of the lowest FNIR at the target FPIR (0: none helps), and the FNIR of each that was tried."""
    values = np.asarray(certainties, dtype=np.float64)
    cuts = [0.0 if not share else float(np.quantile(values, share)) for share in QUANTILES]
    tried = {}
    for cut in cuts:
        kept = without_uncertain(scores, values, cut)
        tried[cut] = identification_rates(kept, threshold_at_fpir(kept, target_fpir)).fnir
    return min(tried, key=lambda cut: (tried[cut], cut)), tried
