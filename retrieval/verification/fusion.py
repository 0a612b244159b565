"""Fusion of the distance and the inliers of a verified photo into one distance."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from index.search.distance import Floats
from retrieval.errors import InvalidParameter


@dataclass(frozen=True)
class Fusion:
    """A distance that falls as the inliers grow: d (1 + max(0, n - least + 1) / scale) ^ -strength.

    Fewer than `least` inliers may be due to chance and change nothing. Strength 0 gives the base
    distance. A photo at distance 0 stays there, and no distance grows.
    """

    strength: float = 0.0
    scale: float = 3.0
    least: int = 6

    def __post_init__(self) -> None:
        if not 0 <= self.strength <= 100:
            raise InvalidParameter("strength", "lie between 0 and 100", self.strength)
        if not 1e-3 <= self.scale <= 1e6:
            raise InvalidParameter("scale", "lie between 0.001 and 1,000,000", self.scale)
        if not 1 <= self.least <= 1000:
            raise InvalidParameter("least", "lie between 1 and 1,000", self.least)

    def evidence(self, inliers: ArrayLike) -> Floats:
        """Return the evidence in inliers of any shape: 0 below `least`, then growing, whatever the strength."""
        return np.log1p(np.maximum(0, np.asarray(inliers, dtype=np.float64) - self.least + 1) / self.scale)

    def fused(self, distances: ArrayLike, inliers: ArrayLike) -> Floats:
        """Return distances lowered by inliers, of shapes that broadcast."""
        return lowered(distances, self.evidence(inliers), self.strength)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Fusion:
        """Create a fusion from the output of `to_dict`."""
        return cls(float(values["strength"]), float(values["scale"]), int(values["least"]))


def lowered(distances: ArrayLike, evidence: ArrayLike, strength: float) -> Floats:
    """Return distances lowered by `Fusion.evidence` with a strength, of shapes that broadcast."""
    return np.asarray(distances, dtype=np.float64) * np.exp(-strength * np.asarray(evidence, dtype=np.float64))
