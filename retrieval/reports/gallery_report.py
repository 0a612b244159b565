"""The report of a gallery: its error rates, how they were measured, and what they assume."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.groups import GROUP
from index.location import AnyGallery
from index.photos import NONE, Photos
from index.search.distance import accepts
from retrieval.bundle.bundle import Bundle
from retrieval.errors import photos_of_items
from retrieval.galleries.kept import read_draws
from retrieval.galleries.measured import GalleryMeasurement
from retrieval.measuring.draws import LABELLED, OWN, PROBE, REFERENCE, UNKNOWN, AllDraws, Draws
from retrieval.measuring.fpir import DrawnDistances, setting_draws
from retrieval.measuring.point import CERTIFIED, Point
from retrieval.measuring.rates import LABELLED_QUERIES, VersionRates, assumptions
from retrieval.measuring.sentences import caveats, describe_twins
from retrieval.measuring.sides import in_words, sides_of
from retrieval.measuring.twins import false_matches
from retrieval.reports import number, percent, render

from .charts import Chart, Line, histogram

POINTS = 161  # thresholds of the curves
SHARES = (0.01, 0.02, 0.05, 0.1, 0.2)  # FPIRs in the table of other thresholds
SHOWN = 12  # cards per section with pairs of photos
KIND_ITEMS = 5  # fewer items of a kind say nothing about its rates
LISTED = 6  # families and items with the most false matches
SOURCES = {
    OWN: "photos of this catalogue, with their own item left out",
    PROBE: "calibration photos of the model, of other items",
    LABELLED: "labelled photos of users, with their own item left out",
    UNKNOWN: "photos of users that show no item of this catalogue",
}

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class GalleryReport:
    """The data of a report: the point that serves and, if it was set in this gallery, its draws."""

    gallery: AnyGallery
    point: Point
    photos: int
    items: int
    snapshot: Photos | None = None
    draws: Mapping[str, Draws] | None = None  # of exactly the photos of the snapshot
    rates: VersionRates | None = None

    @classmethod
    def of(cls, bundle: Bundle, gallery: AnyGallery, point: Point) -> GalleryReport:
        """Return the data of a gallery's report for the point that serves."""
        plain = cls(gallery, point, len(gallery), gallery.items)
        if not point.is_anchored:
            return plain
        kept, snapshot = read_draws(gallery), gallery.snapshot()
        if kept is None or kept.model != bundle.draws_id or snapshot.changes_since(kept.mark):
            return plain
        return plain.with_draws(kept, snapshot)

    @classmethod
    def of_measurement(cls, gallery: AnyGallery, measurement: GalleryMeasurement) -> GalleryReport:
        """Return the data of a report for a point that the gallery may not have yet, with the draws behind it."""
        plain, now = cls(gallery, measurement.after, len(gallery), gallery.items), gallery.snapshot()
        return plain.with_draws(measurement.draws, now) if not now.changes_since(measurement.draws.mark) else plain

    def with_draws(self, kept: AllDraws, snapshot: Photos) -> GalleryReport:
        """Return the report with draws, which are of exactly the photos of the snapshot."""
        draws, rates = setting_draws(kept.sources, fitted=kept.fitted), VersionRates.of(kept, self.point)
        return replace(self, snapshot=snapshot, draws=draws, rates=rates)


def render_gallery_report(report: GalleryReport, *, live: Mapping[str, Any] | None = None) -> str:
    """Render a report as one HTML page. `live` is about a server's recent photos (`templates/gallery.html`)."""
    point, evidence = report.point, report.point.evidence
    drawn = None
    if report.rates is not None and report.draws is not None and report.snapshot is not None:
        drawn = _Drawn(report, report.rates, report.draws, report.snapshot).values()
    sides = sides_of(point, report.rates)
    facts = {"threshold": point.threshold_or_none, "status": point.status, "target_fpir": point.target_fpir, **evidence}
    return render(
        "gallery.html",
        point=point,
        evidence=evidence,
        caveats=caveats(point),
        size=f"{photos_of_items(report.photos, report.items)}.",
        promise=_promise(report),
        sides="" if sides is None else f"{in_words(sides)}.",
        precision=[
            (f"{float(share):.0%} of searches", percent(value, 0))
            for share, value in (point.rates.precision or {}).items()
        ],
        drawn=drawn,
        assumptions=point.basis.assumptions or assumptions([PROBE]),
        live=live,
        describe_twins=describe_twins,
        facts=[
            (name.replace("_", " "), number(value))
            for name, value in facts.items()
            if isinstance(value, str | int | float)
        ],
    )


def _promise(report: GalleryReport) -> dict[str, Any]:
    """Return the FPIR to expect, its bound, and whether it is certified or broken."""
    point, rates, upper = report.point, report.rates, report.point.rates.fpir_upper
    fpir = point.target_fpir if point.rates.fpir is None else point.rates.fpir
    expected = max(fpir, point.rates.fpir_expected or 0.0)
    if rates is not None:
        expected, upper = rates.expected(point.threshold), rates.fpir_upper(point.threshold)
    broken = rates is not None and rates.broken(point)
    certified = point.status == CERTIFIED and not broken
    return {"fpir": expected, "upper": upper, "broken": broken, "certified": certified}


@dataclass(frozen=True)
class _Drawn:
    """The parts of a report that come from its draws."""

    report: GalleryReport
    rates: VersionRates
    draws: Mapping[str, Draws]
    snapshot: Photos

    def values(self) -> dict[str, Any]:
        """Return the values of the template."""
        point, own = self.report.point, self.draws.get(OWN, Draws.none())
        families, returned = self.false_matches()
        return {
            "charts": [self.distances(), self.curves()],
            "thresholds": self.thresholds(),
            "sources": self.sources(),
            "kinds": self.kinds(own),
            "measured": self.rates.fpir(point.threshold),
            "expected": self.rates.expected(point.threshold),
            "families": families,
            "returned": returned,
            "look_alikes": self.pairs(own, np.argsort(own.distances, kind="stable"), own.nearest),
            "duplicates": self.pairs(own, np.flatnonzero(own.is_copied), own.duplicates),
        }

    @cached_property
    def mated(self) -> Draws | None:
        """The draws whose item has another photo: labelled queries if there are any, else own ones."""
        name = LABELLED if self.report.point.rates.tpir_of == LABELLED_QUERIES else OWN
        return self.draws.get(name) if name in self.draws and np.isfinite(self.draws[name].own).any() else None

    @cached_property
    def x_range(self) -> tuple[float, float]:
        """The range of distances."""
        return 0.0, max(float(self.rates.drawn.distances[-1]), 1.2 * self.report.point.threshold)

    def found_shares(self, thresholds: Floats) -> Floats | None:
        """Return the share of mated draws that find their item first, for some thresholds (t,)."""
        draws = self.mated
        if draws is None:
            return None
        right = np.sort(draws.own[np.isfinite(draws.own) & np.isinf(draws.wrong)])
        return np.asarray(np.searchsorted(right, thresholds, side="right") / np.isfinite(draws.own).sum())

    def distances(self) -> tuple[Chart, str]:
        """Return a chart with the distances of mated searches and of draws, and its caption."""
        edges, lines = np.linspace(*self.x_range, 41), []
        if self.mated is not None:
            finite = np.isfinite(self.mated.own)
            _, codes, counts = np.unique(self.mated.items[finite], return_inverse=True, return_counts=True)
            lines.append(histogram("to their own item", self.mated.own[finite], 1 / counts[codes], edges, "a"))
        drawn = self.rates.drawn
        lines.append(histogram("to the nearest other item", drawn.distances, drawn.weights, edges, "b"))
        top = 1.1 * max(float(line.y.max()) for line in lines)
        lines.append(Line.at("threshold", self.report.point.threshold, top, "c"))
        kinds = "Searches for unknown items" + ("" if self.mated is None else ", and for catalogue items")
        caption = f"{kinds}. Matches are left of the threshold."
        return Chart("Distances", lines, "distance", "share of photos", self.x_range, (0.0, top)), caption

    def curves(self) -> tuple[Chart, str]:
        """Return a chart with FPIR, its bound and TPIR against the threshold, and its caption."""
        point, grid = self.report.point, np.linspace(*self.x_range, POINTS)
        fpir, upper = (np.array([rate(t) for t in grid]) for rate in (self.rates.fpir, self.rates.fpir_upper))
        lines = [Line("false matches (FPIR)", grid, fpir, "b"), Line("FPIR, upper 95 % bound", grid, upper, "b dashed")]
        found = self.found_shares(grid)
        if found is not None:
            lines.append(Line("items found (TPIR)", grid, found, "a"))
        lines.append(Line("target", np.array(self.x_range), np.array([point.target_fpir] * 2), "d dashed"))
        lines.append(Line.at("threshold", point.threshold, 1.0, "c"))
        caption = "Searches for unknown items that return a match, and for catalogue items that find them first."
        title = "Error rates at other thresholds"
        return Chart(title, lines, "threshold", "share of searches", self.x_range), caption

    def thresholds(self) -> list[dict[str, Any]]:
        """Return the rates of thresholds with other FPIRs."""
        served = self.report.point.threshold
        others = {self.rates.drawn.at_share(share) for share in SHARES}
        rows = []
        for threshold in sorted({served, *others}):
            found = self.found_shares(np.array([threshold]))
            rates = (percent(self.rates.expected(threshold)), percent(self.rates.fpir_upper(threshold)))
            name = f"{threshold:.3f}{' (in use)' if threshold == served else ''}"
            cells = (name, *rates, percent(None if found is None else float(found[0]), 0))
            rows.append({"cells": cells, "chosen": threshold == served})
        return rows

    def sources(self) -> list[tuple[str, ...]]:
        """Return the rates of the sources of draws."""
        point = self.report.point
        rows: list[tuple[str, ...]] = []
        for name, draws in self.draws.items():
            drawn = DrawnDistances.of({name: draws}, shift=point.shift)
            if name != REFERENCE and drawn.items:
                rates = percent(drawn.fpir(point.threshold)), percent(drawn.fpir_upper(point.threshold))
                rows.append((SOURCES.get(name, name), f"{drawn.items:,}", f"{len(drawn.distances):,}", *rates))
        return rows

    def kinds(self, own: Draws) -> list[tuple[str, ...]]:
        """Return the rates of each kind of item, a group or the folder above the item, where there are several."""
        positions = self.snapshot.positions(own.ids.tolist())
        is_there = positions != NONE  # a photo may be removed while the report is made
        own, stored = own.where(is_there), self.snapshot.photos_at(positions[is_there])
        groups = np.array([str(metadata.get(GROUP) or "") for *_, metadata in stored])
        rows: list[tuple[str, ...]] = []
        for name in sorted(set(groups.tolist()) - {""}):
            each = replace(own.where(groups == name), groups=own.items[groups == name])
            drawn = DrawnDistances.of({OWN: each}, shift=self.report.point.shift)
            mated = own.where((groups == name) & np.isfinite(own.own))
            if drawn.items < KIND_ITEMS or not len(mated):
                continue
            right = accepts(np.where(np.isinf(mated.wrong), mated.own, np.inf), self.report.point.threshold).mean()
            rates = percent(drawn.fpir(self.report.point.threshold)), percent(float(right), 0)
            rows.append((name, f"{drawn.items:,}", *rates))
        return rows if len(rows) > 1 else []

    def pairs(self, draws: Draws, rows: NDArray[np.int64], others: NDArray[np.str_]) -> list[dict[str, Any]]:
        """Return cards of draws with another photo (n,), by id; each pair of items is shown once."""
        cards: list[dict[str, Any]] = []
        seen: set[frozenset[str]] = set()
        for row in rows.tolist():
            if len(cards) == SHOWN or not others[row]:
                break
            position = self.snapshot.positions([str(others[row])])
            if position[0] == NONE:
                continue
            ((photo_id, item_id, _),) = self.snapshot.photos_at(position)
            pair = frozenset((str(draws.items[row]), item_id))
            if pair not in seen:
                apart = f", {draws.distances[row]:.3f} apart" if others is draws.nearest else ""
                cards.append(self.card((str(draws.ids[row]), photo_id), f"{draws.items[row]} and {item_id}{apart}."))
            seen.add(pair)
        return cards

    def false_matches(self) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
        """Return cards of the families of similar items with the most false matches, and of the items returned most."""
        draws, shift = self.draws.get(OWN, Draws.none()), self.report.point.shift.applied
        if not len(draws):
            return [], []
        families, items = false_matches(draws, self.report.point.threshold - shift, most=LISTED)
        worst = [
            self.named(members[:2], f"{len(members)} similar items: {share:.0%} of all false matches")
            for members, share in families
        ]
        returned = [self.named([item], f"returned in {share:.0%} of all false matches") for item, share in items]
        return worst, returned

    def named(self, items: Sequence[str], text: str) -> dict[str, Any]:
        """Return a card of items with a text about them."""
        photos = [rows[0][0] for item in items if (rows := self.report.gallery.photos(item))]
        return self.card(photos, f"{', '.join(items)}: {text}.")

    def card(self, photo_ids: Iterable[str], text: str) -> dict[str, Any]:
        """Return a card with the thumbnails of photos and a text."""
        thumbnails = [(photo_id, self.report.gallery.thumbnail(photo_id)) for photo_id in photo_ids]
        return {"photos": [(name, jpeg) for name, jpeg in thumbnails if jpeg], "text": text}
