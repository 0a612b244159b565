"""Turn the neighbours of a query into an answer: where a match is decided, its reason and its evidence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from index.gallery import Gallery
from index.location import AnyGallery
from index.search.distance import accepts
from index.snapshot import Neighbour
from retrieval.bundle.bundle import Bundle
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
    PERHAPS,
    RANKED,
    TWINS,
    UNCALIBRATED,
    Decision,
    Evidence,
    Explanation,
    Match,
    Place,
    Reason,
    SearchResult,
)

EXPLAINED = 5  # items in an explanation


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
        """Return the matches, which are within the threshold, and the others whose p-value is at most `review`.

        Of two items that look like one under two ids none is a match, but both are for review.
        """
        listed = [self.match(neighbour) for neighbour in neighbours]

        def is_match(match: Match) -> bool:
            return bool(accepts(match.distance, self.point.threshold))

        def is_near(match: Match) -> bool:
            return match.p_value is not None and match.p_value <= review

        if self.are_twins(neighbours):
            return (), (*listed[:2], *(match for match in listed[2:] if is_match(match) or is_near(match)))
        matches = tuple(filter(is_match, listed))
        others = tuple(match for match in listed if is_near(match) and not is_match(match))
        if not matches and not others and self.is_perhaps(neighbours):
            others = (listed[0],)
        return matches, others

    def is_perhaps(self, neighbours: Sequence[Neighbour]) -> bool:
        """Return whether the first item is worth a question, by the rule of the operating point."""
        rule = self.point.evidence.get("perhaps") if self.rates is not None else None
        return bool(neighbours and rule and accepts(neighbours[0].distance, rule["within"]))

    def are_twins(self, neighbours: Sequence[Neighbour]) -> bool:
        """Return whether the first two items look like one under two ids and are near enough for a question."""
        pair = frozenset(neighbour.item_id for neighbour in neighbours[:2])
        if self.rates is None or pair not in self.rates.twins:
            return False
        return bool(accepts(neighbours[0].distance, self.point.threshold)) or self.is_perhaps(neighbours)


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
        served, top_k = self.served, self.options.top_k
        point, twins = served.point, served.are_twins(neighbours)
        matches, review = served.divided(neighbours, self.options.review)
        decision: Decision = MATCH if matches else NO_MATCH if point.decides else RANKED
        if decision == NO_MATCH and (twins or served.is_perhaps(neighbours)):
            decision = PERHAPS
        return SearchResult(
            matches=matches[:top_k],
            decision=decision,
            reason="" if matches else TWINS if twins else self._reason(neighbours),
            threshold=point.threshold_or_none,
            nearest_distance=neighbours[0].distance if neighbours else None,
            certainty=float(made.certainties[0]),
            nearest=served.match(neighbours[0]) if neighbours else None,
            bundle_id=self.bundle.bundle_id,
            gallery_version=served.version,
            ranked=() if point.decides else tuple(served.match(n) for n in neighbours[:top_k]),
            threshold_status=served.status,  # type: ignore[arg-type]
            review=review[: max(0, (max(2, top_k) if twins else top_k) - len(matches))],
            p_value_without_filter=self.options.where is not None and served.rates is not None,
            box=None if look is None else look.box,
            appearance=None if look is None else look.appearance,
            explanation=self._explanation(neighbours, look) if self.options.explain else None,
        )

    def _explanation(self, neighbours: Sequence[Neighbour], look: Look | None) -> Explanation:
        """Return the evidence behind an answer."""
        shown = [(near, near.evidence) for near in neighbours[:EXPLAINED]]
        items = tuple(
            Evidence(near.item_id, near.photo_id, evidence.photo, evidence.mean, evidence.inliers)
            for near, evidence in shown
            if evidence is not None
        )
        return Explanation(items, self._places(neighbours[0], look) if items and items[0].inliers else ())

    def _places(self, first: Neighbour, look: Look | None) -> tuple[Place, ...]:
        """Return where details agree with the photo of the first item; none if it was changed since the search."""
        verifier = self.bundle.verifier
        if verifier is None or look is None or look.box is not None or not isinstance(self.gallery, Gallery):
            return ()
        now = self.gallery.snapshot()
        (own,) = now.photos_of(list(self.gallery.item_numbers([first.item_id]).values())) or ([],)
        for position in own:
            if now.photo(int(position))[0] == first.photo_id:
                return tuple(verifier.places(look.features, now.features(np.array([position]))[0]))
        return ()

    def _reason(self, neighbours: Sequence[Neighbour]) -> Reason:
        """Return the reason for an answer without a match."""
        if not self.served.point.decides:
            return UNCALIBRATED
        if not neighbours:
            return GALLERY_EMPTY if self.options.where is None or not len(self.gallery) else FILTERED_OUT
        return BEYOND_THRESHOLD
