"""Policies that divide a photo into regions. A threshold applies to exactly the policy that it was set with."""

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
    """Interface of policies. Two policies with the same `to_dict` find the same regions."""

    @property
    def name(self) -> str:
        """Return AUTO or DETECTOR."""

    @property
    def most(self) -> int:
        """Return the largest number of regions."""

    def find(self, image: Image.Image) -> list[Region]:
        """Return the regions of an upright image."""

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the policy as plain JSON values."""
