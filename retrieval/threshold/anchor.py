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
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from index.database import POINT
from index.location import AnyGallery
from index.search.leave_one_out import OWN, Draws, KeptDraws, Probes, make_draws
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import CERTIFIED, ESTIMATED, OperatingPoint
from retrieval.errors import CalibrationError, InvalidParameter
from retrieval.indexing.worker import CONTENT
from retrieval.inspect.duplicates import is_copy
from retrieval.metrics.identification import SearchScores, identification_rates

from .bounds import CONFIDENCE, items_needed
from .error_rates import (
    CERTIFIED_FROM,
    LABELLED,
    LEAST_ITEMS,
    PROBE,
    REFERENCE,
    TOLERANCE,
    UNKNOWN,
    DrawnDistances,
    GalleryRates,
    competing,
)
from .gallery_points import pack_points, stored_point
from .labelled_queries import QUERIES, by_source, kept_queries, pack_queries
from .query_shift import Shift, gallery_shift
from .rule import choose_threshold, most_useful_threshold

UNKNOWN_SHARES = (0.1, 0.5, 0.9)  # shares of queries for unknown items, to report precision at
FEW_FOUND = 0.5  # share of photos that find their item, below which it is said what to do


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
        Query shift of the own draws, if any, and upper limit of the threshold.
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


def assumptions(source: str, *, shift_items: int = 0) -> list[str]:
    """Return what a threshold assumes, in plain sentences.

    `source` is that of the draws that set it, PROBE for the threshold of a bundle. The query shift was measured on
    `shift_items` items, 0 if it was not measured.
    """
    if source in (LABELLED, UNKNOWN):
        photos = "Users take photos like the labelled queries."
    elif source == PROBE:
        photos = "Users take photos like the calibration photos of the bundle."
    elif shift_items:
        photos = f"Users' photos differ from catalogue photos as measured on {shift_items} items."
    else:
        photos = "Users' photos look like catalogue photos; this was not measured."
    drawn = {PROBE: "the calibration items of the bundle", UNKNOWN: "those of the labelled queries"}.get(
        source, "the items of this catalogue"
    )
    return [
        f"Unknown items are like {drawn}: of the same families, in similar shares. Other items are not covered.",
        photos,
        "No item is in the catalogue under two ids, unless both have a copy of the same photo.",
        "The bundle's list of items that the model was fitted on is complete.",
    ]


@dataclass(frozen=True)
class Anchored:
    """The draws of a gallery version and the operating point that follows from them."""

    draws: KeptDraws
    point: OperatingPoint | None  # None if there are too few draws
    why_not: str = ""


@dataclass(frozen=True)
class Remeasured:
    """The draws of a gallery as it is now, and the operating point that keeps its promise there."""

    bundle: Bundle
    stored: bytes | None  # the points that the gallery kept when it was measured
    draws: KeptDraws
    is_new: bool  # whether the draws were made now
    before: OperatingPoint | None
    after: OperatingPoint | None
    why_not: str = ""  # why there is no point

    @property
    def rates(self) -> GalleryRates | None:
        """The rates of the point, None if there is no point or there are too few draws."""
        return None if self.after is None else GalleryRates.of(self.draws, self.after)

    @property
    def is_news(self) -> bool:
        """Return whether there is anything to keep."""
        return self.after is not None and (self.is_new or self.after != self.before)

    def summary(self) -> str:
        """Return a sentence on a threshold that was set or tightened, "" if none was."""
        if self.after is None or self.after == self.before:
            return ""
        if self.before is None:
            return f"The gallery got its first threshold, {self.after.threshold:.4f}."
        rates = GalleryRates.of(self.draws, self.before)
        found = "" if rates is None else f" of {rates.fpir(self.before.threshold):.1%}"
        return (
            f"The threshold was tightened from {self.before.threshold:.4f} to {self.after.threshold:.4f}, because its "
            f"FPIR{found} no longer kept the target of {self.before.target_fpir:.1%}."
        )

    def write(self, gallery: AnyGallery) -> bool:
        """Keep the draws and the point as one change; return whether anything changed.

        If another point was set in the meantime, the draws are kept and the point is left alone.
        """
        if not self.is_news:
            return False
        gallery.lock()
        contents, action = dict(self.draws.pack()), "measure the threshold"
        if self.after != self.before and gallery.kept(POINT) == self.stored:
            contents[POINT] = pack_points(self.stored, self.bundle, self.after)
            action = "calibrate" if self.before is None else "tighten the threshold"
        gallery.keep(contents, action)
        return True


def measure(bundle: Bundle, gallery: AnyGallery, *, cap: float = math.inf, tighten: bool = True) -> Remeasured:
    """Measure the promise of a bundle's operating point in a gallery, and tighten the point if it is broken.

    Without `tighten`, a point stays as it is, and its rates tell what it does.

    Draws of the newest version that the gallery keeps are reused. A gallery without a point gets one, if it has enough
    items, of at most the threshold `cap`. Nothing is written: see `Remeasured.write`.
    """
    anchor = GalleryAnchor(bundle)
    stored, known = gallery.kept(POINT), KeptDraws.read(gallery)
    is_new = known is None or known.model != bundle.draws_id or known.changed(gallery) > 0
    draws = anchor.draws(gallery) if known is None or is_new else known
    before = stored_point(stored, bundle)
    if before is None:
        first = anchor.anchored(gallery, draws, cap=cap)
        return Remeasured(bundle, stored, draws, is_new, None, first.point, first.why_not)
    after = anchor.stricter(gallery, draws, before) if tighten else None
    return Remeasured(bundle, stored, draws, is_new, before, after or before)


def remeasure(bundle: Bundle, gallery: AnyGallery, *, cap: float = math.inf, tighten: bool = True) -> Remeasured:
    """Measure as `measure` does, and keep the result in the gallery as one change."""
    found = measure(bundle, gallery, cap=cap, tighten=tighten)
    found.write(gallery)
    return found


def changed_share(bundle: Bundle, gallery: AnyGallery) -> float:
    """Return the share of a gallery's photos that changed since its draws were made.

    It is 1 without draws, and 0 if the draws belong to another bundle, which measures the gallery itself.
    """
    known = KeptDraws.read(gallery)
    if known is None:
        return 1.0
    return min(1.0, known.changed(gallery) / max(1, known.photos)) if known.model == bundle.draws_id else 0.0


class GalleryAnchor:
    """Makes the draws and the operating point of a gallery for one bundle."""

    def __init__(self, bundle: Bundle) -> None:
        self.bundle = bundle

    def stricter(self, gallery: AnyGallery, draws: KeptDraws, stored: OperatingPoint) -> OperatingPoint | None:
        """Return a stricter operating point for one that misses its target, None if it is not needed or there is none.

        A certified point is replaced by an estimated one if the items left cannot certify the target.
        """
        if keeps_target(draws, stored):
            return None
        propose = partial(
            self.anchored,
            gallery,
            draws,
            target_fpir=stored.target_fpir,
            cap=stored.threshold,
            shift=Shift.of(stored),
        )
        new = (propose(certify=True).point if stored.status == CERTIFIED else None) or propose().point
        if new is None or new.threshold >= stored.threshold:
            return None
        return new

    def draws(self, gallery: AnyGallery, *, labelled: Probes | None = None) -> KeptDraws:
        """Return the draws of the newest version, with the given labelled queries or those that the gallery keeps."""
        queries = kept_queries(gallery, self.bundle) if labelled is None else labelled
        probes = {**self._probes, **({} if queries is None else by_source(queries))}
        fitted = self.bundle.fitted
        is_fitted = (lambda *_: True) if fitted is None else fitted.contains  # older bundles have no list
        some = fitted is None or len(fitted) > 0
        draws = make_draws(
            gallery,
            model=self.bundle.draws_id,
            distance_form=self.bundle.distance_form,
            probes=probes,
            is_fitted=is_fitted if some else None,  # without it, not every photo is looked at
            content_key=CONTENT,
            is_copy=partial(is_copy, gallery.thumbnail),
        )
        asked = dict.fromkeys(probes[LABELLED].items) if LABELLED in probes else ()
        return replace(draws, fitted=draws.fitted | {item for item in asked if is_fitted(item, None)})

    def anchored(
        self,
        gallery: AnyGallery,
        draws: KeptDraws,
        *,
        target_fpir: float | None = None,
        cap: float = np.inf,
        certify: bool = False,
        shift: Shift | None = None,
    ) -> Anchored:
        """Return the operating point that follows from draws, for `target_fpir` or else the bundle's target.

        The query shift is measured unless it is given.
        """
        promised = self.bundle.operating_point
        try:
            point = anchor(
                draws.sources,
                promised.target_fpir if target_fpir is None else target_fpir,
                gallery_items=gallery.items,
                shift=gallery_shift(draws.sources) if shift is None else shift,
                cap=cap,
                certify=certify,
                fitted=draws.fitted,
            )
        except CalibrationError as error:
            return Anchored(draws, None, str(error))
        evidence = {**point.evidence, "gallery_version": draws.version}
        return Anchored(draws, replace(point, evidence=evidence))

    def write(self, gallery: AnyGallery, anchored: Anchored, *, labelled: Probes | None = None, action: str) -> None:
        """Keep the draws, the operating point and any new labelled queries as one change."""
        contents = {**anchored.draws.pack(), POINT: pack_points(gallery.kept(POINT), self.bundle, anchored.point)}
        if labelled is not None:
            contents[QUERIES] = pack_queries(labelled, self.bundle.features_key)
        gallery.keep(contents, action)

    @cached_property
    def _probes(self) -> dict[str, Probes]:
        calibration = self.bundle.calibration
        if calibration is None or calibration.vectors is None:
            return {}
        items = [str(label) for label in calibration.scores.labels]
        found = {PROBE: Probes(calibration.vectors, calibration.photo_ids.tolist(), items)}
        if calibration.gallery is not None:
            found[REFERENCE] = calibration.gallery
        return {name: self._with_features(probes) for name, probes in found.items()}

    def _with_features(self, probes: Probes) -> Probes:
        """Return photos of the bundle with their local features, if the bundle verifies matches."""
        if self.bundle.verifier is None:
            return probes
        stored = self.bundle.calibration_features
        return replace(probes, features=[stored[photo_id] for photo_id in probes.ids])


def keeps_target(draws: KeptDraws, point: OperatingPoint) -> bool:
    """Return whether every source of draws keeps the target of a point: by its bound if it certified the point.

    Other sources keep it if the FPIR to expect of new items does.
    """
    rates = GalleryRates.of(draws, point)
    certified = point.evidence.get("certified", ())
    return rates is None or all(
        (source.fpir_upper(point.threshold) if name in certified else source.expected(point.threshold))
        <= point.target_fpir + TOLERANCE
        for name, source in rates.sources.items()
    )


def describe(point: OperatingPoint) -> list[str]:
    """Return lines with the rates to expect of an anchored point, followed by warnings and assumptions if any."""
    evidence = point.evidence
    items = evidence["sources"][evidence["source"]]["items"]
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
        if "closest_is_right" in evidence:  # not in older galleries
            found += f" as a match. For {evidence['closest_is_right']:.0%} the right item comes first in the list of "
            found += "closest items, match or not"
    labelled = evidence["sources"].get(LABELLED)
    if evidence["tpir_of"] == "labelled queries":
        more = ""
    elif labelled is not None and labelled["items"] < LEAST_ITEMS:
        more = f". The labelled queries show {labelled['items']} items, and {LEAST_ITEMS} are needed to use them"
    else:
        more = ". To measure this on users' photos, pass 50 labelled ones to `retrieval calibrate` with --queries"
    lines = [f"An unknown item (one that is not in the catalogue) returns a match in {promise}.", f"{found}{more}."]
    if evidence["tpir"] is not None and evidence["tpir"] < FEW_FOUND:
        lines.append(
            "Searches without a match list the closest items to pick from. For more matches, train a model, or accept "
            "more false matches with a larger --target-fpir."
        )
    return [*lines, *_details(evidence)]


def _details(evidence: Mapping[str, Any]) -> list[str]:
    """Return lines about the precision of matches, duplicates, and assumptions."""
    lines = []
    shares = {share: value for share, value in evidence.get("precision", {}).items() if value is not None}
    if shares:
        told = ", ".join(f"{value:.0%} if {float(share):.0%}" for share, value in shares.items())
        lines.append(f"How many matches show the right item first: {told} of the searches are for unknown items.")
        lines.append(f"{evidence['misidentification']:.1%} of {evidence['tpir_of']} return a wrong item first.")
    if evidence.get("duplicates"):
        rate = evidence.get("fpir_with_duplicates", evidence["fpir"])
        lines.append(
            f"{evidence['duplicates']} photos are also in the gallery under another item and were left out; with them, "
            f"{rate:.1%} of searches for unknown items return a match."
        )
    if evidence.get("assumptions"):
        lines += ["This assumes:", *(f"  - {assumption}" for assumption in evidence["assumptions"])]
    return lines
