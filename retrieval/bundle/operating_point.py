"""Operating points: a threshold with its target, status and evidence."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from retrieval.errors import InvalidParameter, counted

CERTIFIED, ESTIMATED = "certified", "estimated"
UNCALIBRATED = "uncalibrated"  # there is no threshold, so searches only rank items
NOTHING = -math.inf  # a threshold that accepts nothing
UNANCHORED = "unanchored"  # status of the bundle's threshold where it serves, because it was not set in that gallery
LOW_TPIR = 0.5  # a warning is given below this TPIR
NUMBERS = (  # of the evidence, if it has them
    *("fpir", "fpir_upper", "fpir_expected", "tpir", "misidentification"),
    *("gallery_items", "least_items", "items_needed", "clusters"),
)


@dataclass(frozen=True)
class OperatingPoint:
    """A threshold, its target FPIR and the evidence for it."""

    threshold: float  # NOTHING if the status is UNCALIBRATED
    status: str  # CERTIFIED, ESTIMATED or UNCALIBRATED
    target_fpir: float
    evidence: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def uncalibrated(cls, target_fpir: float) -> OperatingPoint:
        """Return the point of a bundle without a threshold, with the target for galleries that set one."""
        if not 0 < target_fpir < 1:
            raise InvalidParameter("target_fpir", "lie between 0 and 1", target_fpir)
        return cls(NOTHING, UNCALIBRATED, target_fpir)

    @property
    def decides(self) -> bool:
        """Return whether there is a threshold, which decides between match and no-match."""
        return self.status != UNCALIBRATED

    @property
    def threshold_or_none(self) -> float | None:
        """The threshold, or None if there is none, for JSON, which has no infinity."""
        return self.threshold if self.decides else None

    def describe(self) -> str:
        """Return a one-line description."""
        if not self.decides:
            return f"it has no threshold; a gallery sets one for FPIR {self.target_fpir:g}."
        size = self.evidence.get("gallery_items")
        told = f"a match is a distance of at most {self.threshold:.4f}; FPIR {self.target_fpir:g} is {self.status}"
        if not size and (least := self.evidence.get("least_items")):
            return f"{told} in galleries of {least} items or more. A gallery of 20 items sets a threshold of its own."
        told = f"{told} for {counted(size, 'item')}" if size else told
        upper = self.evidence.get("fpir_upper")
        bound = "" if upper is None or self.status == CERTIFIED else f", at most {upper:.2g} with 95 % confidence"
        return f"{told}{bound}."

    def caveats(self) -> list[str]:
        """Return sentences about the performance to expect on new items."""
        told, halves = [], self.evidence.get("fpir_on_other_half")
        if halves:
            told.append(
                f"Set on half of the calibration's {self.evidence['clusters']} independent groups of items, such a "
                f"threshold realised an FPIR between {halves[0]:.3f} and {halves[1]:.3f} on the other half (nine of "
                "ten splits): items unlike these may differ as much"
            )
        if self.evidence.get("tpir", 1.0) < LOW_TPIR:
            told.append(
                f"Only {self.evidence['tpir']:.0%} of the photos whose item is in the gallery find it at this "
                "threshold: more training items, sharper photos or a larger backbone are what raises it"
            )
        return told

    def to_dict(self) -> dict[str, Any]:
        """Return the operating point as plain JSON values."""
        return {
            "threshold": self.threshold_or_none,
            "status": self.status,
            "target_fpir": self.target_fpir,
            "evidence": dict(self.evidence),
        }

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> OperatingPoint:
        """Create an OperatingPoint from the output of `to_dict`. Raises InvalidParameter for a point that is none."""
        threshold, status, target = values["threshold"], str(values["status"]), float(values["target_fpir"])
        decides = status in (CERTIFIED, ESTIMATED)
        if not decides and (status != UNCALIBRATED or threshold is not None):
            raise InvalidParameter("status", f"be {CERTIFIED} or {ESTIMATED} where there is a threshold", status)
        if decides and not 0 <= float(threshold) < math.inf:
            raise InvalidParameter("threshold", "be a distance of at least 0", threshold)
        if not 0 < target < 1:
            raise InvalidParameter("target_fpir", "lie between 0 and 1", target)
        evidence = dict(values["evidence"])
        for name in NUMBERS:
            value = evidence.get(name)
            if value is not None and not (isinstance(value, int | float) and math.isfinite(value)):
                raise InvalidParameter(f"evidence {name}", "be a finite number", value)
        return cls(float(threshold) if decides else NOTHING, status, target, evidence)
