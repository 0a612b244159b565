"""What serves a search: the operating point of a gallery version, and the rates measured there."""

from __future__ import annotations

from dataclasses import dataclass

from index.snapshot import Neighbour
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.threshold.drawn_distances import GalleryRates

from .result import Match


@dataclass(frozen=True)
class Served:
    """The operating point of one gallery version, and the rates measured there."""

    point: OperatingPoint
    version: int
    rates: GalleryRates | None

    def match(self, neighbour: Neighbour) -> Match:
        """Return a neighbour as a match, with its p-value."""
        return match_of(neighbour, None if self.rates is None else self.rates.p_value(neighbour.distance))


def match_of(neighbour: Neighbour, p_value: float | None) -> Match:
    """Return a neighbour as a match, with a p-value if it is known."""
    return Match(neighbour.item_id, neighbour.photo_id, neighbour.distance, dict(neighbour.metadata), p_value)
