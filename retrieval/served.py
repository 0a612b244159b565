"""The operating point and the measured rates that a search uses."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from index.search.distance import accepts
from index.snapshot import Neighbour
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.threshold.error_rates import GalleryRates

from .result import Match


@dataclass(frozen=True)
class Served:
    """The operating point of one gallery version, and the rates measured there."""

    point: OperatingPoint
    version: int
    rates: GalleryRates | None  # None if they were not measured: then there are no p-values
    photos: int = 1  # of the query
    point_photos: int = 1  # of the queries that the operating point was set for, at most as many

    def match(self, neighbour: Neighbour) -> Match:
        """Return a neighbour as a match, with its p-value."""
        return match_of(neighbour, None if self.rates is None else self.rates.p_value(neighbour.distance))

    def matches(self, neighbours: Sequence[Neighbour]) -> tuple[Match, ...]:
        """Return the neighbours within the threshold."""
        return tuple(self.match(n) for n in neighbours if accepts(n.distance, self.point.threshold))

    def review(self, neighbours: Sequence[Neighbour], most: float) -> tuple[Match, ...]:
        """Return the neighbours beyond the threshold whose p-value is at most `most`."""
        beyond = [self.match(n) for n in neighbours if not accepts(n.distance, self.point.threshold)]
        return tuple(match for match in beyond if match.p_value is not None and match.p_value <= most)


def match_of(neighbour: Neighbour, p_value: float | None = None) -> Match:
    """Return a neighbour as a match."""
    return Match(neighbour.item_id, neighbour.photo_id, neighbour.distance, dict(neighbour.metadata), p_value)
