"""Certainty of embeddings, given by the norm before scaling to unit length.

With the von Mises-Fisher losses the norm is a concentration, which is low for ambiguous photos. Searches below a
cut can be rejected.

Shapes: n searches.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from numpy.typing import ArrayLike

from retrieval.errors import InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates, threshold_at_fpir

QUANTILES = (0.0, 0.01, 0.02, 0.05, 0.1, 0.2)  # of the certainties, tried as cuts
NEVER = 1e9  # distance to the own item of a rejected search: still mated, never accepted


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
