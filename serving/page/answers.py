"""The HTML of the search page: header and answers, in words for visitors. The templates escape all values."""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from retrieval.measuring.point import CERTIFIED
from retrieval.retriever import Retriever
from retrieval.search.result import (
    BLOCK,
    DAMAGED_PHOTO,
    FILTERED_OUT,
    MATCH,
    PERHAPS,
    RANKED,
    REGION,
    SHARED_PHOTO,
    TWINS,
    Match,
    SearchResult,
)

FRAMED = " This is about the framed part of your photo."
REVIEWED = 6  # largest number of candidates for review that are shown
NO_MATCH = "Nothing like this here"
NO_THRESHOLD = (
    "This search cannot tell yet whether an item is in the catalogue: it shows the closest ones, right or not."
)
UNDECIDED = "The closest items to parts of the photo, right or not. Choose a box on the photo to search with it alone."
SAYS: dict[str, str] = {
    TWINS: "The catalogue may have this item twice. Please check both.",
    SHARED_PHOTO: "These items have the same photo in the catalogue. Please check which one it is.",
    DAMAGED_PHOTO: "The photo is damaged: parts of it are missing. Please take it again.",
}  # by reason
WAITING = """
<div class="r-empty"><p><b>Choose, paste or take a photo of one item.</b></p>
<p>Paste or drop it anywhere on this page. You get the item it shows, or hear that there is none like it.</p></div>
"""
CHECK = "Check a match before you rely on it."


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("serving.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made.filters |= {"title_of": title_of, "thumbnail": thumbnail_url}
    return made


def header_html(retriever: Retriever, *, drift: bool = False) -> str:
    """Return the page header: gallery size, what the search finds and how often it is wrong, and warnings.

    `drift`: whether recent photos differ from those that the rates were measured with.
    """
    point, rates = retriever.gallery_point.measured()
    wrong, most = point.target_fpir, None
    if rates is not None and not (point.status == CERTIFIED and not rates.broken(point)):
        wrong, most = rates.expected(point.threshold), rates.fpir_upper(point.threshold)
    found = point.rates.tpir if point.is_anchored else None
    warnings = {
        "That is more than intended, because the catalogue has changed.": rates is not None and rates.broken(point),
        "The catalogue has changed since this was measured.": retriever.gallery_point.unmeasured,
        "That is more than intended, because the catalogue has grown.": retriever.gallery_point.outgrown,
        "Recent photos look different from those that this was measured with.": drift,
    }
    return (
        _templates()
        .get_template("header.html")
        .render(
            items=retriever.gallery.items,
            photos=len(retriever.gallery),
            decides=point.decides,
            certified=rates is not None and most is None,
            found="" if found is None else of_photos(found),
            wrong=of_photos(wrong),
            most="" if most is None else of_photos(most, at_most=True),
            elsewhere=point is retriever.bundle.operating_point,
            no_threshold=NO_THRESHOLD,
            warnings=[f"{text} {CHECK}" for text, holds in warnings.items() if holds],
        )
    )


def of_photos(share: float, *, at_most: bool = False) -> str:
    """Return a share in words: "6 of 10", "1 of 20", "2 of 1,000"; with `at_most`, one that is no smaller."""
    nearest, below = (math.ceil, math.floor) if at_most else (round, round)
    if share >= (0.3 if at_most else 0.095):
        return f"{nearest(10 * share)} of 10"
    if share < 0.0005:
        return "fewer than 1 of 1,000"
    return f"1 of {below(1 / share)}" if share >= 0.0095 else f"{nearest(1000 * share)} of 1,000"


def refused_html(text: str, what: str = "This photo") -> str:
    """Return the refusal of a photo, or of something else."""
    return _answer(kind="refused", title=f"{what} cannot be searched", text=text)


def answer_html(result: SearchResult, request_id: str = "", *, least_p: float = 0.0) -> str:
    """Return the answer to a query: the item, an item to confirm, or the closest items without a claim.

    With a `request_id` visitors can judge the answer. `least_p` is the smallest p-value that the gallery can show.
    """
    matches, shown = list(result.matches), shown_items(result)
    others = shown[len(matches) :]
    told: dict[str, Any] = {"others": others, "request_id": request_id}
    told |= {"places": _places(result), "threshold": result.threshold}
    framed = ""
    if result.look in {BLOCK, REGION} and result.decision in {MATCH, PERHAPS}:
        told["boxes"], framed = [result.box, *[None] * len(shown)], FRAMED  # of the first card
    if not shown:
        empty = "The gallery holds no photos yet." if result.reason != FILTERED_OUT else "No photo passes the filter."
        return _answer(kind="none", title=NO_MATCH, text=empty)
    if result.decision == RANKED:
        return _answer(kind="none", title="The closest items", text=NO_THRESHOLD, **told)
    if result.decision == PERHAPS:
        twins = result.reason in (TWINS, SHARED_PHOTO) and len(others) > 1
        first, *more = (title_of(match) for match in others)
        title = f"{first} or {more[0]}" if twins else f"Probably {first}. Is it?"
        text = SAYS.get(result.reason) or _closeness(others[0], least_p) + framed
        return _answer(kind="perhaps", title=title, text=text, asks=not twins, **told)
    if not matches:
        said = SAYS.get(result.reason, "No item is close enough.")
        few = "Is it one of these after all?" if len(others) > 1 else "Is it this one after all?"
        return _answer(kind="none", title=NO_MATCH, text=f"{said} {few}", **told)
    text = _closeness(matches[0], least_p) + framed
    if len(matches) > 1:
        text = f"{len(matches)} items are close enough; this is the closest. {text}"
    return _answer(kind="match", title=f"This is {title_of(matches[0])}", text=text, matches=matches, **told)


def parts_html(results: Sequence[SearchResult]) -> str:
    """Return the items that parts of a photo show, and the nearest items to the other parts."""
    found = [result for result in results if result.nearest is not None]
    if not found:
        return _answer(kind="none", title="Nothing found", text="The gallery holds no photos yet.")
    known = [result for result in found if result.matches]
    named = {result.matches[0].item_id for result in known}
    rest = [result for result in found if result.nearest is not None and result.nearest.item_id not in named]
    boxes = [result.box for result in (*known, *rest)]
    matches = [result.matches[0] for result in known]
    others = [result.nearest for result in rest]
    told = {"matches": matches, "others": others, "boxes": boxes}
    if matches:
        title = f"This shows {' and '.join(dict.fromkeys(title_of(match) for match in matches))}"
        return _answer(kind="match", title=title, text="Choose a box on the photo to search with it alone.", **told)
    if any(result.decision == RANKED for result in results):
        return _answer(kind="none", title="The closest items", text=UNDECIDED, **told)
    return _answer(kind="none", title=NO_MATCH, text="No part of the photo is close enough.", **told)


def labels_html(labels: Sequence[str]) -> str:
    """Return the labels of the example photos in their order."""
    return _templates().get_template("labels.html").render(labels=labels)


def shown_items(result: SearchResult) -> list[Match]:
    """Return the items that the page shows for an answer, in the order of their cards."""
    if result.matches:
        return [*result.matches, *result.review[:REVIEWED]]
    if result.ranked:
        return list(result.ranked)
    return list(result.review[:REVIEWED]) or ([] if result.nearest is None else [result.nearest])


def title_of(match: Match) -> str:
    """Return an item's display name: its metadata `name`, or its id."""
    name = match.metadata.get("name")
    return name if isinstance(name, str) and name.strip() else match.item_id


def thumbnail_url(photo_id: str) -> str:
    """Return the URL of a thumbnail of the gallery, relative to the page."""
    return f"v1/thumbnails/{quote(photo_id, safe='')}"  # quotes slashes too: a browser would resolve `..`


def example_label(file: Path) -> str:
    """Return the label of an example photo: its file name in words, without a leading number."""
    words = file.stem.replace("_", " ").replace("-", " ").split()
    label = " ".join(words[1:] if len(words) > 1 and words[0].isdigit() else words)
    return label[:1].upper() + label[1:]


def _answer(*, kind: str, title: str, text: str, **told: Any) -> str:
    """Return the answer with a decision banner; `kind` is match, none or refused."""
    defaults: dict[str, Any] = {
        "matches": [],
        "others": [],
        "boxes": [],
        "asks": False,
        "request_id": "",
        "places": "",
        "threshold": None,
    }
    return _templates().get_template("answer.html").render(kind=kind, title=title, text=text, **{**defaults, **told})


def _places(result: SearchResult) -> str:
    """Return the places at which the photo agrees with that of the first card: "x,y,u,v x,y,u,v"."""
    places = result.explanation.places if result.explanation else ()
    return " ".join(",".join(f"{value:.4g}" for value in place) for place in places)


def _closeness(match: Match, least_p: float) -> str:
    """Return what the p-value of a match says, in words for visitors."""
    if match.p_value is None:
        return "It is close enough."
    share = of_photos(match.p_value)
    at_most = "At most " if match.p_value <= least_p and not share.startswith("fewer") else ""
    comes = "comes" if share.startswith("1 of ") else "come"
    told = f"{at_most}{share} photos of other things {comes} this close."
    return told[:1].upper() + told[1:]
