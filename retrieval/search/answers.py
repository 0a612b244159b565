"""Turn the neighbours of a query into an answer: where a match is decided, its reason and its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.location import AnyGallery
from index.search.distance import accepts
from index.snapshot import Neighbour
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.density import LocalDensity
from retrieval.bundle.embedder import Embeddings
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.threshold.error_rates import GalleryRates

from .looks import Look, Options
from .result import (
    BEYOND_THRESHOLD,
    FILTERED_OUT,
    GALLERY_EMPTY,
    MATCH,
    NO_MATCH,
    OUT_OF_DOMAIN,
    RANKED,
    UNCALIBRATED,
    Explanation,
    Match,
    Reason,
    SearchResult,
    VerifiedPhoto,
)

MOST_VERIFIED = 5  # items whose agreeing details are counted in an explanation


@dataclass(frozen=True)
class Served:
    """The operating point that decides queries in one gallery version, and the rates measured there."""

    point: OperatingPoint
    version: int
    rates: GalleryRates | None  # None if they were not measured: then there are no p-values
    status: str  # of the threshold, as in `SearchResult`

    def match(self, neighbour: Neighbour) -> Match:
        """Return a neighbour as a match, with its p-value."""
        return match_of(neighbour, None if self.rates is None else self.rates.p_value(neighbour.distance))

    def divided(self, neighbours: Sequence[Neighbour], review: float) -> tuple[tuple[Match, ...], tuple[Match, ...]]:
        """Return the matches, which are within the threshold, and the others whose p-value is at most `review`."""
        within = [accepts(neighbour.distance, self.point.threshold) for neighbour in neighbours]
        matches = tuple(self.match(near) for near, accepted in zip(neighbours, within, strict=True) if accepted)
        beyond = [self.match(near) for near, accepted in zip(neighbours, within, strict=True) if not accepted]
        return matches, tuple(match for match in beyond if match.p_value is not None and match.p_value <= review)


def match_of(neighbour: Neighbour, p_value: float | None = None) -> Match:
    """Return a neighbour as a match."""
    return Match(neighbour.item_id, neighbour.photo_id, neighbour.distance, dict(neighbour.metadata), p_value)


@dataclass(frozen=True)
class Answers:
    """Makes the answers of one search."""

    bundle: Bundle
    gallery: AnyGallery
    options: Options
    served: Served

    def answer(self, made: Embeddings, neighbours: Sequence[Neighbour], look: Look | None = None) -> SearchResult:
        """Return the answer to one query with vector (1, d), given its neighbours."""
        served, where = self.served, self.options.where
        point = served.point
        matches, review = served.divided(neighbours, self.options.review)
        return SearchResult(
            matches=matches,
            decision=MATCH if matches else NO_MATCH if point.decides else RANKED,
            reason="" if matches else self._reason(made.vectors, empty=not neighbours),
            threshold=point.threshold_or_none,
            nearest_distance=neighbours[0].distance if neighbours else None,
            certainty=float(made.certainties[0]),
            nearest=served.match(neighbours[0]) if neighbours else None,
            bundle_id=self.bundle.bundle_id,
            gallery_version=served.version,
            ranked=() if point.decides else tuple(served.match(n) for n in neighbours),
            threshold_status=served.status,  # type: ignore[arg-type]
            review=review,
            p_value_without_filter=where is not None and served.rates is not None,
            box=None if look is None else look.box,
            score=None if look is None else look.score,
            appearance=None if look is None else look.appearance,
            explanation=self._explanation(made.vectors, neighbours, look) if self.options.explain else None,
        )

    def _reason(self, vectors: NDArray[np.float32], *, empty: bool) -> Reason:
        """Return the reason for an answer without a match for one vector (1, d)."""
        if not self.served.point.decides:
            return UNCALIBRATED
        if empty:
            return GALLERY_EMPTY if self.options.where is None or not len(self.gallery) else FILTERED_OUT
        form = self.bundle.base_form
        if isinstance(form, LocalDensity) and form.is_outside(vectors)[0]:
            return OUT_OF_DOMAIN
        return BEYOND_THRESHOLD

    def _explanation(
        self, vectors: NDArray[np.float32], neighbours: Sequence[Neighbour], look: Look | None
    ) -> Explanation:
        """Return the details behind the answer to one vector (1, d)."""
        form, verifier = self.bundle.base_form, self.bundle.verifier
        (plain,) = self.gallery.search(vectors, 1, where=self.options.where)
        verified = None
        if verifier is not None and look is not None:
            stored = [(near, self.gallery.features_of(near.photo_id)) for near in neighbours[:MOST_VERIFIED]]
            verified = tuple(
                VerifiedPhoto(near.item_id, near.photo_id, int(verifier.inliers(look.features, [features])[0]))
                for near, features in stored
                if features is not None  # the photo was not removed meanwhile
            )
        return Explanation(
            form.form if isinstance(form, LocalDensity) else form.key,
            float(form.densities(vectors)[0]),
            match_of(plain[0]) if plain else None,
            verified,
        )
