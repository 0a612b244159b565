"""Render the search page's HTML: header, answers, threshold preview and drift table.

All catalogue text is escaped in this module.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

from retrieval.bundle.bundle import REPORT
from retrieval.html import table
from retrieval.result import FILTERED_OUT, LOW_CERTAINTY, OUT_OF_DOMAIN, Match, SearchResult
from retrieval.retriever import Retriever
from serving.ops.drift_monitor import Drift

from .threshold_preview import ThresholdCurves

WAITING = (
    '<div class="r-empty"><p><b>Upload, paste or take a photo of one item.</b></p>'
    "<p>You get the catalogue items it shows, or a plain <em>not in the catalogue</em>.</p></div>"
)
NO_THRESHOLD = "There are too few items to tell a match from no match: the closest ones are shown, right or not."
LEGEND = (
    '<p class="r-legend"><span class="r-bar"><i style="width:45%"></i><u style="left:70%"></u></span>'
    "distance to your photo; the line is the threshold {threshold:.3f}</p>"
)


def header_html(retriever: Retriever, drift: str = "") -> str:
    """Return the page header: gallery size, threshold with its target FPIR, and warnings."""
    point, forecast, rates = retriever.point, retriever.fpir_forecast(), retriever.rates()
    outgrown = "" if forecast is None else forecast.warning()
    warnings = [outgrown if rates is None else rates.warning(point), drift]
    measured = "" if rates is None else ", set in this gallery"
    report = REPORT in retriever.bundle.manifest["files"] and point is retriever.bundle.operating_point
    link = ' <a href="v1/report" target="_blank" rel="noopener">How it was set</a>' if report else ""
    rule = (
        f"A match is within the distance <b>{point.threshold:.3f}</b>. Target: at most "
        f"{100 * point.target_fpir:.3g}% of photos of unknown items return a match "
        f"(<b>{html.escape(point.status)}</b>{measured}).{link}"
        if point.decides
        else NO_THRESHOLD
    )
    return (
        '<header class="r-head"><h1>Which catalogue item is this?</h1><p>'
        f"<b>{retriever.gallery.items:,}</b> items, <b>{len(retriever.gallery):,}</b> photos. {rule}</p>"
        + "".join(f'<p class="r-warning" role="alert">{html.escape(text)}.</p>' for text in warnings if text)
        + "</header>"
    )


def answer_html(result: SearchResult) -> str:
    """Return the answer to one photo: match cards, or a no-match with the closest item greyed out."""
    if result.nearest is None:
        empty = "The gallery holds no photos yet." if result.reason != FILTERED_OUT else "No photo passes the filter."
        return banner("none", "Not in the catalogue", empty)
    if result.threshold is None:
        scale = 1.25 * max(*(match.distance for match in result.ranked), 1e-6)
        cards = "".join(_card(match, None, scale) for match in result.ranked)
        return banner("none", "The closest items", NO_THRESHOLD) + f'<div class="r-cards">{cards}</div>'
    scale = 1.25 * max(result.threshold, result.nearest.distance, *(match.distance for match in result.matches), 1e-6)
    legend = LEGEND.format(threshold=result.threshold)
    if not result.matches:
        reason = _no_match_reason(result.reason, result.nearest, result.threshold)
        card = _card(result.nearest, result.threshold, scale, note="closest, but not a match")
        return banner("none", "Not in the catalogue", reason) + f'<div class="r-cards r-grey">{card}</div>{legend}'
    count = len(result.matches)
    text = (
        "One item within the threshold."
        if count == 1
        else f"The nearest {count} items within the threshold, best first."
    )
    cards = "".join(_card(match, result.threshold, scale) for match in result.matches)
    title = f"This is {title_of(result.matches[0])}"
    return banner("match", title, text) + f'<div class="r-cards">{cards}</div>{legend}'


def _no_match_reason(reason: str, nearest: Match, threshold: float) -> str:
    away = f"The closest item is {nearest.distance:.3f} away; a match needs {threshold:.3f} or less."
    if reason == LOW_CERTAINTY:
        return "The photo is too ambiguous for an answer: another one, sharper or of one item alone, may get one."
    if reason == OUT_OF_DOMAIN:
        return f"It does not look like anything in this catalogue. {away}"
    return away


def threshold_preview_html(threshold: float, served: float, curves: ThresholdCurves) -> str:
    """Return the error rates of another threshold beside those of the served one."""
    rows = []
    for name, value in (("this threshold", threshold), ("the served one", served)):
        fpir, fnir = curves.at(value)
        rows.append((f"{name}, {value:.3f}", f"{fpir:.1%}", f"{fnir:.1%}"))
    columns = ("", "unknown items that return something (FPIR)", "known items that are missed (FNIR)")
    return (
        table(columns, rows, kind="r-table")
        + f"<p class='r-small'>On the calibration's photos, {curves.items:,} items. This "
        "preview does not change the threshold; <code>retrieval calibrate</code> sets the gallery's.</p>"
    )


def drift_html(drifts: Sequence[Drift], warning: str) -> str:
    """Return the drift statistics as a table."""

    def number(value: float | None) -> str:
        return "–" if value is None else f"{value:.3g}"

    def verdict(drift: Drift) -> str:
        if drift.effect is None:
            return "too few to tell" if drift.reference else "nothing to compare with"
        return f"{drift.effect:.2f}, {'differs' if drift.alarm else 'as expected'}"

    rows = [
        (drift.statistic.replace("_", " "), number(drift.median), number(drift.reference_median), verdict(drift))
        for drift in drifts
    ]
    searches = max((drift.searches for drift in drifts), default=0)
    return (
        f"<p class='r-small'>{html.escape(warning) or 'No statistic differs'}. "
        f"Searches compared: {searches:,}.</p>"
        + table(("", "median now", "median before", "difference"), rows, kind="r-table")
    )


def example_label(file: Path) -> str:
    """Return the label of an example photo: its file name in words, without a leading number."""
    words = file.stem.replace("_", " ").replace("-", " ").split()
    label = " ".join(words[1:] if len(words) > 1 and words[0].isdigit() else words)
    return label[:1].upper() + label[1:]


def example_labels_html(labels: Sequence[str]) -> str:
    """Return the labels of the example photos in their order, as a list that the page's script reads."""
    return f"<ol id='example-labels'>{''.join(f'<li>{html.escape(label)}</li>' for label in labels)}</ol>"


def banner(kind: str, title: str, text: str) -> str:
    """Return the decision banner; `kind` is match, none or refused."""
    return f'<div class="r-banner r-{kind}" role="status"><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p></div>'


def title_of(match: Match) -> str:
    """Return an item's display name: its metadata `name`, or its id."""
    name = match.metadata.get("name")
    return name if isinstance(name, str) and name.strip() else match.item_id


def thumbnail_url(photo_id: str) -> str:
    """Return the URL of a thumbnail, relative to the page."""
    return f"v1/thumbnails/{quote(photo_id, safe='')}"  # quotes slashes too: a browser would resolve `..`


def _card(match: Match, threshold: float | None, scale: float, *, note: str = "") -> str:
    title, item = html.escape(title_of(match)), html.escape(match.item_id)
    width = 100 * match.distance / scale
    limit = "" if threshold is None else f", threshold {threshold:.4f}"
    line = "" if threshold is None else f'<u style="left:{100 * threshold / scale:.1f}%"></u>'
    return (
        f'<figure class="r-card"><img src="{html.escape(thumbnail_url(match.photo_id))}" alt="{title}">'
        f"<figcaption><b>{title}</b>"
        + (f'<span class="r-id">{item}</span>' if item != title else "")
        + (f'<span class="r-note">{html.escape(note)}</span>' if note else "")
        + f'<span>distance <strong>{match.distance:.3f}</strong></span><span class="r-bar" '
        f'title="distance {match.distance:.4f}{limit}">'
        f'<i style="width:{width:.1f}%"></i>{line}</span></figcaption></figure>'
    )
