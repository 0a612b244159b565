"""Non-maximum suppression over items: of overlapping regions, the one with the least distance is kept."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from index.snapshot import Neighbour

from .boxes import overlap
from .policy import Region

MOST_OVERLAP = 0.4  # maximum overlap of two regions with an item, as a share of the smaller one


@dataclass(frozen=True)
class Sighting:
    """An item near a region."""

    region: Region
    neighbour: Neighbour


def without_overlaps(sightings: Iterable[Sighting]) -> list[Sighting]:
    """Return the best region of each item, nearest first, without regions that overlap the region of a nearer item.

    Of equal distances, the first region is kept. An item whose best region is left out may keep another one.
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
