"""Render the answer to a search for all items in a photo: the photo with their boxes, and a card for each.

A box is a link to the card of its item, so it works by touch, mouse and keyboard.
"""

from __future__ import annotations

import html
from collections.abc import Sequence

from retrieval.bundle.operating_point import UNANCHORED
from retrieval.regions.result import NO_REGION, RegionMatch, RegionsResult
from retrieval.result import FILTERED_OUT, LOW_CERTAINTY, p_value_words

from .page_html import NO_MATCH, NO_THRESHOLD, banner, title_of
from .page_links import photo_url, thumbnail_url

JUDGE = "Is this right?"  # label of the button on a card
REVIEWED = 3  # maximum number of candidates shown without a match
UNMEASURED = (
    "The rate of false matches was not measured for this kind of search. It is probably much higher than for a photo "
    "of one item: check each match."
)
UNCLEAR = "The photo is too ambiguous for an answer: a sharper one may get one."
NOTHING = {
    NO_REGION: "No item was found in the photo.",
    FILTERED_OUT: "No photo passes the filter.",
    LOW_CERTAINTY: UNCLEAR,
}


def regions_html(result: RegionsResult, token: str, rate: float | None = None) -> str:
    """Return the answer for the photo with a token; `rate` is the share of photos of unknown items with a match."""
    shown = shown_regions(result)
    return _banner(result) + _note(result, rate) + _scene(shown, result, token) + _cards(shown, result)


def shown_regions(result: RegionsResult) -> tuple[RegionMatch, ...]:
    """Return the items that the page shows for an answer, in the order of their boxes and cards."""
    shown = result.matches or result.ranked or result.review[:REVIEWED]
    return shown or (() if result.nearest is None else (result.nearest,))


def _banner(result: RegionsResult) -> str:
    count = len(result.matches)
    if count:
        title = f"This is {title_of(result.matches[0])}" if count == 1 else f"{count} items found"
        return banner("match", title, "Each box on the photo shows what was found there.")
    if result.threshold is None:
        return banner("none", "The closest items", NO_THRESHOLD)
    text = NOTHING.get(result.reason, "No part of the photo is close enough to an item to be sure.")
    return banner("none", NO_MATCH, text)


def _note(result: RegionsResult, rate: float | None) -> str:
    """Return a paragraph about the rate of false matches, "" if there is no threshold."""
    if result.threshold is None:
        return ""
    words = UNMEASURED
    if result.threshold_status != UNANCHORED:
        share = "" if rate is None else f" in about {rate:.1%} of searches"
        words = f"A photo of unknown items returns a match{share or ' rarely'}, measured for this kind of search."
    return f'<p class="r-several">{words}</p>'


def _scene(shown: Sequence[RegionMatch], result: RegionsResult, token: str) -> str:
    """Return the photo with the boxes of items."""
    boxes = "".join(_box(match, number, result) for number, match in enumerate(shown, 1))
    kind = "" if result.matches else " r-unsure"
    photo = html.escape(photo_url(token))
    return f'<div class="r-scene{kind}"><img src="{photo}" alt="Your photo with {len(shown)} boxes">{boxes}</div>'


def _box(match: RegionMatch, number: int, result: RegionsResult) -> str:
    left, upper, right, lower = match.bbox
    sides = {
        "left": left / result.width,
        "top": upper / result.height,
        "width": (right - left) / result.width,
        "height": (lower - upper) / result.height,
    }
    style = ";".join(f"{side}:{100 * share:.2f}%" for side, share in sides.items())
    name = html.escape(title_of(match))
    label = f"Box {number}: {name}"
    return f'<a href="#region-{number}" style="{style}" aria-label="{label}"><span>{number} {name}</span></a>'


def _cards(shown: Sequence[RegionMatch], result: RegionsResult) -> str:
    can_judge = result.threshold is not None
    cards = "".join(_card(match, number, can_judge=can_judge) for number, match in enumerate(shown, 1))
    return f'<div class="r-cards r-regions">{cards}</div>'


def _card(match: RegionMatch, number: int, *, can_judge: bool) -> str:
    """Return the card of an item. Its button is shown and works where feedback is collected (page.css, page.js)."""
    pick = (
        f'<button type="button" class="r-pick" data-pick="{number - 1}" aria-label="{JUDGE}: box {number}">'
        f"{JUDGE}</button>"
    )
    title, item = html.escape(title_of(match)), html.escape(match.item_id)
    words = "" if match.p_value is None else f'<span class="r-p">{_sentence(p_value_words(match.p_value))}</span>'
    return (
        f'<figure class="r-card" id="region-{number}"><img src="{html.escape(thumbnail_url(match.photo_id))}" '
        f'alt="{title}"><figcaption><b>{number} {title}</b>'
        + (f'<span class="r-id">{item}</span>' if item != title else "")
        + f"{words}</figcaption>{pick if can_judge else ''}</figure>"
    )


def _sentence(clause: str) -> str:
    return f"{clause[:1].upper()}{clause[1:]}."
