"""Turn the neighbours of a query into a search result: the decision, its reason and its evidence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.location import AnyGallery
from index.snapshot import Neighbour
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.density import LocalDensity
from retrieval.bundle.embedder import Embeddings
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.threshold.gallery_points import threshold_status

from .explanation import explanation_of, verified_photos
from .result import (
    BEYOND_THRESHOLD,
    FILTERED_OUT,
    GALLERY_EMPTY,
    LOW_CERTAINTY,
    MATCH,
    NO_MATCH,
    OUT_OF_DOMAIN,
    RANKED,
    UNCALIBRATED,
    SearchResult,
)
from .served import Served


@dataclass(frozen=True)
class Answers:
    """Makes the results of searches in a gallery."""

    bundle: Bundle
    gallery: AnyGallery
    where: str | None  # filter of the searches
    explain: bool  # whether to add explanations
    review: float  # largest p-value of the items for review

    def answer(
        self,
        made: Embeddings,
        neighbours: Sequence[Neighbour],
        served: Served,
        *,
        features: Mapping[int, bytes] | None = None,
    ) -> SearchResult:
        """Return the result for one query with vector (1, d), given its neighbours in a gallery version.

        `features` are those of the query's photos by their number, if the bundle verifies matches.
        """
        certainty, point = float(made.certainties[0]), served.point
        sure = certainty >= point.min_certainty
        matches = served.matches(neighbours) if sure else ()
        explained = None
        if self.explain:
            explained = explanation_of(self.bundle, self.gallery, made.vectors, self.where)
            explained |= {"verified": verified_photos(self.bundle, self.gallery, features, neighbours)}
        return SearchResult(
            matches=matches,
            decision=MATCH if matches else NO_MATCH if point.decides else RANKED,
            reason="" if matches else self._reason(made.vectors, point, sure=sure, empty=not neighbours),
            threshold=point.threshold_or_none,
            nearest_distance=neighbours[0].distance if neighbours else None,
            certainty=certainty,
            nearest=served.match(neighbours[0]) if neighbours else None,
            bundle_id=self.bundle.bundle_id,
            gallery_version=served.version,
            ranked=() if point.decides else tuple(served.match(n) for n in neighbours),
            threshold_status=threshold_status(point, self.bundle, extrapolated=served.point_photos < served.photos),
            review=served.review(neighbours, self.review) if sure else (),
            p_value_without_filter=self.where is not None and served.rates is not None,
            photos=served.photos,
            threshold_photos=served.point_photos,
            explanation=explained,
        )

    def _reason(self, vectors: NDArray[np.float32], point: OperatingPoint, *, sure: bool, empty: bool) -> str:
        """Return the reason for an answer without a match for one vector (1, d)."""
        if not point.decides:
            return UNCALIBRATED
        if empty:
            return GALLERY_EMPTY if self.where is None or not len(self.gallery) else FILTERED_OUT
        if not sure:
            return LOW_CERTAINTY
        form = self.bundle.base_form
        if isinstance(form, LocalDensity) and form.is_outside(vectors)[0]:
            return OUT_OF_DOMAIN
        return BEYOND_THRESHOLD
