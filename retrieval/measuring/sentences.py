"""Sentences on an operating point, on what a new one would change, and on a promise that is not kept."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from index.search.distance import accepts
from retrieval.errors import command, counted
from retrieval.text import apart

from .draws import LABELLED, NAMES, OWN, PROBE, UNKNOWN, AllDraws
from .fpir import LEAST_ITEMS, DrawnDistances
from .point import CERTIFIED, Point
from .rates import LABELLED_QUERIES, VersionRates
from .sides import in_words, sides_of

FEW_TWINS = 5  # maximum number of pairs of items in a sentence
LOW_FPIR = 0.5  # share of the target below which a laxer threshold is worth a try
FEW_FOUND = 0.5  # share of photos that find their item, below which the output suggests what to do
RATES = {
    "fpir": "Searches for unknown items that return a match",
    "unknown": "Labelled photos of unknown items that return a match",
    "tpir": "Photos that find their item",
}
KINDS = {PROBE: "calibration searches", LABELLED: "labelled queries", UNKNOWN: "photos of unknown items"}


def describe(point: Point) -> list[str]:
    """Return lines with the rates to expect of an anchored point, followed by warnings and assumptions if any."""
    rates, basis = point.rates, point.basis
    promise = (
        f"at most {point.target_fpir:.1%} of searches (certified on {basis.items_drawn} items)"
        if point.status == CERTIFIED
        else f"about {rates.fpir_expected:.1%} of searches (estimated from {basis.items_drawn} items; at most "
        f"{rates.fpir_upper:.1%} with 95 % confidence)"
    )
    if rates.tpir is None:
        clause = "The share of photos that find their item was not measured"
    else:
        clause = f"{rates.tpir:.0%} of {rates.tpir_of} find their item"
        clause += " as a match"
        if basis.cross_fitted and rates.tpir_of != LABELLED_QUERIES:
            clause += ". Models that were fitted without the item found these; the one that serves usually finds more"
    if rates.tpir_of != LABELLED_QUERIES:
        clause += f". To measure this on users' photos, pass 50 labelled ones, of {LEAST_ITEMS} items or more, to "
        clause += "`retrieval calibrate` with --queries"
    sides = sides_of(point)
    lines = [] if sides is None else [f"{in_words(sides)}."]
    lines += [f"An unknown item (one that is not in the catalogue) returns a match in {promise}.", f"{clause}."]
    if basis.twins:
        lines.insert(0, describe_twins(basis.twins))
    if rates.tpir is not None and rates.tpir < FEW_FOUND:
        lines.append(
            "Searches without a match list the closest items to pick from. For more matches, accept more false ones: "
            "`retrieval calibrate` with a larger --target-fpir."
        )
    shares = {share: value for share, value in (rates.precision or {}).items() if value is not None}
    if shares:
        listed = ", ".join(f"{value:.0%} if {float(share):.0%} are" for share, value in shares.items())
        lines.append(f"How many matches are right depends on how many searches are for unknown items: {listed}.")
        lines.append(f"{rates.misidentification:.1%} of {rates.tpir_of} match a wrong item.")
    if basis.duplicates:
        left_out = counted(basis.duplicates, "photo is", "photos are")
        lines.append(f"{left_out} also in the gallery under another item, and left out.")
    return [*lines, "This assumes:", *(f"  - {assumption}" for assumption in basis.assumptions or ())]


def certificate_cost(certified: Point, estimated: Point) -> str:
    """Return a sentence on what a certificate costs beside the estimated threshold."""
    rates = (certified.rates.tpir, estimated.rates.tpir)
    found = "" if None in rates else f": {rates[0]:.0%} of photos find their item with it, {rates[1]:.0%} without"
    return (
        f"The certificate lowers the threshold from {estimated.threshold:.4f} to {certified.threshold:.4f}{found}. "
        "Leave --certify out for the estimated threshold."
    )


def describe_rate(rates: VersionRates, point: Point) -> str:
    """Return a sentence on the FPIR of a threshold in the gallery as it is now, and one on what to do if it is low."""
    expected, upper = rates.expected(point.threshold), rates.fpir_upper(point.threshold)
    told = (
        f"An unknown item now returns a match in {expected:.1%} of searches (at most {upper:.1%} with 95 % confidence)."
    )
    low = (upper if point.status == CERTIFIED else expected) < LOW_FPIR * point.target_fpir
    return f"{told} `retrieval calibrate` may set a threshold that finds more items." if low else told


def describe_names(rates: VersionRates | None) -> str:
    """Return a sentence on searches by words in the gallery as it is now."""
    known = None if rates is None else rates.kinds.get(NAMES)
    if known is None:
        return f"Searches by words only rank items: too few have a name of their own (minimum {LEAST_ITEMS})."
    of_kind, point = known
    if not point.decides:
        return (
            "Searches by words only rank items: no threshold keeps the target for names. Perhaps the towers of photos "
            "and of texts do not belong together."
        )
    right = of_kind.mated.draws.right if of_kind.mated is not None else np.zeros(0)
    return (
        f"Searches by words: an unknown name returns a match in {of_kind.expected(point.threshold):.1%} of searches, "
        f"and {int(accepts(right, point.threshold).sum())} of {len(right)} names find their item."
    )


def threshold_change(before: Point, now: Point) -> str:
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
        "match. If they are one item, merge them on the page /manage, or give them one group in the catalogue."
    )


@dataclass(frozen=True)
class Change:
    """A new operating point beside the one that serves now, with the draws behind it."""

    served: Point
    after: Point
    draws: AllDraws

    def lines(self) -> list[str]:
        """Return lines that compare the new threshold with the one that serves now."""
        old, new = self.served.threshold, self.after.threshold
        if not self.served.decides:
            return [f"The gallery gets its first threshold, {new:.4f}."]
        moved = f"goes {'down' if new < old else 'up'} from {old:.4f} to {new:.4f}"
        same = f"{old:.4f}" == f"{new:.4f}"
        lines = [f"The threshold {f'stays at {old:.4f}' if same else moved}."]
        for name, rate in self.rates().items():
            bound = "" if rate["upper"] is None else f" (at most {rate['upper']:.1%} with 95 % confidence)"
            lines.append(f"{RATES[name]}: {rate['before']:.1%} before, {rate['after']:.1%} after{bound}.")
        counts = [f"{len(changed)} of {searched} {kind}" for kind, searched, changed in self.answers()]
        return [*lines, *([f"Answers that change: {', '.join(counts)}."] if counts else [])]

    def rates(self) -> dict[str, dict[str, float | None]]:
        """Return rates "before" (None without a threshold) and "after" the change, and the "upper" bound after it.

        "fpir" is the rate to expect, and "unknown" the share of labelled photos.
        """
        served, after, sources = self.served, self.after, self.draws.sources
        rates = VersionRates.of(self.draws, after)
        unknown = DrawnDistances.of({UNKNOWN: sources[UNKNOWN]} if UNKNOWN in sources else {})
        enough = LABELLED in sources and len(set(sources[LABELLED].items)) >= LEAST_ITEMS
        mated = self.draws.get(LABELLED if enough else OWN)
        right = mated.right[np.isfinite(mated.own)]
        functions = {
            "fpir": None if rates is None else (rates.expected, rates.fpir_upper),
            "unknown": (unknown.fpir, unknown.fpir_upper) if unknown.items else None,
            "tpir": (lambda threshold: float(accepts(right, threshold).mean()), lambda _: None) if len(right) else None,
        }
        return {
            name: {
                "before": pair[0](served.threshold) if served.decides else None,
                "after": pair[0](after.threshold),
                "upper": pair[1](after.threshold),
            }
            for name, pair in functions.items()
            if pair is not None
        }

    def answers(self) -> list[tuple[str, int, list[str]]]:
        """Return the kind and the number of stored searches, with a line for each answer that changes."""
        old, new = self.served.threshold, self.after.threshold
        kinds = []
        for source, kind in KINDS.items() if self.served.decides else ():
            draws = self.draws.get(source)
            is_right = np.isfinite(draws.right)
            nearest = np.where(is_right, draws.own, np.minimum(draws.wrong, draws.distances))
            items = np.where(is_right, draws.items, draws.nearest_items)
            rows = np.flatnonzero(accepts(nearest, old) != accepts(nearest, new))
            verb = "finds" if new > old else "no longer finds"
            lines = [f"{draws.ids[row]} {verb} {items[row]}, at distance {nearest[row]:.4f}" for row in rows]
            kinds += [(kind, len(draws), lines)] if len(draws) else []
        return kinds

    def to_dict(self, refused: Sequence[tuple[str, str]]) -> dict[str, Any]:
        """Return the change as plain JSON values, with photo_id and reason of labelled photos that were refused."""
        return {
            "before": self.served.to_dict(),
            "after": self.after.to_dict(),
            "rates": self.rates(),
            "answers": [
                {"kind": kind, "searched": searched, "changed": changed} for kind, searched, changed in self.answers()
            ],
            "refused": [{"photo_id": photo_id, "reason": reason} for photo_id, reason in refused],
        }


def warning_of(
    point: Point,
    rates: VersionRates | None,
    *,
    items: int = 0,
    bundle: Path | str = "BUNDLE",
    gallery: Path | str = "GALLERY",
) -> str:
    """Return a warning, with the command to run, if a threshold does not keep what it promises, "" if it does.

    `items` is the number of items of a gallery in which the threshold of the bundle serves.
    """
    again, promised = f"`{command('calibrate', bundle, gallery)}`", point.basis.gallery_items or items
    labelled = f"`{command('calibrate', bundle, gallery, '--queries', 'LABELLED.csv')}`, with at least "
    labelled += f"{max(LEAST_ITEMS, math.ceil(1 / point.target_fpir))} labelled photos of unknown items,"
    if rates is not None and rates.broken(point):
        expected, upper = rates.expected(point.threshold), rates.fpir_upper(point.threshold)
        certified = point.status == CERTIFIED
        shown, target = apart(upper if certified else expected, point.target_fpir)
        rate, bound = (f"{expected:.1%}", shown) if certified else (shown, f"{upper:.1%}")
        return (
            f"The gallery has changed since its threshold was set: an unknown item now returns a match in {rate} of "
            f"searches (at most {bound} with 95 % confidence), {'a bound ' if certified else ''}above the target of "
            f"{target}. {again} sets a new threshold"
        )
    if rates is None and point.is_anchored and not point.decides:
        return (
            f"The gallery's threshold is not used, because fewer than {LEAST_ITEMS} items can show how often unknown "
            "items match (items of one group count as one): searches only rank items. "
            f"{labelled} sets a threshold"
        )
    if rates is None and point.is_anchored:
        return (
            "The gallery has changed since its threshold was set, and its FPIR in this version was not measured. "
            f"{again} sets a new threshold, and shows the old one's FPIR with --dry-run"
        )
    if rates is None and point.decides and items > promised:
        return (
            f"The gallery has {items} items and the threshold was set for {promised}: photos of unknown items return a "
            f"match more often than the {point.target_fpir:.1%} that were promised. {labelled} sets a threshold in "
            "this gallery"
        )
    return ""


def describe_briefly(point: Point) -> str:
    """Return one line about a point."""
    if not point.decides:
        return f"it has no threshold; a gallery sets one for FPIR {point.target_fpir:g}."
    size, least, upper = point.basis.gallery_items, point.basis.least_items, point.rates.fpir_upper
    line = f"a match is a distance of at most {point.threshold:.4f}; FPIR {point.target_fpir:g} is {point.status}"
    if not size and least:
        return f"{line} in galleries of {least} items or more. A gallery of 20 items sets a threshold of its own."
    line = f"{line} for {counted(size, 'item')}" if size else line
    bound = "" if upper is None or point.status == CERTIFIED else f", at most {upper:.2g} with 95 % confidence"
    return f"{line}{bound}."


def caveats(point: Point) -> list[str]:
    """Return sentences about the performance of a bundle's threshold to expect on new items."""
    lines, halves, tpir = [], point.basis.fpir_on_other_half, point.rates.tpir
    if halves:
        lines.append(
            f"Set on half of the calibration's {point.basis.clusters} independent groups of items, such a threshold "
            f"realised an FPIR between {halves[0]:.3f} and {halves[1]:.3f} on the other half (nine of ten splits): "
            "the FPIR on items unlike these may differ by more"
        )
    if tpir is not None and tpir < FEW_FOUND:
        lines.append(
            f"Only {tpir:.0%} of the photos whose item is in the gallery find it at this threshold: more training "
            "items, sharper photos or a larger backbone raise this share"
        )
    return lines
