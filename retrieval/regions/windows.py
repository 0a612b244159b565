"""Regions `auto`: overlapping square windows of a photo at a few scales."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from PIL import Image

from retrieval.errors import InvalidParameter
from retrieval.images import MIN_SIDE

from .boxes import MOST_BBOXES, BBox
from .policy import AUTO, Region

OVERLAP = 0.5  # of neighbouring windows, as a share of their side
LEAST_SCALE = 0.1
MOST_SCALES = 5


@dataclass(frozen=True)
class AutoRegions:
    """Square windows whose sides are `scales` of the photo's shorter side, in grids that cover the photo.

    Neighbouring windows overlap by half. If there are more than `most` windows, the largest grid is made coarser.
    """

    scales: tuple[float, ...] = (1.0, 0.6, 0.4)
    most: int = 32
    name: str = AUTO

    def __post_init__(self) -> None:
        object.__setattr__(self, "scales", tuple(sorted({float(scale) for scale in self.scales}, reverse=True)))
        if not 1 <= len(self.scales) <= MOST_SCALES or not LEAST_SCALE <= min(self.scales) <= max(self.scales) <= 1:
            raise InvalidParameter(
                "scales", f"be 1 to {MOST_SCALES} numbers between {LEAST_SCALE} and 1", list(self.scales)
            )
        if not len(self.scales) <= self.most <= MOST_BBOXES:
            raise InvalidParameter(
                "max_windows", f"lie between the number of scales, {len(self.scales)}, and {MOST_BBOXES}", self.most
            )

    def find(self, image: Image.Image) -> list[Region]:
        """Return the windows of an upright image, the largest first."""
        return [Region(bbox) for bbox in windows(image.width, image.height, self.scales, self.most)]

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the policy as plain JSON values."""
        return {"regions": self.name, "scales": list(self.scales), "max_windows": self.most}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> AutoRegions:
        """Create AutoRegions from the output of `to_dict`."""
        return cls(tuple(values["scales"]), int(values["max_windows"]))


def windows(width: int, height: int, scales: tuple[float, ...], most: int) -> list[BBox]:
    """Return up to `most` windows of a photo with these sides, by scale, then from left to right and top to bottom."""
    shorter = min(width, height)
    sides = sorted({min(shorter, max(MIN_SIDE, round(scale * shorter))) for scale in scales}, reverse=True)
    grids = [[_steps(width, side), _steps(height, side)] for side in sides]
    while sum(across * down for across, down in grids) > most:
        grid = max(grids, key=lambda grid: grid[0] * grid[1])
        grid[grid.index(max(grid))] -= 1
    return [
        (left, upper, left + side, upper + side)
        for side, (across, down) in zip(sides, grids, strict=True)
        for upper in _starts(height, side, down)
        for left in _starts(width, side, across)
    ]


def _steps(length: int, side: int) -> int:
    """Return the number of windows along a length that overlap by at least OVERLAP."""
    return math.ceil((length - side) / (side * (1 - OVERLAP))) + 1


def _starts(length: int, side: int, count: int) -> list[int]:
    """Return the starts of evenly spaced windows; a single one is in the middle."""
    if count == 1:
        return [(length - side) // 2]
    return [round(place * (length - side) / (count - 1)) for place in range(count)]
