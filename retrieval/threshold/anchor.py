"""Anchoring: set the threshold in the gallery that is searched, from its draws.

A draw is a search of this gallery for an item that is not in it (`index.search.leave_one_out`). Own draws exclude items
that the model was fitted on. All draws are one sample: own ones, moved by the query shift where labelled photos show
one, labelled photos, and calibration photos of the bundle (`setting_draws`). The share of draws within a threshold,
with items weighted equally, estimates its FPIR in this gallery; items of one group count as one. The estimate assumes
that unknown items resemble the drawn items, so that their distances are exchangeable. A threshold that accepts a share
of a small number of draws accepts a larger share of new items on average. An estimated threshold therefore accepts
items that are left out of the gallery in at most the target share of searches (`DrawnDistances.limit`).

The target is *certified* if the upper 95 % Clopper-Pearson bound over the effective number of independent items keeps
it (`DrawnDistances.design_effect`), and *estimated* if only the observed rate does. With few items, a certified
threshold finds little, so targets are certified from 300 independent items on, or on request.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from index.search.leave_one_out import (
    OWN,
    Draws,
    suspected_twins,
)
from retrieval.bundle.operating_point import CERTIFIED, ESTIMATED, OperatingPoint
from retrieval.errors import CalibrationError, InvalidParameter, counted
from retrieval.metrics.consistency import search_opis
from retrieval.metrics.identification import SearchScores, identification_rates

from .bounds import items_needed
from .error_rates import (
    CERTIFIED_FROM,
    LABELLED,
    LEAST_ITEMS,
    PROBE,
    UNKNOWN,
    DrawnDistances,
    Floats,
    Shift,
    setting_draws,
)

SOURCES = (OWN, PROBE, LABELLED, UNKNOWN)  # of the draws that set a threshold
CROSS_FITTED = "The five models that were each fitted without a fifth of the items stand for the model that serves."
UNKNOWN_SHARES = (0.1, 0.5, 0.9)  # shares of queries for unknown items, to report precision at


def anchor(
    draws: Mapping[str, Draws],
    target_fpir: float,
    *,
    gallery_items: int,
    shift: Shift | None = None,
    cap: float = math.inf,
    certify: bool = False,
    fitted: Collection[str] = (),
    least_items: int = LEAST_ITEMS,
) -> OperatingPoint:
    """Return the operating point of a gallery.

    All sources of draws are one sample, with items weighted equally. The greatest threshold that keeps the target
    serves. Mated searches would set too small a one, since the photos of one session are near to each other.

    Parameters
    ----------
    draws:
        Draws of the gallery's current version, by source.
    shift, cap:
        Query shift of the own draws, if any, and upper limit of the threshold.
    certify:
        Certify the target even with fewer than 300 independent items, or raise.
    fitted:
        Items that the model was fitted on. Labelled queries for them tell the TPIR and set no threshold.
    least_items:
        Minimum number of items that set a threshold.

    Raises
    ------
    CalibrationError
        If there are fewer items, they do not support the target, `certify` asks for more than they can, or nothing
        would be found.
    """
    if not 0 < target_fpir < 1:
        raise InvalidParameter("target_fpir", "lie between 0 and 1", target_fpir)
    shift = shift or Shift()
    drawn = DrawnDistances.of(draws, shift=shift, without=fitted)
    if drawn.items < least_items:
        raise CalibrationError(
            f"{counted(drawn.items, 'item')} can be used to set a threshold, and {least_items} are needed: items that "
            "the model was fitted on do not count, nor do copies, and items of one group count as one",
            remedy="Add items to the gallery",
        )
    mated = _Mated.of(draws, gallery_items=gallery_items, least_items=least_items)
    twins = suspected_twins(draws.get(OWN, Draws.none()))
    threshold, status = _choose(drawn, target_fpir, mated, cap, certify=certify, twins=twins)
    used = setting_draws(draws, fitted=fitted)
    evidence = _evidence(used, drawn, mated, threshold, target_fpir, gallery_items=gallery_items, shift=shift)
    return OperatingPoint(threshold, status, target_fpir, evidence)


def evidence_at(
    draws: Mapping[str, Draws],
    threshold: float,
    target_fpir: float,
    *,
    gallery_items: int,
    shift: Shift,
    fitted: Collection[str],
) -> dict[str, Any]:
    """Return what draws show of a threshold, and of the gallery; the arguments are those of `anchor`."""
    drawn = DrawnDistances.of(draws, shift=shift, without=fitted)
    mated = _Mated.of(draws, gallery_items=gallery_items, least_items=LEAST_ITEMS)
    used = setting_draws(draws, fitted=fitted)
    return _evidence(used, drawn, mated, threshold, target_fpir, gallery_items=gallery_items, shift=shift)


def _evidence(
    draws: Mapping[str, Draws],
    drawn: DrawnDistances,
    mated: _Mated | None,
    threshold: float,
    target_fpir: float,
    *,
    gallery_items: int,
    shift: Shift,
) -> dict[str, Any]:
    own = draws.get(OWN, Draws.none())
    evidence = {
        "anchored": True,
        "gallery_items": gallery_items,
        "shift": shift.to_dict(),
        "items_drawn": drawn.items,
        "cross_fitted": drawn.cross_fitted,
        "sources": {name: len(set(draws[name].groups)) for name in SOURCES if name in draws and len(draws[name])},
        "fpir": drawn.fpir(threshold),
        "fpir_expected": drawn.expected(threshold),
        "fpir_upper": drawn.fpir_upper(threshold),
        "duplicates": int((own.duplicates >= 0).sum()),
        "twins": [list(pair) for pair in suspected_twins(own)],
        "assumptions": assumptions(
            draws, shift_items=shift.items if OWN in draws else 0, cross_fitted=drawn.cross_fitted > 0
        ),
        "perhaps": _perhaps(drawn, mated, threshold),
        "tpir": None,
        "tpir_of": None,
    }
    return evidence if mated is None else evidence | mated.evidence(threshold, drawn, target_fpir)


def _uncertified(drawn: DrawnDistances, target_fpir: float) -> CalibrationError:
    if drawn.cross_fitted:
        return CalibrationError(
            f"{drawn.cross_fitted} items are drawn by models that were fitted without them, which estimates a "
            "threshold and certifies none",
            remedy="Leave --certify out, or use a model that was not fitted on these items",
        )
    return CalibrationError(
        f"{drawn.items} items cannot certify an FPIR of {target_fpir:g}: "
        f"they count as {drawn.independent_items:.0f} independent ones, and {items_needed(target_fpir)} are needed",
        remedy="Add items, label more photos, accept more false matches with a larger --target-fpir, or leave "
        "--certify out",
    )


def _choose(
    drawn: DrawnDistances,
    target: float,
    mated: _Mated | None,
    cap: float,
    *,
    certify: bool,
    twins: Sequence[tuple[str, str]],
) -> tuple[float, str]:
    """Return the threshold and its status; where there is none, say which items look like one item under two ids.

    Where fold models find nothing, the model that serves may: it was fitted on the items that it finds.
    """
    remedy = "Use a better model"
    if twins:
        pairs = counted(len(twins), "pair of items looks", "pairs of items look")
        remedy = (
            f"{pairs} like one item under two ids, such as {' and '.join(twins[0])}: merge them, or give both one group"
        )
    for status in (CERTIFIED, ESTIMATED):
        if status == CERTIFIED and not certify and drawn.independent_items < CERTIFIED_FROM:
            continue
        limit = drawn.limit(target, certified=status == CERTIFIED)
        if limit is None and certify:
            raise _uncertified(drawn, target)
        if limit is None and status == CERTIFIED:
            continue
        if limit is None:
            least = drawn.smallest_target
            raise CalibrationError(
                f"the draws of {drawn.items} items support no FPIR below {least:.4g}, so not {target:g}",
                remedy=f"Add items, or accept more false matches with --target-fpir {math.ceil(1000 * least) / 1000:g}",
            )
        limit = min(limit, cap)
        if limit < 0:
            raise CalibrationError(
                f"more than {target:g} of the draws are at distance 0 from another item",
                remedy=remedy,
            )
        if mated is None or drawn.cross_fitted or (mated.right <= limit).any():
            return limit, status
    raise CalibrationError(
        f"no threshold with FPIR <= {target:g} in this gallery finds a single item (TPIR 0)",
        remedy=f"{remedy}, or accept more false matches with a larger --target-fpir",
    )


@dataclass(frozen=True)
class _Mated:
    """Draws whose item has another photo in the gallery. They tell how many photos find their item."""

    photos: str  # what the queries are
    draws: Draws
    scores: SearchScores
    right: Floats  # distances (n,) of own and labelled draws that find the right item: few labelled ones may find none

    @classmethod
    def of(cls, sources: Mapping[str, Draws], *, gallery_items: int, least_items: int) -> _Mated | None:
        """Return labelled queries if they are of enough items, else own draws; None if no item has another photo."""
        labelled = LABELLED in sources and len(set(sources[LABELLED].items)) >= least_items
        draws = sources.get(LABELLED if labelled else OWN, Draws.none())
        draws = draws.where(np.isfinite(draws.own))
        if not len(draws):
            return None
        scores = SearchScores(draws.items, draws.own, draws.distances, gallery_items, draws.wrong)
        both = [sources[name] for name in (OWN, LABELLED) if name in sources]
        right = np.concatenate([each.own[np.isinf(each.wrong)] for each in both])
        return cls("labelled queries" if labelled else "catalogue photos", draws, scores, right)

    def evidence(self, threshold: float, drawn: DrawnDistances, target_fpir: float) -> dict[str, Any]:
        """Return the rates at a threshold, unknown where only fold models searched and found nothing, and OPIS."""
        unknown = drawn.cross_fitted > 0 and not (self.right <= threshold).any()
        fpir = drawn.expected(threshold)
        rates = identification_rates(self.scores, threshold)
        plain = replace(self.scores, own=self.draws.own_plain, impostor=self.draws.plain, wrong=None)
        return {
            "tpir": None if unknown else rates.tpir,
            "tpir_of": None if unknown else self.photos,
            "closest_is_right": self.scores.recall,
            "misidentification": rates.misidentification,
            "precision": {
                f"{share:g}": precision(rates.tpir, rates.misidentification, fpir, unknown=share)
                for share in ([] if unknown else UNKNOWN_SHARES)
            },
            "queries": rates.queries,
            "items": len(np.unique(self.draws.items)),
            "opis": {
                "item_distance": search_opis(self.scores, target_fpir).value,
                "nearest_photo": search_opis(plain, target_fpir).value,
            },
        }


def _perhaps(drawn: DrawnDistances, mated: _Mated | None, threshold: float) -> dict[str, Any]:
    """Return the distance up to which an answer is "perhaps", and how often the first item is right there.

    It is the distance up to which the p-value is at most REVIEW_P. It is greater if the first item is right in most of
    the searches between the threshold and it, with as many for unknown items as for items of the catalogue.
    """
    if mated is None:
        return drawn.perhaps(threshold)
    scores = mated.scores
    first, right = np.minimum(scores.correct, scores.misled), np.isfinite(scores.correct)
    order = np.argsort(first, kind="stable")
    beyond = order[(first[order] > threshold) & np.isfinite(first[order])]
    gained = np.cumsum(np.where(right[beyond], 1, -1)) / len(first)
    unknown = np.array([drawn.fpir(distance) for distance in first[beyond]]) - drawn.fpir(threshold)
    mostly = np.flatnonzero(gained >= unknown)
    within = drawn.perhaps(float(first[beyond[mostly[-1]]]) if len(mostly) else threshold)["within"]
    asked = right[beyond][first[beyond] <= within]
    return {"within": within, "right": float(asked.mean()) if len(asked) else None, "searches": len(asked)}


def precision(tpir: float, misidentification: float, fpir: float, *, unknown: float) -> float | None:
    """Return the share of answers with a match whose first item is right, for a share of queries for unknown items."""
    right, wrong = (1 - unknown) * tpir, (1 - unknown) * misidentification + unknown * fpir
    return right / (right + wrong) if right + wrong else None


def assumptions(sources: Collection[str], *, shift_items: int = 0, cross_fitted: bool = False) -> list[str]:
    """Return what a threshold assumes, in plain sentences.

    `sources` are those of the draws that set it, PROBE alone for the threshold of a bundle. The query shift was
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
