"""Policies that divide a photo into regions. A threshold for a policy is set under exactly this policy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from PIL import Image

from .boxes import BBox

AUTO, DETECTOR, GIVEN = "auto", "detector", "given"


@dataclass(frozen=True)
class Region:
    """A part of a photo, with the score of the detector that found it."""

    bbox: BBox
    score: float | None = None


class RegionPolicy(Protocol):
    """A way to find the regions of a photo. Two policies with the same `to_dict` find the same regions."""

    @property
    def name(self) -> str:
        """Return AUTO or DETECTOR."""

    @property
    def most(self) -> int:
        """Return the largest number of regions."""

    def find(self, image: Image.Image) -> list[Region]:
        """Return the regions of an upright image."""

    def to_dict(self) -> dict[str, Any]:
        """Return what decides the regions, as plain JSON values."""
