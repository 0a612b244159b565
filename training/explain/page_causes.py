"""Section of the page on why searches miss: the causes with pictures, and the misses compared with another run."""

from __future__ import annotations

import html
from collections import Counter

from retrieval.html import picture

from .before_after import Comparison
from .causes import BLUR, CAUSES, CROP, DOMAIN, SIBLING, UNEXPLAINED, VIEW, Miss, rules
from .item_search import Places
from .run import ExplainedRun

PICTURES = 6  # misses shown per cause
HEADINGS = {
    BLUR: "Blurred query",
    DOMAIN: "Query unlike the gallery",
    CROP: "Another crop finds the item",
    SIBLING: "Look-alike item",
    VIEW: "Another view of the item",
    UNEXPLAINED: "Unexplained",
}


def causes_section(explained: ExplainedRun, comparison: Comparison | None = None) -> str:
    """Return the HTML of the section."""
    misses, meaning = explained.misses, rules()
    counts = Counter(miss.cause for miss in misses)
    parts = [
        f"<h3>{HEADINGS[cause]}: {counts[cause]} of {len(misses)}</h3>"
        f'<p class="soft">{html.escape(meaning[cause])}</p>'
        f'<div class="pairs">{"".join(_card(explained, miss) for miss in _shown(explained, cause))}</div>'
        for cause in CAUSES
        if counts[cause]
    ]
    text = (
        f"{len(misses):,} searches did not return their own item first. Each has one cause: the first of these rules "
        "that holds. A rule states what was measured, not what would fix the search."
        if misses
        else "Every search returned its own item first."
    )
    return (
        f'<section aria-labelledby="causes"><h2 id="causes">Why searches miss</h2><p class="soft">{text}</p>'
        f"{'' if comparison is None else _compared(comparison)}{''.join(parts)}</section>"
    )


def _shown(explained: ExplainedRun, cause: str) -> list[Miss]:
    """Return the misses of a cause to show: those farthest from a right answer."""
    threshold = explained.explanation.threshold
    found = [miss for miss in explained.misses if miss.cause == cause]
    return sorted(found, key=lambda miss: (min(miss.other, threshold) - miss.own, miss.row))[:PICTURES]


def _card(explained: ExplainedRun, miss: Miss) -> str:
    own = _nearest(explained, miss, miss.item)
    rival = _nearest(explained, miss, miss.rival)
    shown = [(miss.photo, "query"), (own, f"own item, {miss.own:.3f}"), (rival, f"other item, {miss.other:.3f}")]
    figures = "".join(
        f"<figure>{picture(explained.pictures(photo), alt=name)}<figcaption>{name}</figcaption></figure>"
        for photo, name in shown
        if photo is not None
    )
    names = explained.names[miss.item] + (f" / {explained.names[miss.rival]}" if miss.rival >= 0 else "")
    return (
        f'<article class="pair"><h3>{html.escape(names)}</h3><p class="soft">'
        f"{html.escape(explained.photos[miss.photo].photo_id)}: {html.escape(measured(miss))}</p>"
        f'<div class="couples">{figures}</div></article>'
    )


def measured(miss: Miss) -> str:
    """Return what was measured of a miss, for its cause."""
    sharpness, brightness, contrast = miss.deviations
    return {
        BLUR: f"sharpness {sharpness:+.1f} spreads",
        DOMAIN: f"brightness {brightness:+.1f}, contrast {contrast:+.1f} spreads, nearest photo at "
        f"{min(miss.own, miss.other):.3f}",
        CROP: f"found with {miss.crop}",
    }.get(miss.cause, miss.outcome)


def _nearest(explained: ExplainedRun, miss: Miss, item: int) -> int | None:
    """Return an item's gallery photo to show, the first one; None if there is none besides the query."""
    gallery: Places = explained.explanation.split.gallery
    photos = gallery[(explained.labels[gallery] == item) & (gallery != miss.photo)]
    return int(photos[0]) if len(photos) else None


def _compared(comparison: Comparison) -> str:
    head, *lines = (html.escape(line.strip()) for line in comparison.lines())
    return f"<p>{head}</p><ul>{''.join(f'<li>{line}</li>' for line in lines)}</ul>"
