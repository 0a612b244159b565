"""Answers from the neighbours of a query: the decision on a match, its reason and its evidence."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from index.search.distance import accepts
from index.search.left_out import CLOSE
from index.search.neighbours import Neighbour
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embeddings
from retrieval.inspect.duplicates import is_copy
from retrieval.measuring.point import Point
from retrieval.measuring.rates import VersionRates

from .looks import Look, Options
from .result import (
    BEYOND_THRESHOLD,
    DAMAGED_PHOTO,
    FILTERED_OUT,
    GALLERY_EMPTY,
    MATCH,
    NO_MATCH,
    PERHAPS,
    RANKED,
    SHARED_PHOTO,
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
class Ranking:
    """The neighbours of one query as matches, best first, and which of them the threshold accepts."""

    matches: tuple[Match, ...]
    within: tuple[bool, ...]  # the threshold
    near: tuple[bool, ...]  # the distance up to which a question is worth it
    are_twins: bool  # whether the first two items look like one under two ids, and are worth a question
    sharing: tuple[int, ...] = ()  # places of the items that have the nearest photo, if it is worth a question

    @classmethod
    def of(cls, neighbours: Sequence[Neighbour], point: Point, rates: VersionRates | None) -> Ranking:
        """Return neighbours as the operating point of their gallery and its rates decide."""
        distances = np.array([neighbour.distance for neighbour in neighbours])
        within = accepts(distances, point.threshold).tolist()
        p_values = [None] * len(neighbours) if rates is None else rates.p_values(distances).tolist()
        matches = tuple(map(match_of, neighbours, p_values))
        perhaps = point.perhaps if rates is not None else None
        near = accepts(distances, -math.inf if perhaps is None else perhaps.within).tolist()
        pair = frozenset(match.item_id for match in matches[:2])
        are_twins = rates is not None and pair in rates.twins and (within[0] or near[0])
        return cls(matches, tuple(within), tuple(near), are_twins)

    @property
    def is_perhaps(self) -> bool:
        """Whether the first item is worth a question if it is no match."""
        return any(self.near[:1])

    def asked(self, review: float | None) -> tuple[Match, ...]:
        """Return the items for review in an answer that may have no match: those that share a photo come first."""
        matches, others = replace(self, are_twins=False).divided(review)
        first = [self.matches[place] for place in self.sharing]
        return (*first, *(match for match in (*matches, *others) if match not in first))

    def divided(self, review: float | None) -> tuple[tuple[Match, ...], tuple[Match, ...]]:
        """Return the matches, which are within the threshold, and the items for review: p-values of at most `review`.

        Without `review`, items for review lie up to the distance at which a question is worth it. Of two items that
        look like one under two ids, neither is a match, but both are for review.
        """
        pairs = list(zip(self.matches, self.within, strict=True))
        near = self.near
        if review is not None:
            near = tuple(match.p_value is not None and match.p_value <= review for match in self.matches)
        if self.are_twins:
            shown = (match for (match, within), is_near in zip(pairs[2:], near[2:], strict=True) if within or is_near)
            return (), (*self.matches[:2], *shown)
        matches = tuple(match for match, within in pairs if within)
        others = tuple(match for (match, within), is_near in zip(pairs, near, strict=True) if is_near and not within)
        if not matches and not others and self.is_perhaps:
            others = self.matches[:1]
        return matches, others


def match_of(neighbour: Neighbour, p_value: float | None = None) -> Match:
    """Return a neighbour as a match."""
    return Match(neighbour.item_id, neighbour.photo_id, neighbour.distance, dict(neighbour.metadata), p_value)


@dataclass(frozen=True)
class Answers:
    """Makes the answers of one search, by the operating point of the gallery version that was searched."""

    bundle: Bundle
    photos: Any  # of the version that was searched, as `snapshot` of its gallery returns them
    thumbnail: Callable[[str], bytes | None]
    options: Options
    point: Point
    version: int
    rates: VersionRates | None  # None if they were not measured: then there are no p-values

    def answer(self, made: Embeddings, neighbours: Sequence[Neighbour], look: Look | None = None) -> SearchResult:
        """Return the answer to one query with vector (1, d), given its neighbours."""
        point, top_k = self.point, self.options.top_k
        ranking = Ranking.of(neighbours, point, self.rates)
        if any((*ranking.within[:1], *ranking.near[:1])):
            ranking = replace(ranking, sharing=self._sharing(neighbours))
        matches, review = ranking.divided(self.options.review)
        damaged = look is not None and look.damaged and point.decides
        if unsure := damaged or bool(ranking.sharing):
            matches, review = (), ranking.asked(self.options.review)
        norm = float(made.certainties[0])
        decision: Decision = MATCH if matches else NO_MATCH if point.decides else RANKED
        if decision == NO_MATCH and (ranking.are_twins or ranking.is_perhaps or (unsure and review)):
            decision = PERHAPS
        least = max(len(ranking.sharing), 2 * ranking.are_twins)
        return SearchResult(
            matches=matches[:top_k],
            decision=decision,
            reason="" if matches else DAMAGED_PHOTO if damaged else self._reason(neighbours, ranking),
            threshold=point.threshold_or_none,
            nearest_distance=neighbours[0].distance if neighbours else None,
            nearest=ranking.matches[0] if neighbours else None,
            bundle_id=self.bundle.bundle_id,
            gallery_version=self.version,
            ranked=() if point.decides else ranking.matches[:top_k],
            threshold_status=point.served_status,  # type: ignore[arg-type]
            review=review[: max(0, max(least, top_k) - len(matches))],
            p_value_without_filter=self.options.where is not None and self.rates is not None,
            box=None if look is None else look.box,
            look=None if look is None else look.name,
            norm=norm if self.bundle.tells_norms else None,
            embedding_norm=norm,
            appearance=None if look is None else look.appearance,
            explanation=self._explanation(neighbours, look) if self.options.explain else None,
        )

    def _sharing(self, neighbours: Sequence[Neighbour]) -> tuple[int, ...]:
        """Return the places of the items that have the nearest photo, or a copy of it; () if only the first has it."""
        first = neighbours[0]
        near = [n for n, other in enumerate(neighbours) if abs(other.photo_distance - first.photo_distance) <= CLOSE]
        if len(near) < 2:
            return ()
        searched = self.photos.with_pictures(partial(is_copy, self.thumbnail))
        rows = searched.positions([neighbours[place].photo_id for place in near])
        places = np.array(near)[searched.copies(np.full(len(near), rows[0]), rows)].tolist()
        return tuple(places) if len({0, *places}) > 1 else ()

    def _explanation(self, neighbours: Sequence[Neighbour], look: Look | None) -> Explanation:
        """Return the evidence behind an answer."""
        items = tuple(
            Evidence(near.item_id, near.photo_id, near.photo_distance, near.mean_distance, near.inliers)
            for near in neighbours[:EXPLAINED]
        )
        return Explanation(items, self._places(neighbours[0], look) if items and items[0].inliers else ())

    def _places(self, first: Neighbour, look: Look | None) -> tuple[Place, ...]:
        """Return where details agree with the photo of the first item."""
        verifier = self.bundle.verifier
        if verifier is None or look is None or look.box is not None:
            return ()
        (features,) = self.photos.features(self.photos.positions([first.photo_id]))
        return tuple(verifier.places(look.features, features))

    def _reason(self, neighbours: Sequence[Neighbour], ranking: Ranking) -> Reason:
        """Return the reason for an answer without a match."""
        if ranking.sharing or ranking.are_twins:
            return SHARED_PHOTO if ranking.sharing else TWINS
        if not self.point.decides:
            return UNCALIBRATED
        if not neighbours:
            return GALLERY_EMPTY if self.options.where is None or not self.photos.size else FILTERED_OUT
        return BEYOND_THRESHOLD
