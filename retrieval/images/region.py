"""The region of a photo: where the feature maps of a model respond most, which finds a thing in clutter."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .block import Share
from .parts import parts_of

GRID = 40  # cells a side of the energy
ABOVE = 1.2  # times the mean energy
LEAST = 0.2  # smallest side of a region, as a share of the input's


def find_region(energy: NDArray[np.float32]) -> Share | None:
    """Return the region of a model's input, given its energy (GRID, GRID); None if no part stands out.

    Of the connected parts with an energy well above the mean, it is the one with the largest energy.
    """
    parts = parts_of(energy > ABOVE * float(energy.mean()))
    if not parts:
        return None
    box, _ = max(parts, key=lambda part: float(energy[part[1]].sum()))
    left, upper, right, lower = (side / GRID for side in box)
    return (left, upper, right, lower) if min(right - left, lower - upper) >= LEAST else None
