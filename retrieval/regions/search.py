"""Search for the items in the regions of a photo."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.location import AnyGallery
from index.search.distance import DistanceForm
from index.search.verified import VerifiedDistance
from index.snapshot import Neighbour
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.bundle.operating_point import UNANCHORED, OperatingPoint
from retrieval.errors import InvalidParameter
from retrieval.images import Source, open_image
from retrieval.query_photo import QueryPhoto
from retrieval.result import (
    BEYOND_THRESHOLD,
    FILTERED_OUT,
    GALLERY_EMPTY,
    LOW_CERTAINTY,
    MATCH,
    NO_MATCH,
    RANKED,
    UNCALIBRATED,
)
from retrieval.served import Served
from retrieval.threshold.gallery_points import MeasuredGallery, threshold_status

from .boxes import BBox, check_bboxes, cropped
from .detector import Detector, DetectorRegions
from .policy import AUTO, DETECTOR, GIVEN, Region, RegionPolicy
from .result import NO_REGION, RegionMatch, RegionsResult
from .suppression import Sighting, without_overlaps
from .windows import AutoRegions

Regions = str | RegionPolicy | Sequence[Sequence[float]]


def policy_of(regions: Regions, detector: Detector | None) -> RegionPolicy | list[BBox]:
    """Return the policy of a search, by its name, or the bounding boxes that were given."""
    if not isinstance(regions, str):
        return regions if isinstance(regions, AutoRegions | DetectorRegions) else check_bboxes(regions)  # type: ignore[arg-type]
    if regions == AUTO:
        return AutoRegions()
    if regions != DETECTOR:
        raise InvalidParameter("regions", f"be {AUTO}, {DETECTOR} or a sequence of bounding boxes", regions)
    if detector is None:
        raise InvalidParameter(
            "regions", f"be {AUTO} or bounding boxes without a detector", regions, remedy="Pass --detector MODEL.onnx"
        )
    return DetectorRegions(detector)


def check_regions(bundle: Bundle) -> None:
    """Raise InvalidParameter if a bundle verifies matches, which would compare local features of every region."""
    if isinstance(bundle.distance_form, VerifiedDistance):
        raise InvalidParameter(
            "regions",
            "be bounding boxes with a bundle that verifies matches by local features",
            bundle.path.name,
            remedy="Send the bounding boxes of the items, or export a bundle with --verify off",
        )


@dataclass(frozen=True)
class RegionSearch:
    """Searches a gallery with the regions of photos, by one policy or with given boxes."""

    bundle: Bundle
    gallery: AnyGallery
    embedder: Embedder
    distance_form: DistanceForm
    points: MeasuredGallery
    policy: RegionPolicy | list[BBox]

    def search(self, image: Source, *, top_k: int, where: str | None, review: float) -> RegionsResult:
        """Return the items in a photo; `Retriever.search_regions` describes the arguments."""
        if not isinstance(self.policy, list):
            check_regions(self.bundle)
        times = [time.perf_counter()]
        opened = open_image(image)
        times.append(time.perf_counter())
        given = isinstance(self.policy, list)
        regions = [Region(bbox) for bbox in self.policy] if isinstance(self.policy, list) else self.policy.find(opened)
        photos = [QueryPhoto.of_image(self.embedder, cropped(opened, region.bbox)) for region in regions]
        times.append(time.perf_counter())
        size = self.embedder.preprocessing.size
        pixels = np.stack([photo.pixels for photo in photos]) if photos else np.zeros((0, size, size, 3), np.uint8)
        made = self.embedder.embed_pixels(pixels)
        times.append(time.perf_counter())
        features = [photo.features or b"" for photo in photos]
        served, anchored, found = self._neighbours(made.vectors, 1 if given else top_k, where, features)
        times.append(time.perf_counter())
        sure = made.certainties >= served.point.min_certainty
        seen = [
            [Sighting(region, neighbour) for neighbour in neighbours]
            for region, neighbours in zip(regions, found, strict=True)
        ]
        answer = _Answer(served, seen, sure.tolist(), given=given, top_k=top_k)
        matches = answer.matches()
        nearest = answer.nearest()
        stages = zip(("decode", "regions", "embed", "search"), np.diff(times).tolist(), strict=True)
        return RegionsResult(
            matches=matches,
            decision=MATCH if matches else NO_MATCH if served.point.decides else RANKED,
            reason="" if matches else self._reason(answer, where),
            threshold=served.point.threshold_or_none,
            nearest=nearest,
            bundle_id=self.bundle.bundle_id,
            gallery_version=served.version,
            regions=GIVEN if isinstance(self.policy, list) else self.policy.name,
            searched=len(regions),
            width=opened.width,
            height=opened.height,
            ranked=() if served.point.decides else answer.ranked(),
            threshold_status=self._status(served, anchored=anchored),
            fpir_per="bbox" if given else "photo",
            review=answer.review(review),
            p_value_without_filter=where is not None and served.rates is not None,
            timings_ms={name: round(1e3 * seconds, 3) for name, seconds in stages},
            nearest_of_boxes=answer.nearest_of_boxes() if given else (),
        )

    def _neighbours(
        self, vectors: np.ndarray, top_k: int, where: str | None, features: Sequence[bytes]
    ) -> tuple[Served, bool, list[list[Neighbour]]]:
        """Return the operating point, whether it was set for these regions, and the items near each region."""
        kept: list[bytes | None] = []

        def within(stored: bytes | None) -> float:
            kept.append(stored)
            point = self._point(stored)[0]
            return point.threshold if point.decides else math.inf

        version, found = self.gallery.search_version(
            vectors, top_k, where=where, distance_form=self.distance_form, within=within, features=features
        )
        point, region = self._point(kept[-1])
        rates = self.points.rates_at(version, point) if isinstance(self.policy, list) else None
        return Served(point, version, rates), region is not None, found

    def _point(self, stored: bytes | None) -> tuple[OperatingPoint, None]:
        """Return the operating point that serves, and the region point of this policy if the gallery has one."""
        return self.points.point_of(stored), None

    def _status(self, served: Served, *, anchored: bool) -> str:
        if isinstance(self.policy, list):
            return threshold_status(served.point, self.bundle)
        return served.point.status if anchored or not served.point.decides else UNANCHORED

    def _reason(self, answer: _Answer, where: str | None) -> str:
        """Return the reason for an answer without a match."""
        if not answer.served.point.decides:
            return UNCALIBRATED
        if not answer.seen:
            return NO_REGION
        if not any(answer.seen):
            return GALLERY_EMPTY if where is None or not len(self.gallery) else FILTERED_OUT
        return BEYOND_THRESHOLD if any(answer.sure) else LOW_CERTAINTY


@dataclass(frozen=True)
class _Answer:
    """Items near each region, and whether the certainty of the region is high enough."""

    served: Served
    seen: list[list[Sighting]]
    sure: list[bool]
    given: bool
    top_k: int

    def matches(self) -> tuple[RegionMatch, ...]:
        """Return the items within the threshold: the nearest one of each given box, else without overlaps."""
        if not self.served.point.decides:
            return ()
        return self._best([s for s in self._certain() if self._accepts(s)])

    def ranked(self) -> tuple[RegionMatch, ...]:
        """Return the nearest items."""
        return self._best([sighting for sightings in self.seen for sighting in sightings])

    def review(self, most: float) -> tuple[RegionMatch, ...]:
        """Return items beyond the threshold whose p-value is at most `most`, outside the regions of matches."""
        if not self.served.point.decides:
            return ()
        best = self._chosen(self._certain())
        beyond = [sighting for sighting in best if self.served.review([sighting.neighbour], most)]
        return tuple(self._match(sighting) for sighting in beyond)[: self.top_k]

    def nearest(self) -> RegionMatch | None:
        """Return the nearest item in any region."""
        everything = [sighting for sightings in self.seen for sighting in sightings]
        return self._match(min(everything, key=lambda s: s.neighbour.distance)) if everything else None

    def nearest_of_boxes(self) -> tuple[RegionMatch, ...]:
        """Return the nearest item of each region that has one."""
        return tuple(self._match(sightings[0]) for sightings in self.seen if sightings)

    def _certain(self) -> list[Sighting]:
        return [s for sightings, sure in zip(self.seen, self.sure, strict=True) if sure for s in sightings]

    def _accepts(self, sighting: Sighting) -> bool:
        return bool(self.served.matches([sighting.neighbour]))

    def _best(self, sightings: list[Sighting]) -> tuple[RegionMatch, ...]:
        return tuple(self._match(sighting) for sighting in self._chosen(sightings))[: self.top_k]

    def _chosen(self, sightings: list[Sighting]) -> list[Sighting]:
        if self.given:
            return sorted(sightings, key=lambda sighting: sighting.neighbour.distance)
        return without_overlaps(sightings)

    def _match(self, sighting: Sighting) -> RegionMatch:
        match = self.served.match(sighting.neighbour)
        return RegionMatch(**vars(match), bbox=sighting.region.bbox, score=sighting.region.score)
