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

from index.contents import POINT
from index.location import open_gallery
from index.neighbours import Neighbour
from index.protocol import GalleryProtocol
from index.shell import command
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embeddings
from retrieval.bundle.local_density import LocalDensity
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.bundle.served_point import served_point, threshold_status
from retrieval.threshold.drawn_distances import GalleryRates
from retrieval.threshold.forecast import FpirForecast, fpir_forecast

from .arguments import check_arguments
from .errors import BundleMismatch, GalleryError, ImageRefused
from .explanation import explanation_of
from .images import Source
from .query_photo import QueryPhoto
from .result import (
    BEYOND_THRESHOLD,
    FILTERED_OUT,
    GALLERY_EMPTY,
    LOW_CERTAINTY,
    MATCH,
    NO_MATCH,
    OUT_OF_DOMAIN,
    RANKED,
    REVIEW_P,
    UNCALIBRATED,
    SearchResult,
)
from .served import Served


class Retriever:
    """Searches a gallery with the model and threshold of a bundle. Thread-safe.

    As a context manager it closes itself on exit, together with the gallery if `open` opened it.
    """

    def __init__(self, bundle: Bundle, gallery: GalleryProtocol, *, threads: int = 1) -> None:
        require_match(bundle, gallery)
        self.bundle = bundle
        self.gallery = gallery
        self.embedder = bundle.embedder(threads=threads)
        self._last_point: tuple[bytes | None, OperatingPoint] = None, bundle.operating_point
        self._rates: dict[int, GalleryRates | None] = {}
        self._forecasts: dict[int, FpirForecast | None] = {}
        self._owns_gallery = False
        self._closed = False

    @classmethod
    def open(
        cls, bundle: str | Path, gallery: str | Path, *, threads: int = 1, trust: Sequence[str | Path] = ()
    ) -> Retriever:
        """Open a bundle and a gallery.

        Raises BundleMismatch if another model made the gallery. If `trust` lists public key files, one of the keys
        must have signed the bundle; otherwise BundleUntrusted is raised.
        """
        opened = Bundle.open(bundle, trust=trust)
        place = open_gallery(gallery, read_only=True)
        try:
            retriever = cls(opened, place, threads=threads)
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
        top_k:
            Maximum number of matches and candidates for review together, 1 to 100.
        where:
            Filter over the gallery's declared columns (`index.filters`).
        explain:
            Add an explanation to the result. This costs a second search, by the plain distance.
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
        (answer,) = self.search_batch([image], top_k=top_k, where=where, explain=explain, review=review)
        if isinstance(answer, ImageRefused):
            raise answer
        return answer

    def search_batch(
        self,
        images: Sequence[Source],
        *,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        review: float = REVIEW_P,
    ) -> list[SearchResult | ImageRefused]:
        """Search with up to 64 photos at once and return one result per photo.

        A photo that cannot be used gets an `ImageRefused` in its place. The other arguments are those of `search`.
        Each result's timings are the batch's timings divided by the number of photos.
        """
        if self._closed:
            raise GalleryError("the retriever is closed", remedy="Open it again: Retriever.open(BUNDLE, GALLERY)")
        check_arguments(images, top_k=top_k, where=where, review=review)
        started = time.perf_counter()
        photos = [QueryPhoto.read(self.embedder, image) for image in images]
        read = [photo for photo in photos if not isinstance(photo, ImageRefused)]
        if not read:
            return [photo for photo in photos if isinstance(photo, ImageRefused)]
        pixels = np.stack([photo.pixels for photo in read])
        decoded = time.perf_counter()
        made = self.embedder.embed_pixels(pixels)
        embedded = time.perf_counter()
        points: list[OperatingPoint] = []

        def within(stored: bytes | None) -> float:
            points.append(self._served(stored))
            return points[-1].threshold if points[-1].decides else math.inf  # every distance ranks

        version, found = self.gallery.search_version(
            made.vectors, top_k, where=where, distance_form=self.bundle.distance_form, within=within
        )
        served = Served(points[-1], version, self._rates_at(version, points[-1]))
        stages = {"decode": decoded - started, "embed": embedded - decoded, "search": time.perf_counter() - embedded}
        shares = {name: round(1e3 * seconds / len(read), 3) for name, seconds in stages.items()}
        each = (Embeddings(made.vectors[[row]], made.certainties[[row]]) for row in range(len(found)))
        answers = (
            self._answer(photo, neighbours, where, served, explain=explain, review=review)
            for photo, neighbours in zip(each, found, strict=True)
        )
        return [
            photo
            if isinstance(photo, ImageRefused)
            else replace(next(answers), timings_ms=dict(shares), appearance=photo.appearance)
            for photo in photos
        ]

    def _answer(
        self,
        made: Embeddings,
        neighbours: Sequence[Neighbour],
        where: str | None,
        served: Served,
        *,
        explain: bool,
        review: float,
    ) -> SearchResult:
        """Return the result for one photo with vector (1, d), given its neighbours in a gallery version."""
        certainty, point = float(made.certainties[0]), served.point
        sure = certainty >= point.min_certainty
        matches = served.matches(neighbours) if sure else ()
        return SearchResult(
            matches=matches,
            decision=MATCH if matches else NO_MATCH if point.decides else RANKED,
            reason="" if matches else self._reason(made.vectors, where, point, sure=sure, empty=not neighbours),
            threshold=point.threshold_or_none,
            nearest_distance=neighbours[0].distance if neighbours else None,
            certainty=certainty,
            nearest=served.match(neighbours[0]) if neighbours else None,
            bundle_id=self.bundle.bundle_id,
            gallery_version=served.version,
            ranked=() if point.decides else tuple(served.match(n) for n in neighbours),
            threshold_status=threshold_status(point, self.bundle),
            review=served.review(neighbours, review) if sure else (),
            p_value_without_filter=where is not None and served.rates is not None,
            explanation=explanation_of(self.bundle, self.gallery, made.vectors, where) if explain else None,
        )

    def _reason(
        self, vectors: NDArray[np.float32], where: str | None, point: OperatingPoint, *, sure: bool, empty: bool
    ) -> str:
        """Return the reason for an answer without a match for one vector (1, d)."""
        if not point.decides:
            return UNCALIBRATED
        if empty:
            return GALLERY_EMPTY if where is None or not len(self.gallery) else FILTERED_OUT
        if not sure:
            return LOW_CERTAINTY
        form = self.bundle.base_form
        if isinstance(form, LocalDensity) and form.is_outside(vectors)[0]:
            return OUT_OF_DOMAIN
        return BEYOND_THRESHOLD

    @property
    def point(self) -> OperatingPoint:
        """The operating point that serves: the gallery's, if it was set with this bundle, else the bundle's."""
        return self._served(self.gallery.kept(POINT))

    def _served(self, stored: bytes | None) -> OperatingPoint:
        """Return the operating point that serves, given the one that the gallery keeps."""
        last = self._last_point
        if stored is not last[0] and stored != last[0]:
            last = self._last_point = stored, served_point(stored, self.bundle)
        return last[1]

    def rates(self) -> GalleryRates | None:
        """Return the rates measured in the newest version of the gallery, None if it is not anchored."""
        return self._rates_at(self.gallery.version, self.point)

    def _rates_at(self, version: int, point: OperatingPoint) -> GalleryRates | None:
        """Return the rates of a version that is the newest or was searched before, else None."""
        if version not in self._rates and version == self.gallery.version:
            rates = GalleryRates.read(self.gallery, point, self.bundle.draws_id)
            if version == self.gallery.version:  # nothing changed meanwhile
                self._rates = {version: rates}
        return self._rates.get(version)

    @property
    def unmeasured(self) -> bool:
        """Whether the gallery's own threshold serves, and its FPIR in the newest version is unknown."""
        return self.point is not self.bundle.operating_point and self.rates() is None

    def fpir_forecast(self) -> FpirForecast | None:
        """Return the expected FPIR at the gallery's current size, None if it was measured or the bundle cannot tell."""
        if self.point is not self.bundle.operating_point:
            return None
        items = self.gallery.items
        if items not in self._forecasts:
            self._forecasts = {items: fpir_forecast(self.bundle, items)}
        return self._forecasts[items]


def require_match(bundle: Bundle, gallery: GalleryProtocol) -> None:
    """Raise BundleMismatch if another model made the gallery's vectors."""
    if gallery.embedding_id != bundle.embedding_id:
        raise BundleMismatch(
            f"the gallery {gallery.path} was made by another model than the bundle {bundle.path}",
            remedy=f"Index the photos again: {command('index', bundle.path, 'PHOTOS', '-o', 'NEW_GALLERY')}",
        )
