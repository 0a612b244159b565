"""The operating points that a gallery serves with, by the number of photos of a query, and their measured rates."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from index.contents import POINT
from index.protocol import GalleryProtocol
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.bundle.served_point import RegionPoint, served_points, stored_regions
from retrieval.threshold.drawn_distances import GalleryRates
from retrieval.threshold.region_rates import region_rates

from .served import Served


class GalleryPoints:
    """Reads the operating points of a gallery for a bundle, and caches the last ones. Thread-safe."""

    def __init__(self, bundle: Bundle, gallery: GalleryProtocol) -> None:
        self._bundle, self._gallery = bundle, gallery
        self._last: tuple[bytes | None, dict[int, OperatingPoint]] = None, {1: bundle.operating_point}
        self._last_regions: tuple[bytes | None, Mapping[str, RegionPoint]] = None, {}
        self._rates: dict[
            tuple[int, int | str], GalleryRates | None
        ] = {}  # by version, and photos of a query or regions

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
            last = self._last = stored, served_points(stored, self._bundle)
        return last[1]

    def regions(self, stored: bytes | None) -> Mapping[str, RegionPoint]:
        """Return the operating points of regions by the name of their policy, given what the gallery keeps."""
        last = self._last_regions
        if stored is not last[0] and stored != last[0]:
            last = self._last_regions = stored, stored_regions(stored, self._bundle)
        return last[1]

    def newest_regions(self) -> Mapping[str, RegionPoint]:
        """Return the operating points of regions in the newest version, by the name of their policy."""
        return self.regions(self._gallery.kept(POINT))

    def of_version(self, version: int, points: dict[int, OperatingPoint], photos: int) -> Served:
        """Return the operating point and rates for a query of this many photos, given those of the version."""
        count = measured_photos(points, photos)
        rates = self.rates_at(version, points[count], photos) if count == photos else None
        return Served(points[count], version, rates, photos, count)

    def rates_at(self, version: int, point: OperatingPoint, photos: int = 1) -> GalleryRates | None:
        """Return the rates of a version that is the newest or was searched before, else None."""
        return self._kept_rates(
            (version, photos),
            lambda: GalleryRates.read(self._gallery, point, self._bundle.draws_id, photos_per_query=photos),
        )

    def region_rates_at(self, version: int, region: RegionPoint) -> GalleryRates | None:
        """Return the rates of searches by regions in a version that is the newest or was searched before, else None."""
        return self._kept_rates(
            (version, region.regions), lambda: region_rates(self._gallery, region, self._bundle.draws_id)
        )

    def _kept_rates(self, key: tuple[int, int | str], read: Callable[[], GalleryRates | None]) -> GalleryRates | None:
        version = key[0]
        if key not in self._rates and version == self._gallery.version:
            rates = read()
            if version == self._gallery.version:  # nothing changed meanwhile
                kept = {other: value for other, value in self._rates.items() if other[0] == version}
                self._rates = {**kept, key: rates}
        return self._rates.get(key)


def measured_photos(points: dict[int, OperatingPoint], photos: int) -> int:
    """Return the largest number of photos with an operating point that is at most that of a query."""
    return max(count for count in points if count <= photos)
