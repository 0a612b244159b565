"""Keep the operating point of a gallery and the draws behind it up to date."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any

import numpy as np

from index.contents import POINT
from index.drawable import Drawable
from index.draws import Probes
from index.kept_draws import KeptDraws, draws_name, update_draws
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import CERTIFIED, OperatingPoint
from retrieval.bundle.served_point import pack_points, stored_point, stored_points
from retrieval.errors import CalibrationError
from retrieval.indexing.worker import CONTENT
from retrieval.inspect.duplicates import is_copy

from .anchor import anchor
from .drawn_distances import LABELLED, LEAST_ITEMS, PROBE, REFERENCE, TOLERANCE, GalleryRates
from .labelled_queries import by_source, kept_queries, pack_queries, queries_name
from .query_shift import Shift, gallery_shift
from .regions import follow_regions
from .verdicts import FeedbackCaps

FEW_FOUND = 0.5  # share of photos that find their item, below which it is said what to do


@dataclass(frozen=True)
class Anchored:
    """The draws of a gallery version and the operating point that follows from them."""

    draws: KeptDraws
    point: OperatingPoint | None  # None if there are too few draws
    why_not: str = ""


class GalleryAnchor:
    """Makes the draws and the operating point of a gallery for one bundle.

    As `Gallery.on_change`, it updates the draws in the transaction of each change of photos. With `tighten` it also
    lowers the threshold if the new draws require a stricter one; it never raises the threshold.
    """

    def __init__(self, bundle: Bundle, *, tighten: bool = False) -> None:
        self.bundle = bundle
        self.tighten = tighten

    def __call__(self, gallery: Drawable) -> Mapping[str, bytes | None]:
        """Return the contents to keep with a change of photos."""
        points = stored_points(gallery.kept(POINT), self.bundle)
        contents: dict[str, bytes | None] = {}
        stricter = {}
        for photos_per_query in (1, *(count for count in points if count > 1)):
            draws = self.draws(gallery, photos_per_query=photos_per_query)
            contents |= draws.pack()
            point = self.stricter(gallery, draws, points.get(photos_per_query)) if self.tighten else None
            if point is not None:
                stricter[photos_per_query] = point
        of_regions, regions = follow_regions(self, gallery)
        contents |= of_regions
        if stricter or regions is not None:
            several = {**points, **stricter}
            contents[POINT] = pack_points(gallery.kept(POINT), self.bundle, several.pop(1), several, regions=regions)
        return contents

    def stricter(self, gallery: Drawable, draws: KeptDraws, stored: OperatingPoint | None) -> OperatingPoint | None:
        """Return a stricter operating point for one that misses its target, None if it is not needed or there is none.

        A gallery without a point gets its first one as soon as it has enough items, at most at the bundle's threshold
        if that decides. A certified point is replaced by an estimated one if the items left cannot certify the target.
        """
        if stored is None:
            cap = self.bundle.threshold if self.bundle.operating_point.decides else np.inf
            return self.anchored(gallery, draws, cap=cap).point
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
        return FeedbackCaps.of(stored).kept_with(new)

    def follow(self, gallery: Drawable, *, unanchored: bool = False) -> bool:
        """Update the draws with each change of photos, if the gallery keeps an operating point of this bundle.

        With `unanchored` and `tighten`, galleries without a point are followed too, to set one. Returns whether the
        gallery is followed.
        """
        if gallery.undrawable() or self.bundle.operating_point.of_pairs:
            return False
        if not (unanchored and self.tighten) and stored_point(gallery.kept(POINT), self.bundle) is None:
            return False
        gallery.on_change = self
        return True

    def draws(self, gallery: Drawable, *, labelled: Probes | None = None, photos_per_query: int = 1) -> KeptDraws:
        """Return the draws of the newest version, with the given labelled queries or those that the gallery keeps.

        Queries have `photos_per_query` photos each.
        """
        queries = kept_queries(gallery, self.bundle) if labelled is None else labelled
        probes = {**self._probes, **({} if queries is None else by_source(queries))}
        fitted = self.bundle.fitted
        is_fitted = (lambda *_: True) if fitted is None else fitted.contains  # older bundles have no list
        some = fitted is None or len(fitted) > 0
        draws = update_draws(
            gallery,
            KeptDraws.read(gallery, photos_per_query=photos_per_query) if labelled is None else None,
            model=self.bundle.draws_id,
            distance_form=self.bundle.distance_form,
            probes=probes,
            is_fitted=is_fitted if some else None,  # without it, not every photo is looked at
            own=not self.bundle.searches_other,  # the gallery's photos are not embedded as queries are
            content_key=CONTENT,
            photos_per_query=photos_per_query,
            is_copy=partial(is_copy, gallery.thumbnail),
        )
        asked = dict.fromkeys(probes[LABELLED].items) if LABELLED in probes else ()
        return replace(draws, fitted=draws.fitted | {item for item in asked if is_fitted(item, None)})

    def anchored(
        self,
        gallery: Drawable,
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
                photos_per_query=draws.photos_per_query,
            )
        except CalibrationError as error:
            return Anchored(draws, None, str(error))
        return Anchored(draws, replace(point, min_certainty=promised.min_certainty))

    def write(
        self,
        gallery: Drawable,
        anchored: Anchored,
        *,
        several: Mapping[int, Anchored] | None = None,
        labelled: Probes | None = None,
        action: str,
    ) -> None:
        """Keep the draws, the operating points and any new labelled queries as one change.

        `several` holds those of queries of several photos, by their number; other such points are removed.
        """
        before = gallery.kept(POINT)
        contents: dict[str, bytes | None] = {draws_name(count): None for count in stored_points(before, self.bundle)}
        measured = {count: each for count, each in (several or {}).items() if each.point is not None}
        for each in (anchored, *measured.values()):
            contents |= each.draws.pack()
        points = {count: each.point for count, each in measured.items() if each.point is not None}
        contents[POINT] = pack_points(before, self.bundle, anchored.point, points)
        if labelled is not None:
            contents[queries_name(self.bundle)] = pack_queries(labelled, self.bundle.features_key)
        gallery.keep(contents, action)

    @cached_property
    def _probes(self) -> dict[str, Probes]:
        calibration = self.bundle.calibration
        if calibration is None or calibration.vectors is None:
            return {}
        items = [str(label) for label in calibration.scores.labels]
        found = {PROBE: Probes(calibration.vectors, calibration.photo_ids.tolist(), items)}
        if calibration.gallery is not None and not self.bundle.searches_other:
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
    """Return lines about the precision of matches, duplicates, families with many false matches, and assumptions."""
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
    warning = evidence.get("concentration", {}).get("warning")
    if warning:
        lines.append(f"Warning: {warning}.")
    if evidence.get("assumptions"):
        lines += ["This assumes:", *(f"  - {assumption}" for assumption in evidence["assumptions"])]
    return lines
