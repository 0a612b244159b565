"""Thresholds of a bundle in a gallery: the operating points that serve, and their measured rates."""

from __future__ import annotations

from index.location import AnyGallery
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.threshold.drawn_distances import GalleryRates

from .gallery_points import GalleryPoints, outgrown


class MeasuredGallery:
    """A gallery that is searched with a bundle, its operating points and rates."""

    def __init__(self, bundle: Bundle, gallery: AnyGallery) -> None:
        self.bundle = bundle
        self.gallery = gallery
        self._points = GalleryPoints(bundle, gallery)

    @property
    def point(self) -> OperatingPoint:
        """The operating point that serves: the gallery's, if it was set with this bundle, else the bundle's."""
        return self._points.point()

    def rates(self) -> GalleryRates | None:
        """Return the rates measured in the newest version of the gallery, None if it is not anchored."""
        return self._points.rates_at(self.gallery.version, self.point)

    @property
    def unmeasured(self) -> bool:
        """Return whether the gallery's own threshold serves without a known FPIR in the newest version."""
        return self.point is not self.bundle.operating_point and self.rates() is None

    def outgrown(self) -> str:
        """Return a warning if the bundle's threshold serves in a gallery with more items than it was set for."""
        return "" if self.point is not self.bundle.operating_point else outgrown(self.bundle, self.gallery)
