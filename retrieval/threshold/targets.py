"""Targets of a threshold: FPIR, FAR or precision."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates
from retrieval.threshold.gallery_size import size_model


@dataclass(frozen=True)
class Target:
    """The error rate that a threshold must meet: an FPIR, or a rate that is converted to one.

    Parameters
    ----------
    fpir:
        Share of searches of unknown items that return something.
    far:
        Share of pairs of a photo and another item that are accepted, for 1:1 use.
    precision, mated_share:
        Share of answered searches whose first answer is right, if `mated_share` of all searches are of items in the
        gallery. The threshold depends on `mated_share`, so it is required with `precision`.
    """

    fpir: float | None = None
    far: float | None = None
    precision: float | None = None
    mated_share: float | None = None

    def __post_init__(self) -> None:
        given = [name for name in ("fpir", "far", "precision") if getattr(self, name) is not None]
        if len(given) != 1:
            raise InvalidParameter("target", "be one of FPIR, FAR and precision", given)
        for name in (*given, *(["mated_share"] if self.mated_share is not None else [])):
            if not 0 < getattr(self, name) < 1:
                raise InvalidParameter(f"target {name}", "lie between 0 and 1", getattr(self, name))
        if (self.precision is None) != (self.mated_share is None):
            raise InvalidParameter(
                "mated_share",
                "be given with a precision, and only then",
                self.mated_share,
                remedy="--mated-share is the share of searches whose item is in the gallery",
            )

    def as_fpir(self, scores: SearchScores) -> float:
        """Convert the target to an FPIR on these searches; raise CalibrationError if no threshold meets it."""
        if self.fpir is not None:
            return self.fpir
        threshold = _threshold_at_far(scores, self.far) if self.far is not None else self._threshold(scores)
        fpir = identification_rates(scores, threshold).fpir
        if not 0 < fpir < 1:
            raise CalibrationError(
                f"the target amounts to an FPIR of {fpir:g} on these searches, which cannot be promised",
                remedy="Ask for another target, or give --target-fpir itself",
            )
        return fpir

    def _threshold(self, scores: SearchScores) -> float:
        """Return the largest threshold that reaches the precision."""
        share, wanted = float(self.mated_share or 0), float(self.precision or 0)
        correct = np.sort(scores.own[scores.mated & (scores.own < scores.impostor)])
        wrong = np.sort(scores.impostor[scores.mated & (scores.impostor <= scores.own)])
        impostors = np.sort(scores.impostor)
        thresholds = np.unique(np.concatenate([correct, impostors[np.isfinite(impostors)]]))
        right, wrong_mated, false = (
            np.searchsorted(part, thresholds, side="right") / count
            for part, count in (
                (correct, scores.mated.sum()),
                (wrong, scores.mated.sum()),
                (impostors, len(impostors)),
            )
        )
        precision = share * right / np.maximum(share * (right + wrong_mated) + (1 - share) * false, 1e-300)
        met = np.flatnonzero(precision >= wanted)
        if not len(met):
            raise CalibrationError(
                f"no threshold reaches a precision of {wanted:g}: the best is {precision.max(initial=0):.3f}",
                remedy="Train a better model, or ask for less with --target-precision",
            )
        return float(thresholds[met[-1]])


def _threshold_at_far(scores: SearchScores, far: float) -> float:
    """Return the largest threshold that accepts at most this share of the pairs of a query and another item."""
    near = size_model(scores).near
    allowed = int(far * len(near) * (scores.gallery_items - 1))
    pooled = np.sort(near[np.isfinite(near)])
    known = near[:, -1].min() if near.shape[1] < scores.gallery_items - 1 else np.inf  # all pairs up to here are kept
    if allowed >= len(pooled) or pooled[allowed] > known:
        raise CalibrationError(
            f"a FAR of {far:g} accepts more than the {near.shape[1]} items nearest to a query, and only those are kept",
            remedy="Ask for a smaller --target-far",
        )
    return float(np.nextafter(pooled[allowed], -np.inf))
