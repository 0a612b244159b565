"""The `Retriever`: embed a photo, search the gallery, apply the threshold."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from index.location import AnyGallery, open_gallery
from index.search.distance import mean_vectors
from index.search.verified import Features, VerifiedDistance
from index.snapshot import Neighbour
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embeddings
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.threshold.gallery_points import MeasuredGallery

from .answers import Answers
from .arguments import check_arguments, check_photos
from .bundle.bundle import require_match
from .errors import GalleryError, ImageRefused
from .images import Source
from .query_photo import QueryPhoto, different_photos
from .regions.boxes import check_parts
from .regions.detector import Detector
from .regions.policy import AUTO
from .regions.result import RegionsResult
from .regions.search import Regions, RegionSearch, policy_of
from .result import REVIEW_P, SearchResult
from .served import Served
from .timed_verifier import TimedVerifier


class Retriever(MeasuredGallery):
    """Searches a gallery with the model and threshold of a bundle. Thread-safe.

    As a context manager it closes itself on exit, together with the gallery if `open` opened it.
    """

    def __init__(
        self, bundle: Bundle, gallery: AnyGallery, *, threads: int = 1, detector: Detector | None = None
    ) -> None:
        require_match(bundle, gallery)
        super().__init__(bundle, gallery)
        self.embedder = bundle.embedder(threads=threads)
        self.detector = detector  # of searches with regions="detector"
        self._timer = None if bundle.verifier is None else TimedVerifier(bundle.verifier)
        self._distance_form = (
            bundle.distance_form if self._timer is None else VerifiedDistance(bundle.base_form, self._timer)
        )
        self._owns_gallery = False
        self._closed = False

    @classmethod
    def open(
        cls,
        bundle: str | Path,
        gallery: str | Path,
        *,
        threads: int = 1,
        detector: str | Path | None = None,
    ) -> Retriever:
        """Open a bundle and a gallery, and an ONNX detector of regions (`retrieval.regions.detector`) if one is given.

        Raises BundleMismatch if another model made the gallery.
        """
        opened = Bundle.open(bundle)
        found = None if detector is None else Detector(detector, threads=threads)
        place = open_gallery(gallery, read_only=True)
        try:
            retriever = cls(opened, place, threads=threads, detector=found)
        except BaseException:
            place.close()
            raise
        retriever._owns_gallery = True
        return retriever

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        point, closed = self._last_point[1], ", closed" if self._closed else ""
        state = f"threshold {point.threshold:.4f}" if point.decides else point.status
        return f"<Retriever {self.bundle.path} on {self.gallery.path}, {state}{closed}>"

    def close(self) -> None:
        """Close the gallery if `open` opened it. Later searches raise GalleryError."""
        self._closed = True
        if self._owns_gallery:
            self.gallery.close()

    def search(
        self,
        image: Source,
        *,
        bbox: Sequence[float] | None = None,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        review: float = REVIEW_P,
    ) -> SearchResult:
        """Return the catalogue items that match a photo, if any, or the nearest ones if there is no threshold.

        Parameters
        ----------
        image:
            Encoded bytes or a BytesIO of them, a path, a PIL image, or RGB pixels uint8 (height, width, 3).
        bbox:
            Part of the photo to search with: left, upper, right, lower in pixels of the upright photo.
        top_k:
            Maximum number of matches and candidates for review together, 1 to 100.
        where:
            Filter over the gallery's declared columns (`index.search.filters`).
        explain:
            Add an explanation to the result: a second search by the plain distance and, if the bundle verifies matches,
            the places where the photo agrees with those of the nearest items.
        review:
            Largest p-value of the items beyond the threshold that are returned for review, 0 to 1. There are none if
            the threshold was not set in this gallery. The list may be incomplete, unlike the matches.

        Raises
        ------
        ImageRefused
            If the photo cannot be used.
        InvalidParameter
            If an argument is invalid.
        """
        bboxes = None if bbox is None else [bbox]
        (answer,) = self.search_batch([image], bboxes=bboxes, top_k=top_k, where=where, explain=explain, review=review)
        if isinstance(answer, ImageRefused):
            raise answer
        return answer

    def search_batch(
        self,
        images: Sequence[Source],
        *,
        bboxes: Sequence[Sequence[float] | None] | None = None,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        review: float = REVIEW_P,
    ) -> list[SearchResult | ImageRefused]:
        """Search with up to 64 photos at once and return one result per photo.

        A photo that cannot be used gets an `ImageRefused` in its place. `bboxes` holds a part of each photo, or None
        for the whole photo. The other arguments are those of `search`.
        Each result's timings are the batch's timings divided by the number of photos.
        """
        self._check_open()
        check_arguments(images, top_k=top_k, where=where, review=review)
        started = time.perf_counter()
        parts = check_parts(images, bboxes)
        photos = [QueryPhoto.read(self.embedder, *each) for each in zip(images, parts, strict=True)]
        read = [photo for photo in photos if not isinstance(photo, ImageRefused)]
        if not read:
            return [photo for photo in photos if isinstance(photo, ImageRefused)]
        pixels = np.stack([photo.pixels for photo in read])
        decoded = time.perf_counter()
        made = self.embedder.embed_pixels(pixels)
        embedded = time.perf_counter()
        served, found = self._neighbours(made.vectors, top_k, where, features=[photo.features or b"" for photo in read])
        stages = {"decode": decoded - started, "embed": embedded - decoded, "search": time.perf_counter() - embedded}
        shares = self._timings_ms(stages, read, queries=len(read))
        each = (Embeddings(made.vectors[[row]], made.certainties[[row]]) for row in range(len(found)))
        answers = Answers(self.bundle, self.gallery, where, explain, review)
        results = (
            answers.answer(query, neighbours, served, features={1: photo.features or b""})
            for query, photo, neighbours in zip(each, read, found, strict=True)
        )
        return [
            photo
            if isinstance(photo, ImageRefused)
            else replace(next(results), timings_ms=dict(shares), appearance=photo.appearance)
            for photo in photos
        ]

    def search_photos(
        self,
        images: Sequence[Source],
        *,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        review: float = REVIEW_P,
    ) -> SearchResult:
        """Search with 2 to 8 different photos of the same item and return one result.

        The query is the mean of the photos' vectors. If the bundle verifies matches, each photo is compared with the
        gallery, and the greatest number of inliers counts. The threshold is the one that `retrieval calibrate
        --photos-per-query` set for this number of photos. Without one, the threshold of fewer photos is used: the
        status is then "extrapolated", the FPIR was not measured, and there are no p-values. Photos with the same
        vector count once. The other arguments are those of `search`.

        Raises
        ------
        ImageRefused
            If a photo cannot be used.
        InvalidParameter
            If an argument is invalid.
        """
        self._check_open()
        check_photos(images)
        check_arguments(images, top_k=top_k, where=where, review=review)
        started = time.perf_counter()
        read = [QueryPhoto.of_several(self.embedder, *each) for each in enumerate(images, 1)]
        decoded = time.perf_counter()
        made = self.embedder.embed_pixels(np.stack([photo.pixels for photo in read]))
        embedded = time.perf_counter()
        different = different_photos(made.vectors, read)
        query = Embeddings(mean_vectors(made.vectors[None, different]), made.certainties.mean(keepdims=True))
        described = {row + 1: read[row].features or b"" for row in different}
        served, (neighbours,) = self._neighbours(
            query.vectors, top_k, where, photos=len(different), features=[tuple(described.values())]
        )
        stages = {"decode": decoded - started, "embed": embedded - decoded, "search": time.perf_counter() - embedded}
        answers = Answers(self.bundle, self.gallery, where, explain, review)
        answer = answers.answer(query, neighbours, served, features=described)
        return replace(answer, timings_ms=self._timings_ms(stages, read))

    def _timings_ms(
        self, stages: dict[str, float], read: Sequence[QueryPhoto], *, queries: int = 1
    ) -> dict[str, float]:
        """Return the times of the stages per query in ms, with separate times for the verification."""
        if self._timer is not None:
            described, verified = sum(photo.seconds for photo in read), self._timer.take()
            stages = {**stages, "decode": stages["decode"] - described, "describe": described}
            stages |= {"search": stages["search"] - verified, "verify": verified}
        return {name: round(1e3 * seconds / queries, 3) for name, seconds in stages.items()}

    def search_regions(
        self,
        image: Source,
        regions: Regions = AUTO,
        *,
        top_k: int = 10,
        where: str | None = None,
        review: float = REVIEW_P,
    ) -> RegionsResult:
        """Return the catalogue items in a photo, each with its bounding box.

        `regions` is "auto" (overlapping windows), "detector", an `AutoRegions`, a `DetectorRegions`, or 1 to 64
        bounding boxes, which are searched one by one. Without a threshold for the same settings (`retrieval calibrate
        --regions`), that of whole photos is used, and the status is "unanchored".

        Raises
        ------
        ImageRefused, DetectorError
            If the photo or the detector cannot be used.
        InvalidParameter
            If an argument is invalid, or the bundle verifies matches and no bounding boxes are given.
        """
        self._check_open()
        check_arguments([image], top_k=top_k, where=where, review=review)
        policy = policy_of(regions, self.detector)
        search = RegionSearch(self.bundle, self.gallery, self.embedder, self._distance_form, self, policy)
        result = search.search(image, top_k=top_k, where=where, review=review)
        if self._timer is not None:
            self._timer.take()  # the times of a later search are its own
        return result

    def _check_open(self) -> None:
        if self._closed:
            raise GalleryError("the retriever is closed", remedy="Open it again: Retriever.open(BUNDLE, GALLERY)")

    def _neighbours(
        self,
        vectors: NDArray[np.float32],
        top_k: int,
        where: str | None,
        *,
        photos: int = 1,
        features: Sequence[Features] | None = None,
    ) -> tuple[Served, list[list[Neighbour]]]:
        """Search with the vectors (n, d) of queries of some photos; return their operating point and the items."""
        points: list[OperatingPoint] = []

        def within(stored: bytes | None) -> float:
            points.append(self.point_of(stored))
            return points[-1].threshold if points[-1].decides else math.inf  # every distance ranks

        version, found = self.gallery.search_version(
            vectors, top_k, where=where, distance_form=self._distance_form, within=within, features=features
        )
        rates = self.rates_at(version, points[-1]) if photos == 1 else None
        return Served(points[-1], version, rates, photos), found
