"""Non-maximum suppression over items: of overlapping regions, the item at the least distance stays."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from index.neighbours import Neighbour

from .boxes import overlap
from .policy import Region

MOST_OVERLAP = 0.4  # share of the smaller region up to which two regions may both have an item


@dataclass(frozen=True)
class Sighting:
    """An item near a region."""

    region: Region
    neighbour: Neighbour


def without_overlaps(sightings: Iterable[Sighting]) -> list[Sighting]:
    """Return the best region of each item, nearest first, leaving out regions that overlap that of a nearer item.

    Of equal distances the first region stays. An item whose best region is left out may keep another one.
    """
    kept: list[Sighting] = []
    items: set[str] = set()
    for sighting in sorted(sightings, key=lambda sighting: sighting.neighbour.distance):
        if sighting.neighbour.item_id in items:
            continue
        if all(overlap(sighting.region.bbox, other.region.bbox) <= MOST_OVERLAP for other in kept):
            kept.append(sighting)
            items.add(sighting.neighbour.item_id)
    return kept
