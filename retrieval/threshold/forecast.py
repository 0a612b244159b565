"""Forecast of the false positive identification rate (FPIR) in a gallery of another size."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.bundle.bundle import Bundle
from retrieval.errors import command

from .certainty import without_uncertain
from .gallery_size import EXTRAPOLATION, size_model


@dataclass(frozen=True)
class FpirForecast:
    """The expected FPIR of a bundle's threshold at a given gallery size."""

    items: int
    promised_items: int  # gallery size that the target applies to
    target_fpir: float
    fpir: float  # expected at this size
    known: bool  # False beyond ten times the calibrated size

    @property
    def outgrown(self) -> bool:
        """Return whether the gallery is larger than the size that the target applies to."""
        return self.items > self.promised_items

    def to_dict(self) -> dict[str, Any]:
        """Return the forecast as plain JSON values."""
        return {**vars(self), "outgrown": self.outgrown}

    def warning(self, bundle: Path | None = None, gallery: Path | str = "GALLERY") -> str:
        """Return a warning with the command to run if the gallery is outgrown, else an empty string."""
        if not self.outgrown:
            return ""
        anchored = (
            command("calibrate", "BUNDLE", "GALLERY") if bundle is None else command("calibrate", bundle, gallery)
        )
        guess = "" if self.known else ", a guess so far out"
        return (
            f"The gallery has {self.items} items and the threshold was set for {self.promised_items}: about "
            f"{self.fpir:.1%} of photos of unknown items now return something{guess}, where {self.target_fpir:.1%} was "
            f"promised. `{anchored}` sets a threshold in this gallery. If the model was trained on too many of its "
            f"items, export the run again with --gallery-size {2 * self.items}"
        )


def fpir_forecast(bundle: Bundle, items: int) -> FpirForecast | None:
    """Return the expected FPIR in a gallery of `items` items, or None if the bundle cannot tell."""
    point = bundle.operating_point
    if bundle.calibration is None or items < 1 or point.of_pairs or not point.decides:
        return None
    scores = without_uncertain(bundle.calibration.scores, bundle.calibration.certainties, point.min_certainty)
    promised = int(point.evidence.get("gallery_size", scores.gallery_items))
    fpir = size_model(scores).fpir(point.threshold, items)
    return FpirForecast(items, promised, point.target_fpir, fpir, known=items <= EXTRAPOLATION * scores.gallery_items)
