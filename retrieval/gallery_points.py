"""The operating points that a gallery serves with, by the number of photos of a query, and their measured rates."""

from __future__ import annotations

from index.database import POINT
from index.location import AnyGallery
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.bundle.served_point import served_point
from retrieval.errors import command
from retrieval.threshold.drawn_distances import GalleryRates

from .served import Served


class GalleryPoints:
    """Reads the operating points of a gallery for a bundle, and caches the last ones. Thread-safe."""

    def __init__(self, bundle: Bundle, gallery: AnyGallery) -> None:
        self._bundle, self._gallery = bundle, gallery
        self._last: tuple[bytes | None, dict[int, OperatingPoint]] = None, {1: bundle.operating_point}
        self._rates: dict[int, GalleryRates | None] = {}  # by version

    @property
    def last(self) -> OperatingPoint:
        """The operating point of single photos that was read last."""
        return self._last[1][1]

    def point(self, photos: int = 1) -> OperatingPoint:
        """Return the operating point of the newest version for queries of this many photos."""
        points = self.served(self._gallery.kept(POINT))
        return points[measured_photos(points, photos)]

    def served(self, stored: bytes | None) -> dict[int, OperatingPoint]:
        """Return the operating points that serve, given what the gallery keeps."""
        last = self._last
        if stored is not last[0] and stored != last[0]:
            last = self._last = stored, {1: served_point(stored, self._bundle)}
        return last[1]

    def of_version(self, version: int, points: dict[int, OperatingPoint], photos: int) -> Served:
        """Return the operating point and rates for a query of this many photos, given those of the version."""
        count = measured_photos(points, photos)
        rates = self.rates_at(version, points[count], photos) if count == photos else None
        return Served(points[count], version, rates, photos, count)

    def rates_at(self, version: int, point: OperatingPoint, photos: int = 1) -> GalleryRates | None:
        """Return the rates of a version that is the newest or was searched before, else None."""
        if photos == 1 and version not in self._rates and version == self._gallery.version:
            rates = GalleryRates.read(self._gallery, point, self._bundle.draws_id)
            if version == self._gallery.version:  # nothing changed meanwhile
                self._rates = {version: rates}
        return self._rates.get(version) if photos == 1 else None


def measured_photos(points: dict[int, OperatingPoint], photos: int) -> int:
    """Return the largest number of photos with an operating point that is at most that of a query."""
    return max(count for count in points if count <= photos)


def outgrown(bundle: Bundle, gallery: AnyGallery) -> str:
    """Return a warning if a gallery has more items than the bundle's threshold was set for, "" if it has not."""
    point, items = bundle.operating_point, gallery.items
    promised = int(point.evidence.get("gallery_items", items))
    if not point.decides or items <= promised:
        return ""
    return (
        f"The gallery has {items} items and the threshold was set for {promised}: photos of unknown items return a "
        f"match more often than the {point.target_fpir:.1%} that were promised. "
        f"`{command('calibrate', bundle.path, gallery.path)}` sets a threshold in this gallery"
    )
