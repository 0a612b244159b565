"""Parameters of the verification."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.search.details import BITS
from retrieval.errors import InvalidParameter

from .features import LARGEST_SIDE, MOST_POINTS

SMALLEST_SIDE = 16  # pixels of a scaled photo; a smaller one has no key points
LIMITS: Mapping[str, tuple[float, float]] = {
    "points": (1, MOST_POINTS),
    "side": (SMALLEST_SIDE, LARGEST_SIDE // 2),
    "enlargement": (1, 8),
    "contrast": (0, 1),
    "ratio": (1e-3, 1),
    "error": (1e-3, 100),
    "iterations": (1, 100_000),
    "asked": (1, 8),
    "bits": (0, BITS),
    "bit_scale": (0.1, 1000),
    "items": (1, 1000),
    "photos": (1, 1000),
    "voted": (0, 1000),
}
DETECTION = ("points", "side", "enlargement", "contrast")  # parameters that decide the features of a photo
VOTES = ("asked", "bits", "bit_scale")


@dataclass(frozen=True)
class VerifierSettings:
    """Parameters that decide inliers, besides the vocabulary. Raises InvalidParameter beyond LIMITS."""

    points: int = 300  # maximum number of key points of a photo; the strongest are kept
    side: int = 480  # pixels of the longer side that a photo is scaled to
    enlargement: float = 2.0  # maximum enlargement of a small photo
    contrast: float = 0.02  # minimum contrast of a key point, OpenCV's contrastThreshold
    ratio: float = 0.8  # maximum ratio of the distances to the nearest and the second nearest descriptor
    error: float = 6.0  # maximum distance in pixels between a key point and its transformed counterpart
    iterations: int = 1000  # maximum number of samples
    asked: int = 3  # number of nearest visual words that a key point of a query votes with
    bits: int = 16  # maximum number of bits in which the signatures of two key points differ
    bit_scale: float = 10.0  # a vote with h differing bits counts exp(-(h / bit_scale)^2)
    items: int = 10  # nearest items on the shortlist
    photos: int = 3  # nearest photos of each of these items on the shortlist
    voted: int = 20  # photos with the most votes on the shortlist

    def __post_init__(self) -> None:
        for name, (least, most) in LIMITS.items():
            value = getattr(self, name)
            if not least <= value <= most:
                raise InvalidParameter(name, f"lie between {least:g} and {most:,g}", value)

    def agreement(self) -> NDArray[np.float32]:
        """Return the factor of a vote (BITS + 1,) by the number of bits in which two signatures differ."""
        differing = np.arange(BITS + 1)
        factors = np.where(differing <= self.bits, np.exp(-((differing / self.bit_scale) ** 2)), 0.0)
        return np.asarray(factors, dtype=np.float32)

    def to_dict(self, *names: str) -> dict[str, Any]:
        """Return the parameters, or some of them, as plain JSON values."""
        return {name: value for name, value in asdict(self).items() if not names or name in names}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> VerifierSettings:
        """Create settings from the output of `to_dict`."""
        kinds = {each.name: float if each.type == "float" else int for each in fields(cls)}
        return cls(**{name: kind(values[name]) for name, kind in kinds.items()})  # type: ignore[arg-type]
