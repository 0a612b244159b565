"""Sentences on an operating point of a gallery, and on what a proposed one would change."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from index.search.distance import accepts
from index.search.leave_one_out import OWN, Draws
from retrieval.bundle.operating_point import CERTIFIED, OperatingPoint
from retrieval.errors import counted

from .error_rates import LABELLED, LEAST_ITEMS, PROBE, UNKNOWN, DrawnDistances, GalleryRates
from .proposal import Proposal

FEW_TWINS = 5  # pairs of items that are named
LOW_FPIR = 0.5  # share of the target below which a laxer threshold is worth a try
FEW_FOUND = 0.5  # share of photos that find their item, below which it is said what to do
RATES = {
    "fpir": "Searches for unknown items that return a match",
    "unknown": "Labelled photos of unknown items that return a match",
    "tpir": "Photos that find their item",
}
KINDS = {PROBE: "calibration searches", LABELLED: "labelled queries", UNKNOWN: "photos of unknown items"}


def describe(point: OperatingPoint) -> list[str]:
    """Return lines with the rates to expect of an anchored point, followed by warnings and assumptions if any."""
    evidence = point.evidence
    items = evidence["items_drawn"]
    promise = (
        f"at most {point.target_fpir:.1%} of searches (certified on {items} items)"
        if point.status == CERTIFIED
        else f"about {evidence['fpir_expected']:.1%} of searches (estimated from {items} items; at most "
        f"{evidence['fpir_upper']:.1%} with 95 % confidence)"
    )
    if evidence["tpir"] is None:
        found = "The share of photos that find their item was not measured"
    else:
        found = f"{evidence['tpir']:.0%} of {evidence['tpir_of']} find their item"
        found += f" as a match. For {evidence['closest_is_right']:.0%} the right item comes first in the list of "
        found += "closest items, match or not"
        if evidence.get("cross_fitted") and evidence["tpir_of"] != "labelled queries":
            found += ". Models that were fitted without the item found these; the one that serves usually finds more"
    if evidence["tpir_of"] != "labelled queries":
        found += f". To measure this on users' photos, pass 50 labelled ones, of {LEAST_ITEMS} items or more, to "
        found += "`retrieval calibrate` with --queries"
    lines = [f"An unknown item (one that is not in the catalogue) returns a match in {promise}.", f"{found}."]
    if evidence.get("twins"):
        lines.insert(0, describe_twins(evidence["twins"]))
    if evidence["tpir"] is not None and evidence["tpir"] < FEW_FOUND:
        lines.append(
            "Searches without a match list the closest items to pick from. For more matches, accept more false ones: "
            "`retrieval calibrate` with a larger --target-fpir."
        )
    shares = {share: value for share, value in evidence.get("precision", {}).items() if value is not None}
    if shares:
        told = ", ".join(f"{value:.0%} if {float(share):.0%} are" for share, value in shares.items())
        lines.append(f"How many matches are right depends on how many searches are for unknown items: {told}.")
        lines.append(f"{evidence['misidentification']:.1%} of {evidence['tpir_of']} match a wrong item.")
    if evidence["duplicates"]:
        left_out = counted(evidence["duplicates"], "photo is", "photos are")
        lines.append(f"{left_out} also in the gallery under another item, and left out.")
    return [*lines, "This assumes:", *(f"  - {assumption}" for assumption in evidence["assumptions"])]


def describe_rate(rates: GalleryRates, point: OperatingPoint) -> str:
    """Return a sentence on the FPIR of a threshold in the gallery as it is now, and one on what to do if it is low."""
    expected, upper = rates.expected(point.threshold), rates.fpir_upper(point.threshold)
    told = (
        f"An unknown item now returns a match in {expected:.1%} of searches (at most {upper:.1%} with 95 % confidence)."
    )
    low = (upper if point.status == CERTIFIED else expected) < LOW_FPIR * point.target_fpir
    return f"{told} `retrieval calibrate` may set a threshold that finds more." if low else told


def threshold_change(before: OperatingPoint, now: OperatingPoint) -> str:
    """Return a sentence on the threshold that served before and the one that serves now."""
    first, second = (f"{point.threshold:.4f}" if point.decides else "none" for point in (before, now))
    return f"Threshold before: {first}, now: {second}{' (unchanged)' if first == second else ''}."


def describe_twins(pairs: Sequence[Sequence[str]]) -> str:
    """Return a sentence on items that look like one item under two ids."""
    named = ", ".join(f"{one} and {other}" for one, other in pairs[:FEW_TWINS])
    more = f" and {len(pairs) - FEW_TWINS} more" if len(pairs) > FEW_TWINS else ""
    counted = "1 pair of items looks" if len(pairs) == 1 else f"{len(pairs)} pairs of items look"
    return (
        f"{counted} like one item under two ids: {named}{more}. A photo of either is answered with both, not with a "
        "match. If they are one, merge them on the page /manage, or give them one group in the catalogue."
    )


def changes(proposal: Proposal) -> list[str]:
    """Return lines that compare the new threshold with the one that serves now."""
    old, new = proposal.served.threshold, proposal.after.threshold
    if not proposal.served.decides:
        return [f"The gallery gets its first threshold, {new:.4f}."]
    moved = f"goes {'down' if new < old else 'up'} from {old:.4f} to {new:.4f}"
    same = f"{old:.4f}" == f"{new:.4f}"
    lines = [f"The threshold {f'stays at {old:.4f}' if same else moved}."]
    for name, rate in changed_rates(proposal).items():
        bound = "" if rate["upper"] is None else f" (at most {rate['upper']:.1%} with 95 % confidence)"
        lines.append(f"{RATES[name]}: {rate['before']:.1%} before, {rate['after']:.1%} after{bound}.")
    counts = [f"{len(changed)} of {searched} {kind}" for kind, searched, changed in changed_answers(proposal)]
    return [*lines, *([f"Answers that change: {', '.join(counts)}."] if counts else [])]


def changed_rates(proposal: Proposal) -> dict[str, dict[str, float | None]]:
    """Return the rates at the threshold that serves, None without one, and at the new one with its upper 95 % bound.

    "fpir" is the rate to expect, and "unknown" the share of labelled photos.
    """
    served, after, sources = proposal.served, proposal.after, proposal.draws.sources
    rates = GalleryRates.of(proposal.draws, after)
    unknown = DrawnDistances.of({UNKNOWN: sources[UNKNOWN]} if UNKNOWN in sources else {})
    enough = LABELLED in sources and len(set(sources[LABELLED].items)) >= LEAST_ITEMS
    mated = sources.get(LABELLED if enough else OWN, Draws.none())
    right = np.where(np.isinf(mated.wrong), mated.own, np.inf)[np.isfinite(mated.own)]
    found = {
        "fpir": None if rates is None else (rates.expected, rates.fpir_upper),
        "unknown": (unknown.fpir, unknown.fpir_upper) if unknown.items else None,
        "tpir": (lambda threshold: float(accepts(right, threshold).mean()), lambda _: None) if len(right) else None,
    }
    return {
        name: {
            "before": functions[0](served.threshold) if served.decides else None,
            "after": functions[0](after.threshold),
            "upper": functions[1](after.threshold),
        }
        for name, functions in found.items()
        if functions is not None
    }


def changed_answers(proposal: Proposal) -> list[tuple[str, int, list[str]]]:
    """Return kind and number of searches that are stored, with a line for each whose answer changes."""
    old, new = proposal.served.threshold, proposal.after.threshold
    changed = []
    for source, kind in KINDS.items() if proposal.served.decides else ():
        draws = proposal.draws.sources.get(source, Draws.none())
        found = np.isfinite(draws.own) & np.isinf(draws.wrong)
        nearest = np.where(found, draws.own, np.minimum(draws.wrong, draws.distances))
        items = np.where(found, draws.items, draws.nearest_items)
        rows = np.flatnonzero(accepts(nearest, old) != accepts(nearest, new))
        verb = "finds" if new > old else "no longer finds"
        lines = [f"{draws.ids[row]} {verb} {items[row]}, at distance {nearest[row]:.4f}" for row in rows]
        changed += [(kind, len(draws), lines)] if len(draws) else []
    return changed


def to_dict(proposal: Proposal) -> dict[str, Any]:
    """Return a proposal with what it would change as plain JSON values."""
    return {
        "before": proposal.served.to_dict(),
        "after": proposal.after.to_dict(),
        "rates": changed_rates(proposal),
        "answers": [
            {"kind": kind, "searched": searched, "changed": changed}
            for kind, searched, changed in changed_answers(proposal)
        ],
        "refused": [{"photo_id": photo_id, "reason": reason} for photo_id, reason in proposal.refused],
    }
