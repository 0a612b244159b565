"""Anchoring: set the threshold in the gallery that is searched, from its draws.

A draw is a search of this gallery for an item that is not in it (`index.search.leave_one_out`). Own draws exclude items
that the model was fitted on. The share of draws within a threshold, with items weighted equally, estimates its FPIR in
this gallery. The estimate assumes that unknown items resemble the drawn items, so that their distances are
exchangeable. A threshold that accepts a share of a small number of draws accepts a larger share of new items on
average. An estimated threshold therefore accepts items that are left out of the gallery in at most the target share of
searches (`DrawnDistances.limit`).

The target is *certified* if the upper 95 % Clopper-Pearson bound over the effective number of independent items keeps
it (`DrawnDistances.design_effect`), and *estimated* if only the observed rate does. With few items, a certified
threshold finds little, so targets are certified from 300 items on, or on request.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from index.search.leave_one_out import OWN, Draws
from retrieval.bundle.operating_point import CERTIFIED, ESTIMATED, OperatingPoint
from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.metrics.identification import SearchScores, identification_rates

from .assumptions import assumptions
from .bounds import CONFIDENCE, items_needed
from .calibrate import choose_threshold, most_useful_threshold
from .drawn_distances import (
    CERTIFIED_FROM,
    LABELLED,
    LEAST_ITEMS,
    PROBE,
    UNKNOWN,
    DrawnDistances,
    GalleryRates,
    competing,
)
from .query_shift import Shift

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

    Each source of draws with at least `least_items` items proposes a threshold; the strictest serves. Labelled queries
    replace the own draws. Among the thresholds that keep the target, a source proposes the one with the greatest mean
    utility over items (`calibrate`), or the greatest one if there are no mated searches.

    Parameters
    ----------
    draws:
        Draws of the gallery's current version, by source.
    shift, cap:
        Query shift of the own draws, if any, and upper limit of the threshold, such as that from feedback.
    certify:
        Certify the target even with fewer than 300 items, or raise.
    fitted:
        Items that the model was fitted on. Labelled queries for them tell the TPIR and set no threshold.
    least_items:
        Minimum number of items of a source that proposes a threshold.

    Raises
    ------
    CalibrationError
        If no source has `least_items` items, `certify` asks for more than the strictest can, or nothing would be found.
    """
    if not 0 < target_fpir < 1:
        raise InvalidParameter("target_fpir", "lie between 0 and 1", target_fpir)
    usable = _competing(draws, shift := shift or Shift(), fitted, least_items)
    labelled = LABELLED in draws and len(set(draws[LABELLED].items)) >= least_items
    mated = _mated(draws.get(LABELLED if labelled else OWN, Draws.none()), gallery_items)
    proposals = {name: _propose(drawn, target_fpir, mated, cap, certify=certify) for name, drawn in usable.items()}
    source = min(proposals, key=lambda name: proposals[name][0])
    (threshold, status), rates = proposals[source], GalleryRates(usable)
    if certify and status == ESTIMATED:
        raise _uncertified(source, usable[source], target_fpir)
    evidence = {
        "anchored": True,
        "source": source,
        "confidence": CONFIDENCE,
        "gallery_items": gallery_items,
        "shift": shift.to_dict(),
        **_sources(usable, proposals, threshold),
        **_rates(rates, source, threshold),
        **_duplicates(draws, rates, shift, threshold),
        "assumptions": assumptions(source, shift_items=shift.items if OWN in usable else 0),
        **_mated_evidence(mated, threshold, rates.fpir(threshold), labelled=labelled),
    }
    return OperatingPoint(threshold, status, target_fpir, evidence)


def _rates(rates: GalleryRates, source: str, threshold: float) -> dict[str, Any]:
    """Return the rates at a threshold; the design effect is that of its source."""
    return {
        "fpir": rates.fpir(threshold),
        "fpir_expected": max(drawn.expected(threshold) for drawn in rates.sources.values()),
        "fpir_upper": rates.fpir_upper(threshold),
        "design_effect": rates.sources[source].design_effect(threshold),
    }


def _duplicates(draws: Mapping[str, Draws], rates: GalleryRates, shift: Shift, threshold: float) -> dict[str, Any]:
    """Return the number of own draws left out because another item has their file, and the FPIR with them."""
    fpir = rates.fpir(threshold)
    count = int((draws[OWN].duplicates >= 0).sum()) if OWN in draws else 0
    if count and OWN in rates.sources:
        everything = DrawnDistances.of(draws[OWN], shift=shift.applied, duplicates=True)
        fpir = max(fpir, everything.fpir(threshold))
    return {"duplicates": count, "fpir_with_duplicates": fpir}


def _uncertified(source: str, drawn: DrawnDistances, target_fpir: float) -> CalibrationError:
    effective = drawn.items / drawn.design_effect(-math.inf)
    more = {PROBE: "Export a bundle with more calibration items", UNKNOWN: "Label more photos of unknown items"}
    kind = {PROBE: "calibration ", UNKNOWN: "unknown "}.get(source, "")
    return CalibrationError(
        f"{drawn.items} {kind}items cannot certify an FPIR of {target_fpir:g}: "
        f"they count as {effective:.0f} independent ones, and {items_needed(target_fpir)} are needed",
        remedy=f"{more.get(source, 'Add items')}, accept more false matches with a larger --target-fpir, or leave "
        "--certify out",
    )


def _competing(
    draws: Mapping[str, Draws], shift: Shift, fitted: Collection[str], least_items: int
) -> dict[str, DrawnDistances]:
    """Return the sources that propose a threshold; raise CalibrationError if none has enough items."""
    distances = {
        name: DrawnDistances.of_source(name, source, shift=shift.applied, fitted=fitted, margin=shift.margin)
        for name, source in draws.items()
    }
    usable = competing(distances, least_items=least_items)
    if not usable:
        count = max((drawn.items for drawn in distances.values()), default=0)
        raise CalibrationError(
            f"{count} items that the model was not fitted on are too few to set a threshold (minimum {least_items})",
            remedy="Add items to the gallery",
        )
    return usable


def _sources(
    usable: Mapping[str, DrawnDistances], proposals: Mapping[str, tuple[float, str]], threshold: float
) -> dict[str, Any]:
    """Return the names of the sources that certify what they propose, and the rates of all."""
    rates = {
        name: {
            "items": drawn.items,
            "threshold": proposals[name][0],
            "fpir": drawn.fpir(threshold),
            "fpir_upper": drawn.fpir_upper(threshold),
            "design_effect": drawn.design_effect(threshold),
        }
        for name, drawn in usable.items()
    }
    return {"certified": [name for name, (_, status) in proposals.items() if status == CERTIFIED], "sources": rates}


def _propose(
    drawn: DrawnDistances, target: float, mated: SearchScores | None, cap: float, *, certify: bool
) -> tuple[float, str]:
    """Return the threshold that one source proposes, and its status."""
    for status in (CERTIFIED, ESTIMATED):
        if status == CERTIFIED and not certify and drawn.items < CERTIFIED_FROM:
            continue
        limit = drawn.limit(target, certified=status == CERTIFIED)
        if limit is None:
            continue
        if cap < 0:
            raise CalibrationError(
                f"more than {target:g} of the judged searches for unknown items are at distance 0 from an item",
                remedy="Check these verdicts, or ask for a larger --target-fpir",
            )
        limit = min(limit, cap)
        if limit < 0:
            raise CalibrationError(
                f"more than {target:g} of the draws are at distance 0 from another item",
                remedy="Look for items that are in the gallery under two ids, with `retrieval audit`",
            )
        chosen = limit if mated is None else choose_threshold(mated, limit, most_useful_threshold)
        if chosen is not None:
            return chosen, status
    raise CalibrationError(
        f"no threshold with FPIR <= {target:g} in this gallery finds a single item (TPIR 0)",
        remedy="Use a better model, or accept more false matches with a larger --target-fpir",
    )


def _mated(draws: Draws, gallery_items: int) -> SearchScores | None:
    """Return the draws whose item has another photo as mated searches, or None if there are none."""
    mated = np.isfinite(draws.own)
    if not mated.any():
        return None
    return SearchScores(draws.items[mated], draws.own[mated], draws.distances[mated], gallery_items)


def _mated_evidence(mated: SearchScores | None, threshold: float, fpir: float, *, labelled: bool) -> dict[str, Any]:
    if mated is None:
        return {"tpir": None, "tpir_of": None}
    rates = identification_rates(mated, threshold)
    return {
        "tpir": rates.tpir,
        "tpir_of": "labelled queries" if labelled else "catalogue photos",
        "closest_is_right": identification_rates(mated, np.inf).tpir,  # at any distance
        "misidentification": rates.misidentification,
        "precision": {
            f"{share:g}": precision(rates.tpir, rates.misidentification, fpir, unknown=share)
            for share in UNKNOWN_SHARES
        },
        "queries": rates.queries,
        "items": len(np.unique(mated.labels)),
    }


def precision(tpir: float, misidentification: float, fpir: float, *, unknown: float) -> float | None:
    """Return the share of answers with a match whose first item is right, for a share of queries for unknown items."""
    right, wrong = (1 - unknown) * tpir, (1 - unknown) * misidentification + unknown * fpir
    return right / (right + wrong) if right + wrong else None
