"""An answer as HTML: the matches side by side, or a clear no-match with the closest item greyed out.

Every text of the catalogue is escaped here, and nothing else writes HTML.
"""

from __future__ import annotations

import html
from urllib.parse import quote

from retrieval.result import LOW_CERTAINTY, OUT_OF_DOMAIN, Match, SearchResult
from retrieval.retriever import Retriever

WAITING = (
    '<div class="r-empty"><p><b>Upload, paste or take a photo of one product.</b></p>'
    "<p>You get the catalogue items it shows, or a plain <em>not in the catalogue</em>.</p></div>"
)
LEGEND = (
    '<p class="r-legend"><span class="r-bar"><i style="width:45%"></i><u style="left:70%"></u></span>'
    "distance to your photo; the line is the threshold {threshold:.3f}</p>"
)


def header_html(retriever: Retriever) -> str:
    """Return the head of the page: what is searched, and what the threshold promises."""
    point, view = retriever.bundle.operating_point, retriever.outlook()
    warning = "" if view is None else view.warning()
    return (
        '<header class="r-head"><h1>Which catalogue item is this?</h1><p>'
        f"<b>{retriever.gallery.items:,}</b> items, <b>{len(retriever.gallery):,}</b> photos. "
        f"A match is a distance of at most <b>{point.threshold:.3f}</b>: about {point.target_fpir:.0%} of the photos "
        f"of unknown items still return something (<b>{html.escape(point.status)}</b>).</p>"
        + (f'<p class="r-warning" role="alert">{html.escape(warning)}.</p>' if warning else "")
        + "</header>"
    )


def answer_html(result: SearchResult) -> str:
    """Return the answer to one photo."""
    if result.nearest is None:
        return banner("none", "Not in the catalogue", "The gallery holds no photos yet.")
    scale = 1.25 * max(result.threshold, result.nearest.distance, *(match.distance for match in result.matches), 1e-6)
    legend = LEGEND.format(threshold=result.threshold)
    if not result.matches:
        told = _why_not(result, result.nearest)
        card = _card(result.nearest, result.threshold, scale, note="closest, but not a match")
        return banner("none", "Not in the catalogue", told) + f'<div class="r-cards r-grey">{card}</div>{legend}'
    count = len(result.matches)
    told = (
        "One item within the threshold."
        if count == 1
        else f"The nearest {count} items within the threshold, best first."
    )
    cards = "".join(_card(match, result.threshold, scale) for match in result.matches)
    title = f"This is {title_of(result.matches[0])}"
    return banner("match", title, told) + f'<div class="r-cards">{cards}</div>{legend}'


def _why_not(result: SearchResult, nearest: Match) -> str:
    away = f"The closest item is {nearest.distance:.3f} away; a match needs {result.threshold:.3f} or less."
    if result.reason == LOW_CERTAINTY:
        return "The photo is too ambiguous for an answer: another one, sharper or of one product alone, may get one."
    if result.reason == OUT_OF_DOMAIN:
        return f"It looks like nothing that this catalogue is about. {away}"
    return away


def banner(kind: str, title: str, text: str) -> str:
    """Return the lines that state the decision; kind is match, none or refused."""
    return f'<div class="r-banner r-{kind}" role="status"><h2>{html.escape(title)}</h2><p>{html.escape(text)}</p></div>'


def title_of(match: Match) -> str:
    """Return what an item is called: its metadata `name`, or its id."""
    name = match.metadata.get("name")
    return name if isinstance(name, str) and name.strip() else match.item_id


def thumbnail_url(photo_id: str) -> str:
    """Return the address of a thumbnail, relative to the page."""
    return f"v1/thumbnails/{quote(photo_id, safe='')}"  # a slash too: a browser would resolve `..`


def _card(match: Match, threshold: float, scale: float, *, note: str = "") -> str:
    title, item = html.escape(title_of(match)), html.escape(match.item_id)
    width, line = 100 * match.distance / scale, 100 * threshold / scale
    return (
        f'<figure class="r-card"><img src="{html.escape(thumbnail_url(match.photo_id))}" alt="{title}">'
        f"<figcaption><b>{title}</b>"
        + (f'<span class="r-id">{item}</span>' if item != title else "")
        + (f'<span class="r-note">{html.escape(note)}</span>' if note else "")
        + f'<span>distance <strong>{match.distance:.3f}</strong></span><span class="r-bar" '
        f'title="distance {match.distance:.4f}, threshold {threshold:.4f}">'
        f'<i style="width:{width:.1f}%"></i><u style="left:{line:.1f}%"></u></span></figcaption></figure>'
    )
