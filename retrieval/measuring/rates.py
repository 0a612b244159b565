"""Rates: error rates of a threshold by its draws, the distances that are worth a question, and the assumptions.

Shapes: n draws.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from index.search.distance import accepts
from retrieval.errors import counted
from retrieval.metrics.bounds import CONFIDENCE, items_needed
from retrieval.metrics.consistency import consistency
from retrieval.metrics.identification import SearchScores, identification_rates

from .draws import LABELLED, NAMES, OWN, PROBE, REFERENCE, SETTING, TWICE, UNKNOWN, AllDraws, Draws
from .fpir import LEAST_ITEMS, DrawnDistances, Floats, setting_draws
from .point import BUNDLE, CERTIFIED, ESTIMATED, GALLERY, Basis, Perhaps, Point, Rates
from .twins import suspected_twins

CROSS_FITTED = "The five models that were each fitted without a fifth of the items stand for the model that serves."
TOLERANCE = 1e-9  # of an upper bound
UNKNOWN_SHARES = (0.1, 0.5, 0.9)  # shares of queries for unknown items, to report precision at
LABELLED_QUERIES, CATALOGUE_PHOTOS = "labelled queries", "catalogue photos"  # kinds of mated queries
CALIBRATION_PHOTOS = "calibration photos"  # of a bundle
ASKED = 2  # times the FPIR to expect: the p-value up to which an item is worth a question
# least share of questions about the right item, by kind of the queries; photos of one session resemble each other
RIGHT = {LABELLED_QUERIES: 0.5, CATALOGUE_PHOTOS: 0.6, CALIBRATION_PHOTOS: 0.6}


def rated(point: Point, draws: AllDraws, drawn: DrawnDistances, mated: Mated | None, *, items: int) -> Point:
    """Return a point with its rates, its basis, and the distance up to which a question is worth it.

    Parameters
    ----------
    draws, drawn, mated:
        Draws of the collection, and what follows from them with the query shift of the point.
    items:
        Number of items in the collection.
    """
    threshold, target_fpir, shift = point.threshold, point.target_fpir, point.shift
    used, own = setting_draws(draws.sources, fitted=draws.fitted), draws.get(OWN)
    rates = Rates(
        fpir=drawn.fpir(threshold), fpir_expected=drawn.expected(threshold), fpir_upper=drawn.fpir_upper(threshold)
    )
    basis = Basis(
        gallery_items=items,
        gallery_version=draws.version,
        items_drawn=drawn.items,
        cross_fitted=drawn.cross_fitted,
        sources={name: len(set(used[name].groups)) for name in SETTING if name in used and len(used[name])},
        looks=TWICE if draws.looks else None,
        duplicates=int(own.is_copied.sum()),
        twins=tuple(suspected_twins(own)),
        assumptions=tuple(
            assumptions(used, shift_items=shift.items if OWN in used else 0, cross_fitted=drawn.cross_fitted > 0)
        ),
    )
    if mated is not None:
        rates = mated.rates(rates, threshold, drawn)
    if point.origin == BUNDLE:
        basis = replace(
            basis,
            confidence=CONFIDENCE,
            fpir_on_other_half=drawn.on_other_half(target_fpir),
            clusters=drawn.items,
            clusters_are="groups of items" if _has_groups(used) else "items",
            items_needed=items_needed(target_fpir),
        )
    return replace(point, rates=rates, basis=basis, perhaps=perhaps_of(drawn, mated, threshold))


def _has_groups(sources: Mapping[str, Draws]) -> bool:
    return any((draws.groups != draws.items).any() for draws in sources.values())


@dataclass(frozen=True)
class Mated:
    """Draws whose item has another photo in the gallery. They measure how many photos find their item."""

    photos: str  # kind of the queries
    draws: Draws
    scores: SearchScores
    right: Floats  # distances (n,) of own and labelled draws that find the right item: labelled draws may be few

    @classmethod
    def of(cls, sources: Mapping[str, Draws], *, gallery_items: int, least_items: int = LEAST_ITEMS) -> Mated | None:
        """Return labelled queries if they are of enough items, else own draws; None if no item has another photo."""
        labelled = LABELLED in sources and len(set(sources[LABELLED].items)) >= least_items
        own = OWN if OWN in sources else PROBE
        draws = sources.get(LABELLED if labelled else own, Draws.none())
        draws = draws.where(np.isfinite(draws.own))
        if not len(draws):
            return None
        scores = SearchScores(draws.items, draws.own, draws.distances, gallery_items, draws.wrong)
        both = [sources[name] for name in (own, LABELLED) if name in sources]
        right = np.concatenate([each.own[np.isinf(each.wrong)] for each in both])
        kind = LABELLED_QUERIES if labelled else CATALOGUE_PHOTOS if own == OWN else CALIBRATION_PHOTOS
        return cls(kind, draws, scores, right)

    def rates(self, drawn_rates: Rates, threshold: float, drawn: DrawnDistances) -> Rates:
        """Return rates with those of mated queries. The TPIR is None if only fold models searched and found nothing."""
        unknown = drawn.cross_fitted > 0 and not (self.right <= threshold).any()
        fpir = drawn.expected(threshold)
        rates = identification_rates(self.scores, threshold)
        return replace(
            drawn_rates,
            tpir=None if unknown else rates.tpir,
            tpir_of=None if unknown else self.photos,
            closest_is_right=self.scores.recall,
            misidentification=rates.misidentification,
            fnir_any_rank=rates.fnir_any_rank,
            precision={
                f"{share:g}": precision(rates.tpir, rates.misidentification, fpir, unknown=share)
                for share in ([] if unknown else UNKNOWN_SHARES)
            },
            queries=rates.queries,
            items=len(np.unique(self.draws.items)),
            consistency=None if unknown else asdict(consistency(self.scores, threshold)),
        )


def perhaps_of(drawn: DrawnDistances, mated: Mated | None, threshold: float) -> Perhaps | None:
    """Return the distance up to which the first item is worth a question, None if it is right too rarely.

    The p-value there is at most twice the FPIR to expect, so that unknown items are asked about at most as often as
    they match. The item must be right often enough, with as many searches for known items as for unknown ones.
    """
    if mated is None:
        return None
    within = max(threshold, drawn.within_p_value(ASKED * drawn.expected(threshold)))
    scores = mated.scores
    first, is_right = np.minimum(scores.correct, scores.misled), np.isfinite(scores.correct)
    asked = (first > threshold) & accepts(first, within)
    known, unknown = float(asked.mean()), drawn.fpir(within) - drawn.fpir(threshold)
    if not asked.any():
        return None
    right = float((asked & is_right).mean()) / (known + unknown)
    if right < RIGHT[mated.photos]:
        return None
    return Perhaps(within, right, int(asked.sum()), known, unknown, mated.photos)


def precision(tpir: float, misidentification: float, fpir: float, *, unknown: float) -> float | None:
    """Return the share of answers with a match whose first item is right, for a share of queries for unknown items."""
    right, wrong = (1 - unknown) * tpir, (1 - unknown) * misidentification + unknown * fpir
    return right / (right + wrong) if right + wrong else None


def assumptions(sources: Collection[str], *, shift_items: int = 0, cross_fitted: bool = False) -> list[str]:
    """Return what a threshold assumes, in plain sentences.

    `sources` are the sources of the draws that set it, PROBE alone for the threshold of a bundle. The query shift was
    measured on `shift_items` items, 0 if it was not measured. `cross_fitted` draws are by fold models.
    """
    if OWN not in sources:
        told = "the labelled queries" if {LABELLED, UNKNOWN} & set(sources) else "the calibration photos of the bundle"
        photos = f"Users take photos like {told}."
    elif shift_items:
        photos = f"Users' photos differ from catalogue photos as measured on {counted(shift_items, 'item')}."
    else:
        photos = "Users' photos look like catalogue photos; this was not measured"
        few = f", because the labelled photos show fewer than {LEAST_ITEMS} items that the model was not fitted on"
        photos += f"{few if LABELLED in sources else ''}."
    drawn = "the items of this catalogue" if {OWN, LABELLED} & set(sources) else "the calibration items of the bundle"
    return [
        f"Unknown items are like {drawn}: of the same families, in similar shares. Other items are not covered.",
        photos,
        "No item is in the catalogue under two ids, unless both are of one group or have a copy of the same photo.",
        "The bundle's list of items that the model was fitted on is complete.",
        *([CROSS_FITTED] if cross_fitted else []),
    ]


def point_of(drawn: DrawnDistances, target_fpir: float, mated: Mated | None, *, certify: bool) -> Point:
    """Return the point with the greatest threshold for a target, certified if `certify` is set and it can be.

    It does not decide if there are too few draws for the target.
    """
    limit = drawn.limit(target_fpir, certified=True) if certify else None
    status = ESTIMATED if limit is None else CERTIFIED
    limit = drawn.limit(target_fpir, certified=False) if limit is None else limit
    if limit is None or limit < 0:
        return Point.uncalibrated(target_fpir, origin=GALLERY)
    rates = Rates(fpir_expected=drawn.expected(limit), fpir_upper=drawn.fpir_upper(limit))
    return Point(limit, status, target_fpir, GALLERY, rates, perhaps=perhaps_of(drawn, mated, limit))


@dataclass(frozen=True)
class VersionRates:
    """FPIR in one version of a collection."""

    drawn: DrawnDistances  # of all sources
    mated: Mated | None = None  # searches for items that are there
    twins: frozenset[frozenset[str]] = frozenset()  # pairs of items that look like one item under two ids
    same_item: float = 0.0  # median plain distance from a photo to the nearest other photo of its item, or 0
    kinds: Mapping[str, tuple[VersionRates, Point]] = field(default_factory=dict)  # for other kinds of query

    @classmethod
    def of(cls, kept: AllDraws, point: Point) -> VersionRates | None:
        """Return the rates of draws with the query shift of a point, None if there are too few items."""
        drawn = DrawnDistances.of(kept.sources, shift=point.shift, without=kept.fitted)
        if drawn.items < LEAST_ITEMS:
            return None
        own = kept.get(OWN)
        apart = own.own_plain[np.isfinite(own.own_plain)]
        rates = cls(
            drawn,
            Mated.of(kept.sources, gallery_items=drawn.items),
            twins=frozenset(map(frozenset, suspected_twins(own))),
            same_item=float(np.median(apart)) if len(apart) else 0.0,
        )
        kinds = {}
        for name in kept.sources.keys() - {*SETTING, REFERENCE}:
            own_kind = {OWN: kept.sources[name]}
            shift = None if name == NAMES else point.shift  # of photos
            of_kind = DrawnDistances.of(own_kind, shift=shift, without=kept.fitted)
            if of_kind.items >= LEAST_ITEMS:
                mated = Mated.of(own_kind, gallery_items=drawn.items)
                set_point = point_of(of_kind, point.target_fpir, mated, certify=point.status == CERTIFIED)
                kinds[name] = replace(rates, drawn=of_kind, mated=mated), set_point
        return replace(rates, kinds=kinds)

    def fpir(self, threshold: float) -> float:
        """Return the FPIR of a threshold."""
        return self.drawn.fpir(threshold)

    def fpir_upper(self, threshold: float) -> float:
        """Return the upper 95 % bound on the FPIR."""
        return self.drawn.fpir_upper(threshold)

    def expected(self, threshold: float) -> float:
        """Return the FPIR to expect of new items at a threshold."""
        return self.drawn.expected(threshold)

    def broken(self, point: Point) -> bool:
        """Return whether a point breaks its promise.

        The bound of a certified point exceeds the target, or the FPIR to expect of an estimated point exceeds it by
        more than its one-sided 95 % error.
        """
        if point.status == CERTIFIED:
            return self.drawn.fpir_upper(point.threshold) > point.target_fpir + TOLERANCE
        return self.drawn.exceeds(point.threshold, point.target_fpir)

    def shared(self, point: Point, queries: int) -> Point:
        """Return the point for each of several queries that share the target FPIR of a point.

        The target is divided by their number, and the threshold is the greatest that the same draws allow for it, at
        most that of the point. The new point does not decide if the draws do not support so low a target.
        """
        found = point_of(self.drawn, point.target_fpir / queries, self.mated, certify=point.status == CERTIFIED)
        return replace(found, threshold=min(found.threshold, point.threshold)) if found.decides else found

    def to_dict(self, point: Point) -> dict[str, Any]:
        """Return the rates of a point in this version as plain JSON values."""
        return {
            "fpir": self.fpir(point.threshold),
            "fpir_expected": self.expected(point.threshold),
            "fpir_upper": self.fpir_upper(point.threshold),
            "items": self.drawn.items,
            "broken": self.broken(point),
        }

    def p_values(self, distances: Floats) -> Floats:
        """Return the rates at which an unknown item comes at least as close (n,)."""
        return self.drawn.p_values(distances)
