"""Render the report of a gallery as one HTML page without scripts or external resources."""

from __future__ import annotations

import html
from collections.abc import Mapping, Sequence
from typing import Any

from retrieval.bundle.operating_point import CERTIFIED, OperatingPoint
from retrieval.html import document, figure_grid, table
from retrieval.threshold.assumptions import assumptions
from retrieval.threshold.drawn_distances import PROBE

from .data import GalleryReport
from .figures import curves_figure, distances_figure, scrolling, sources_table, thresholds_table
from .pictures import duplicate_cards, look_alike_cards, named_cards
from .style import STYLE

TITLE = "How often this search is wrong"


def render_gallery_report(report: GalleryReport, *, more: str = "") -> str:
    """Render a report as one HTML page. `more` is HTML to add at its end."""
    parts = [f"<h1>{TITLE}</h1>", _status(report)]
    if report.rates is not None and report.draws is not None and report.snapshot is not None:
        figures = [distances_figure(report, report.rates), curves_figure(report, report.rates)]
        parts += [figure_grid(figures), thresholds_table(report, report.rates), sources_table(report, report.rates)]
        parts += [_shift(report.point.evidence), _concentration(report)]
        parts += [_section("Items that are hardest to tell apart", look_alike_cards(report))]
        parts += [_duplicates(report)]
    elif report.point.evidence.get("anchored"):
        parts.append("<p class='warning'>The gallery has changed since these rates were measured.</p>")
    parts += [_assumptions(report), more, _evidence(report.point)]
    return document(TITLE, style=STYLE, body=f"<main>{''.join(parts)}</main>")


def _status(report: GalleryReport) -> str:
    point, evidence = report.point, report.point.evidence
    size = f"{report.photos:,} photos of {report.items:,} items."
    if not point.decides:
        told = "There is no threshold yet. Searches list the closest items, without a decision."
        return f"<div class='status'><p>{size} {told}</p></div>"
    lines = [f"{size} An unknown item is one that is not in the catalogue.", _promise(report)]
    tpir, wrong = evidence.get("tpir"), evidence.get("misidentification")
    if tpir is None:
        lines.append("The share of photos that find their item was not measured.")
    else:
        of = html.escape(str(evidence.get("tpir_of") or "photos whose item is in the catalogue"))
        also = "" if wrong is None else f", and {wrong:.1%} return another item first"
        closest = evidence.get("closest_is_right")
        ranks = "" if closest is None else f" With or without a match, the right item is the closest for {closest:.0%}."
        lines.append(f"<b>{tpir:.0%}</b> of {of} find their item as a match{also}.{ranks}")
    if not evidence.get("anchored"):
        lines.append("This was measured with other items, not in this catalogue.")
    lines += [html.escape(f"{caveat}.") for caveat in ([] if evidence.get("anchored") else point.caveats())]
    precision = evidence.get("precision")
    kind = "status certified" if point.status == CERTIFIED else "status"
    return f"<div class='{kind}'>{''.join(f'<p>{line}</p>' for line in lines)}</div>{_precision(precision)}"


def _promise(report: GalleryReport) -> str:
    point, evidence, rates = report.point, report.point.evidence, report.rates
    fpir, upper = (
        (rates.fpir(point.threshold), rates.fpir_upper(point.threshold))
        if rates is not None
        else (float(evidence.get("fpir", point.target_fpir)), evidence.get("fpir_upper"))
    )
    fpir = max(fpir, float(evidence.get("fpir_expected", 0)))
    bound = "" if upper is None else f", and at most {upper:.1%} with 95 % confidence"
    if point.status == CERTIFIED and (rates is None or not rates.broken(point)):
        return f"An unknown item returns a match in <b>at most {point.target_fpir:.1%}</b> of searches (certified)."
    broken = rates is not None and rates.broken(point)
    more = f" That is more than the intended {point.target_fpir:.1%}: the catalogue has changed." if broken else ""
    return f"An unknown item returns a match in <b>about {fpir:.1%}</b> of searches (estimated{bound}).{more}"


def _precision(precision: Mapping[str, float | None] | None) -> str:
    if not precision:
        return ""
    rows = [
        (f"{float(share):.0%} of searches", "not measured" if value is None else f"{value:.0%}")
        for share, value in precision.items()
    ]
    return (
        "<h2>Of 100 matches, how many are right?</h2><p>That depends on how many searches are for unknown items.</p>"
        + scrolling(table(("searches for unknown items", "matches that are right"), rows))
    )


def _shift(evidence: Mapping[str, Any]) -> str:
    shift = evidence.get("shift")
    if not shift or not shift.get("items"):
        return "<p>Whether users' photos differ from catalogue photos was not measured.</p>"
    value, error = float(shift["value"]), float(shift.get("error", 0))
    farther = f"{abs(value):.3f} {'farther from' if value >= 0 else 'nearer to'}"
    applied = float(shift.get("applied", 0))
    use = f"{applied:+.3f} is added to the distances of catalogue photos" if applied else "it is not added"
    return (
        f"<p>Users' photos are {farther} other items than catalogue photos of the same {int(shift['items'])} items "
        f"(standard error {error:.3f}); {use}.</p>"
    )


def _concentration(report: GalleryReport) -> str:
    """Return the items and families with the most false matches, if the evidence lists them."""
    concentration = report.point.evidence.get("concentration") or {}
    warning = concentration.get("warning", "")
    tenth = concentration.get("tenth")
    told = f"<p class='warning'>{html.escape(str(warning))}</p>" if warning else ""
    if tenth is not None:
        families = int(concentration.get("families", 0))
        told += f"<p>In the worst tenth of the {families:,} families, the rate is about {float(tenth):.0%}.</p>"
    families_cards = [
        (list(map(str, row.get("items", ())))[:2], f"{int(row['size'])} similar items: about {row['fpir']:.0%}")
        for row in concentration.get("worst_families", ())
    ]
    items = [([str(row["item"])], f"when left out, {row['fpir']:.0%} of its photos return a match")
             for row in concentration.get("worst_items", ())]  # fmt: skip
    attracting = [([str(row["item"])], f"returned in {row['share']:.0%} of all false matches")
                  for row in concentration.get("attracting", ())]  # fmt: skip
    parts = [
        _section("Families of similar items with the most false matches", named_cards(report.gallery, families_cards)),
        _section("Items whose photos return a match when the item is left out", named_cards(report.gallery, items)),
        _section("Items that unknown items are mistaken for", named_cards(report.gallery, attracting)),
    ]
    return (f"<h2>Where the false matches are</h2>{told}" if told else "") + "".join(parts)


def _duplicates(report: GalleryReport) -> str:
    cards = duplicate_cards(report)
    if not cards:
        return ""
    both = report.point.evidence.get("fpir_with_duplicates")
    told = "These photos are in the catalogue under two ids. They are not counted as false matches"
    told += f"; with them, the rate would be {both:.1%}." if both is not None else "."
    return f"<h2>Duplicates</h2><p>{told}</p><div class='cards'>{''.join(cards)}</div>"


def _assumptions(report: GalleryReport) -> str:
    assumed = report.point.evidence.get("assumptions") or assumptions(PROBE)
    return f"<h2>What is assumed</h2><ul>{''.join(f'<li>{html.escape(str(line))}</li>' for line in assumed)}</ul>"


def _evidence(point: OperatingPoint) -> str:
    values = {
        "threshold": point.threshold_or_none,
        "status": point.status,
        "target_fpir": point.target_fpir,
        **point.evidence,
    }
    rows = [
        (html.escape(name.replace("_", " ")), f"{value:.4g}" if isinstance(value, float) else html.escape(str(value)))
        for name, value in values.items()
        if isinstance(value, str | int | float)
    ]
    return f"<details><summary>All numbers</summary>{scrolling(table((), rows))}</details>"


def _section(title: str, cards: Sequence[str]) -> str:
    return f"<h2>{title}</h2><div class='cards'>{''.join(cards)}</div>" if cards else ""
