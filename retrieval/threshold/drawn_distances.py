"""Distances of draws: the FPIR of a threshold in a gallery, its upper bound, and p-values of distances."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.draws import Draws
from index.kept_draws import OWN, KeptDraws
from index.reader import Reader
from index.shell import command
from retrieval.bundle.operating_point import CERTIFIED, OperatingPoint

from .bounds import items_bound, most_hits

PROBE = "probe"  # calibration queries of the bundle
REFERENCE = "reference"  # gallery photos of the same items, to measure the query shift
LABELLED = "labelled"  # users' photos with item ids of this gallery
LEAST_ITEMS = 20  # a source with fewer items sets no threshold

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class DrawnDistances:
    """Distances of n draws of one source to the nearest other item, with items weighted equally."""

    distances: Floats  # (n,) ascending, inf where there is no other item
    weights: Floats  # (n,) sum to 1, with an equal sum for each item
    items: int

    @classmethod
    def of(cls, draws: Draws, *, shift: float = 0.0) -> DrawnDistances:
        """Return the distances of draws, each increased by the query shift."""
        _, places, counts = np.unique(draws.items, return_inverse=True, return_counts=True)
        order = np.argsort(draws.distances, kind="stable")
        weights = 1 / counts[places] / max(1, len(counts))
        return cls(np.maximum(draws.distances[order] + shift, 0), weights[order], len(counts))

    def fpir(self, threshold: float) -> float:
        """Return the share of draws within a threshold."""
        return min(1.0, float(self.weights[: int(np.searchsorted(self.distances, threshold, side="right"))].sum()))

    def fpir_upper(self, threshold: float) -> float:
        """Return the upper 95 % bound on the FPIR."""
        return items_bound(self.fpir(threshold), self.items)

    def limit(self, target: float, *, certified: bool) -> float | None:
        """Return the greatest threshold that keeps a target FPIR, None if so few items certify none."""
        if certified:
            hits = most_hits(self.items, target)
            if hits is None:
                return None
            target = hits / self.items
        over = np.cumsum(self.weights) > target + 1e-12
        first = int(over.argmax()) if over.any() else len(self.distances)
        finite = self.distances[np.isfinite(self.distances)]
        if first >= len(finite):
            return float(max(2.0, finite[-1] if len(finite) else 0.0))
        return float(np.nextafter(self.distances[first], -np.inf))

    def p_value(self, distance: float) -> float:
        """Return the rate at which an unknown item comes at least as close as `distance`, at least 1 / (1 + items)."""
        return min(1.0, (1 + self.items * self.fpir(distance)) / (1 + self.items))


def competing(drawn: Mapping[str, DrawnDistances], *, least_items: int = LEAST_ITEMS) -> dict[str, DrawnDistances]:
    """Return the sources with enough items to propose a threshold; labelled queries replace the own draws."""
    enough = {name: source for name, source in drawn.items() if source.items >= least_items and name != REFERENCE}
    return {name: source for name, source in enough.items() if name != OWN or LABELLED not in enough}


@dataclass(frozen=True)
class GalleryRates:
    """FPIR in one gallery version, by the source of draws with the highest rate."""

    sources: Mapping[str, DrawnDistances]

    @classmethod
    def read(cls, gallery: Reader, point: OperatingPoint) -> GalleryRates | None:
        """Return the rates of the newest version, None if it is not anchored or its draws miss newer photos."""
        if not point.evidence.get("anchored"):
            return None
        kept, seqs = KeptDraws.read(gallery), gallery.snapshot().seqs
        if kept is None or (len(seqs) and kept.until <= int(seqs[-1])):
            return None
        return cls.of(kept, point)

    @classmethod
    def of(cls, kept: KeptDraws, point: OperatingPoint) -> GalleryRates | None:
        """Return the rates of draws with the query shift of a point, None if no source has enough items."""
        shift = float(point.evidence.get("shift", {}).get("applied", 0.0))
        drawn = {
            name: DrawnDistances.of(draws, shift=shift if name == OWN else 0.0) for name, draws in kept.sources.items()
        }
        sources = competing(drawn)
        return cls(sources) if sources else None

    def fpir(self, threshold: float) -> float:
        """Return the FPIR of a threshold."""
        return max(source.fpir(threshold) for source in self.sources.values())

    def fpir_upper(self, threshold: float) -> float:
        """Return the upper 95 % bound on the FPIR."""
        return max(source.fpir_upper(threshold) for source in self.sources.values())

    def broken(self, point: OperatingPoint) -> bool:
        """Return whether a point no longer keeps its target, by the bound if certified, else by the observed rate."""
        rate = self.fpir_upper if point.status == CERTIFIED else self.fpir
        return rate(point.threshold) > point.target_fpir + 1e-9

    def warning(self, point: OperatingPoint, bundle: Path | None = None, gallery: Path | str = "GALLERY") -> str:
        """Return a warning with the command to run if a point no longer keeps its target, else an empty string."""
        if not self.broken(point):
            return ""
        again = command("calibrate", "BUNDLE", "GALLERY") if bundle is None else command("calibrate", bundle, gallery)
        return (
            "The gallery has changed since its threshold was set: an unknown item now returns a match in "
            f"{self.fpir(point.threshold):.1%} of searches (at most {self.fpir_upper(point.threshold):.1%} with 95 % "
            f"confidence), above the target of {point.target_fpir:.1%}. `{again}` sets a new threshold"
        )

    def to_dict(self, point: OperatingPoint) -> dict[str, Any]:
        """Return the rates of a point in this version as plain JSON values."""
        return {
            "fpir": self.fpir(point.threshold),
            "fpir_upper": self.fpir_upper(point.threshold),
            "items": {name: source.items for name, source in self.sources.items()},
            "broken": self.broken(point),
        }

    def p_value(self, distance: float) -> float:
        """Return the rate at which an unknown item comes at least as close as `distance`."""
        return max(source.p_value(distance) for source in self.sources.values())
