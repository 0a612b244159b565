"""Data of a gallery's report."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from index.location import AnyGallery, AnyPhotos
from index.search.leave_one_out import OWN, Draws, KeptDraws
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.errors import CalibrationError
from retrieval.threshold.drawn_distances import LABELLED, GalleryRates
from retrieval.threshold.gallery_anchor import Anchored

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GalleryReport:
    """The data of a report: the point that serves and, if it was set in this gallery, its draws."""

    gallery: AnyGallery
    point: OperatingPoint
    photos: int
    items: int
    snapshot: AnyPhotos | None = None
    draws: Mapping[str, Draws] | None = None  # of exactly the photos of the snapshot
    rates: GalleryRates | None = None

    @classmethod
    def of(cls, bundle: Bundle, gallery: AnyGallery, point: OperatingPoint) -> GalleryReport:
        """Return the data of a gallery's report for the point that serves."""
        plain = cls(gallery, point, len(gallery), gallery.items)
        if not point.evidence.get("anchored"):
            return plain
        with gallery.one_version():
            kept, snapshot = KeptDraws.read(gallery), gallery.snapshot()
            if kept is None or kept.model != bundle.draws_id or not kept.covers(gallery):
                return plain
        return plain.with_draws(kept, snapshot)

    @classmethod
    def of_proposal(cls, gallery: AnyGallery, anchored: Anchored) -> GalleryReport:
        """Return the data of a report for a point that the gallery may not have yet, with the draws behind it."""
        if anchored.point is None:
            raise CalibrationError(anchored.why_not)
        with gallery.one_version():
            plain = cls(gallery, anchored.point, len(gallery), gallery.items)
            return plain.with_draws(anchored.draws, gallery.snapshot()) if anchored.draws.covers(gallery) else plain

    def with_draws(self, kept: KeptDraws, snapshot: AnyPhotos) -> GalleryReport:
        """Return the report with draws, which are of exactly the photos of the snapshot."""
        return replace(self, snapshot=snapshot, draws=kept.sources, rates=GalleryRates.of(kept, self.point))

    @property
    def shift(self) -> float:
        """The query shift that is added to own draws."""
        return float(self.point.evidence.get("shift", {}).get("applied", 0.0))


def mated_draws(report: GalleryReport) -> Draws | None:
    """Return the draws whose item has another photo: labelled queries if there are any, else own ones."""
    draws = report.draws or {}
    name = LABELLED if report.point.evidence.get("tpir_of") == "labelled queries" else OWN
    return draws.get(name) if name in draws and np.isfinite(draws[name].own).any() else None


def mated_distances(report: GalleryReport) -> tuple[Floats, Floats] | None:
    """Return the distances to the own item and their weights, with items weighted equally."""
    draws = mated_draws(report)
    if draws is None:
        return None
    mated = np.isfinite(draws.own)
    _, codes, counts = np.unique(draws.items[mated], return_inverse=True, return_counts=True)
    return draws.own[mated], 1 / counts[codes] / len(counts)


def found_shares(report: GalleryReport, thresholds: Floats) -> Floats | None:
    """Return the share of mated draws that find their item first, for some thresholds (t,)."""
    draws = mated_draws(report)
    if draws is None:
        return None
    right = np.sort(draws.own[np.isfinite(draws.own) & (draws.own < draws.distances)])
    return np.asarray(np.searchsorted(right, thresholds, side="right") / np.isfinite(draws.own).sum())
