"""Certainty of embeddings, given by the norm before scaling to unit length.

With the von Mises-Fisher losses the norm is a concentration, which is low for ambiguous photos. `auroc` and
`risk_coverage` measure how well it predicts errors of a model. Searches below a cut can be rejected.

Shapes: n searches.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir

QUANTILES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # of the certainties, tried as cuts
NEVER = 1e9  # distance to the own item of a rejected search: still mated, never accepted

Floats = NDArray[np.float64]


def wrong_answers(scores: SearchScores) -> NDArray[np.bool_]:
    """Return which mated searches have another item nearest (n,)."""
    return scores.mated & (scores.impostor <= scores.own)


def auroc(certainties: ArrayLike, wrong: ArrayLike) -> float | None:
    """Return the probability that a wrong search has a lower certainty than a right one, None if either is missing."""
    values, bad = np.asarray(certainties, dtype=np.float64), np.asarray(wrong, dtype=bool)
    below = np.sort(values[bad])
    good = values[~bad]
    if not len(below) or not len(good):
        return None
    less, tied = np.searchsorted(below, good, side="left"), np.searchsorted(below, good, side="right")
    return float((less + tied).mean() / 2 / len(below))


@dataclass(frozen=True)
class RiskCoverage:
    """Share of wrong answers (risk) for each share of searches answered, most certain first (coverage), each (n,)."""

    coverage: Floats
    risk: Floats

    @property
    def area(self) -> float:
        """The area under the curve: mean risk over all coverages."""
        return float(self.risk.mean())


def risk_coverage(certainties: ArrayLike, wrong: ArrayLike) -> RiskCoverage:
    """Compute the risk-coverage curve, most certain searches first."""
    values, bad = np.asarray(certainties, dtype=np.float64), np.asarray(wrong, dtype=bool)
    if values.shape != bad.shape or not len(values):
        raise InvalidParameter("certainties", "have one value a search", (values.shape, bad.shape))
    order = np.argsort(-values, kind="stable")
    counts = np.arange(1, len(values) + 1)
    return RiskCoverage(counts / len(values), bad[order].cumsum() / counts)


def without_uncertain(scores: SearchScores, certainties: ArrayLike, cut: float) -> SearchScores:
    """Return scores in which searches with a certainty below the cut return nothing."""
    low = np.asarray(certainties, dtype=np.float64) < cut
    if low.shape != scores.own.shape:
        raise InvalidParameter("certainties", "have one value a search", low.shape)
    near = None if scores.near is None else np.where(low[:, None], np.inf, scores.near)
    own = np.where(low & scores.mated, NEVER, scores.own)
    return replace(scores, own=own, impostor=np.where(low, np.inf, scores.impostor), near=near)


def choose_cut(scores: SearchScores, certainties: ArrayLike, target_fpir: float) -> tuple[float, dict[float, float]]:
    """Return the cut with the lowest FNIR at the target FPIR (0 if none helps), and the FNIR of every cut tried."""
    values = np.asarray(certainties, dtype=np.float64)
    cuts = [0.0 if not share else float(np.quantile(values, share)) for share in QUANTILES]
    tried = {}
    for cut in cuts:
        kept = without_uncertain(scores, values, cut)
        tried[cut] = identification_rates(kept, threshold_at_fpir(kept, target_fpir)).fnir
    return min(tried, key=lambda cut: (tried[cut], cut)), tried
