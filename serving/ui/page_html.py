"""Render the search page's HTML: header and answers, in words for visitors.

All catalogue text is escaped in this module.
"""

from __future__ import annotations

import html
from collections.abc import Sequence
from pathlib import Path

from retrieval.bundle.operating_point import CERTIFIED
from retrieval.retriever import Retriever
from retrieval.search.result import (
    FILTERED_OUT,
    LOW_CERTAINTY,
    OUT_OF_DOMAIN,
    REVIEW_P,
    Match,
    SearchResult,
    p_value_words,
)

from .page_links import thumbnail_url

REVIEWED = 6  # largest number of candidates for review that are shown
NO_MATCH = "No confident match"
WAITING = (
    '<div class="r-empty"><p><b>Upload, paste or take a photo of one item.</b></p>'
    "<p>You get the catalogue item it shows. If the search is not sure, you get the closest ones to choose from.</p>"
    "</div>"
)
NO_THRESHOLD = (
    "This search cannot tell yet whether an item is in the catalogue: it shows the closest ones, right or not."
)
LEGEND = (
    '<p class="r-legend"><span class="r-bar"><i style="width:45%"></i><u style="left:70%"></u></span>'
    "The shorter the bar, the closer the item. The bar of a match ends before the line.</p>"
)
CHECK = "Check a match before you rely on it."


def header_html(retriever: Retriever, *, drift: bool = False) -> str:
    """Return the page header: gallery size, the rate of false matches in a sentence, and warnings.

    `drift`: whether recent photos differ from those that the rate was measured with.
    """
    rate = rate_sentence(retriever)
    link = '<a href="v1/report" target="_blank" rel="noopener">How this was measured</a>'
    return (
        '<header class="r-head"><h1>Which catalogue item is this?</h1><p>'
        f"<b>{retriever.gallery.items:,}</b> items, <b>{len(retriever.gallery):,}</b> photos. {rate} {link}</p>"
        + "".join(f'<p class="r-warning" role="alert">{text}</p>' for text in _warnings(retriever, drift=drift))
        + "</header>"
    )


def rate_sentence(retriever: Retriever) -> str:
    """Return how often an unknown item returns a match, as a sentence."""
    point, rates = retriever.point, retriever.rates()
    if not point.decides:
        return NO_THRESHOLD
    if rates is not None and point.status == CERTIFIED and not rates.broken(point):
        share = f"at most {point.target_fpir:.1%}"
    elif rates is not None:
        share = f"about {max(rates.fpir(point.threshold), float(point.evidence.get('fpir_expected', 0))):.1%}"
    else:
        share = f"about {point.target_fpir:.1%}"
    told = f"An unknown item (one that is not in the catalogue) returns a match in <b>{share}</b> of searches."
    here = point is not retriever.bundle.operating_point
    return told if here else f"{told} This was measured on other items, not in this catalogue."


def _warnings(retriever: Retriever, *, drift: bool) -> list[str]:
    point, rates = retriever.point, retriever.rates()
    warnings = []
    if rates is not None and rates.broken(point):
        warnings.append(f"That is more than intended, because the catalogue has changed. {CHECK}")
    if retriever.unmeasured:
        warnings.append(f"The catalogue has changed since this was measured. {CHECK}")
    if retriever.outgrown():
        warnings.append(f"That is more than intended, because the catalogue has grown. {CHECK}")
    if drift:
        warnings.append(f"Recent photos look different from those that this was measured with. {CHECK}")
    return warnings


def shown_items(result: SearchResult) -> tuple[Match, ...]:
    """Return the items that the page shows for an answer, in the order of their cards."""
    if result.matches:
        return (*result.matches, *result.review[:REVIEWED])
    if result.ranked:
        return result.ranked
    if result.nearest is None:
        return ()
    return result.review[:REVIEWED] or (result.nearest,)


def answer_html(result: SearchResult) -> str:
    """Return the answer to a query: the match, or the closest items without a claim about the catalogue."""
    shown = shown_items(result)
    if not shown:
        empty = "The gallery holds no photos yet." if result.reason != FILTERED_OUT else "No photo passes the filter."
        return banner("none", NO_MATCH, empty)
    scale = 1.25 * max(result.threshold or 0, *(match.distance for match in shown), 1e-6)

    def cards(start: int, stop: int) -> str:
        picked = "".join(_card(shown[n], n, result, scale) for n in range(start, stop))
        return f'<div class="r-cards">{picked}</div>'

    count = len(result.matches)
    if result.threshold is None:
        return banner("none", "The closest items", NO_THRESHOLD) + cards(0, len(shown))
    if not count:
        return banner("none", NO_MATCH, _no_match_text(result, len(shown))) + cards(0, len(shown)) + LEGEND
    text = "This item is close enough." if count == 1 else f"{count} items are close enough; this is the closest."
    review = len(shown) - count
    others = (
        f"<details class='r-others'><summary>{review} more, less close</summary>{cards(count, len(shown))}</details>"
    )
    title = title_of(shown[0])
    found = f'<div class="r-found">{cards(0, count)}</div>{others if review else ""}'
    return banner("match", f"This is {title}", text) + found + LEGEND


def _no_match_text(result: SearchResult, count: int) -> str:
    if result.reason == LOW_CERTAINTY:
        return "The photo is too ambiguous for an answer: another one, sharper or of one item alone, may get one."
    if result.reason == OUT_OF_DOMAIN:
        return "This photo is unlike those of this catalogue. This is the closest item."
    if count > 1:
        return "None of these items is close enough to be sure. Is it one of them?"
    return "No item is close enough to be sure. This is the closest one."


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


def _card(match: Match, number: int, result: SearchResult, scale: float) -> str:
    """Return the card of an item. Its button is shown and works where feedback is collected (page.css, page.js)."""
    title, item = html.escape(title_of(match)), html.escape(match.item_id)
    width, threshold = 100 * match.distance / scale, result.threshold
    limit = "" if threshold is None else f", threshold {threshold:.4f}"
    line = "" if threshold is None else f'<u style="left:{100 * threshold / scale:.1f}%"></u>'
    words = "" if match.p_value is None else f'<span class="r-p">{_closeness(match.p_value)}</span>'
    label = "It is this one"
    pick = f'<button type="button" class="r-pick" data-pick="{number}" aria-label="{label}: {title}">{label}</button>'
    return (
        f'<figure class="r-card"><img src="{html.escape(thumbnail_url(match.photo_id))}" alt="{title}">'
        f"<figcaption><b>{title}</b>"
        + (f'<span class="r-id">{item}</span>' if item != title else "")
        + words
        + f'<span class="r-bar" title="distance {match.distance:.4f}{limit}">'
        f'<i style="width:{width:.1f}%"></i>{line}</span></figcaption>'
        + ("" if threshold is None or (number == 0 and result.matches) else pick)  # "Yes, this one" is below
        + "</figure>"
    )


def _closeness(p_value: float) -> str:
    """Return what a p-value says, as a sentence for visitors; a large one has no figure."""
    clause = p_value_words(p_value) if p_value <= REVIEW_P else "photos of unknown items often come this close"
    return f"{clause[:1].upper()}{clause[1:]}."
