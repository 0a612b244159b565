"""The HTML of the search page: header and answers, in words for visitors. The templates escape all values."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined

from retrieval.bundle.operating_point import CERTIFIED
from retrieval.retriever import Retriever
from retrieval.search.result import (
    FILTERED_OUT,
    PERHAPS,
    RANKED,
    REVIEW_P,
    TWINS,
    Match,
    SearchResult,
    p_value_words,
)

REVIEWED = 6  # largest number of candidates for review that are shown
NO_MATCH = "No confident match"
NO_THRESHOLD = (
    "This search cannot tell yet whether an item is in the catalogue: it shows the closest ones, right or not."
)
UNDECIDED = "The closest items to parts of the photo, right or not: this search does not tell whether they match."
WAITING = """
<div class="r-empty"><p><b>Upload, paste or take a photo of one item.</b></p>
<p>You get the catalogue item it shows. If the search is not sure, you get the closest ones to choose from.</p></div>
"""
CHECK = "Check a match before you rely on it."


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("serving.page"), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    made.filters |= {"title_of": title_of, "thumbnail": thumbnail_url, "closeness": _closeness}
    return made


def header_html(retriever: Retriever, *, drift: bool = False) -> str:
    """Return the page header: gallery size, the rate of false matches in a sentence, and warnings.

    `drift`: whether recent photos differ from those that the rate was measured with.
    """
    point, rates = retriever.point, retriever.rates()
    share = f"about {point.target_fpir:.1%}"
    if rates is not None and point.status == CERTIFIED and not rates.broken(point):
        share = f"at most {point.target_fpir:.1%}"
    elif rates is not None:
        share = f"about {rates.expected(point.threshold):.1%}"
    warnings = {
        "That is more than intended, because the catalogue has changed.": rates is not None and rates.broken(point),
        "The catalogue has changed since this was measured.": retriever.unmeasured,
        "That is more than intended, because the catalogue has grown.": retriever.outgrown,
        "Recent photos look different from those that this was measured with.": drift,
    }
    return (
        _templates()
        .get_template("header.html")
        .render(
            items=retriever.gallery.items,
            photos=len(retriever.gallery),
            share=share if point.decides else "",
            elsewhere=point is retriever.bundle.operating_point,
            no_threshold=NO_THRESHOLD,
            warnings=[f"{text} {CHECK}" for text, holds in warnings.items() if holds],
        )
    )


def refused_html(text: str) -> str:
    """Return the refusal of a photo."""
    return _answer(kind="refused", title="This photo cannot be searched", text=text)


def answer_html(result: SearchResult, request_id: str = "") -> str:
    """Return the answer to a query: the match, or the closest items without a claim about the catalogue.

    With a `request_id` visitors can judge the answer.
    """
    matches, shown = list(result.matches), shown_items(result)
    others = shown[len(matches) :]
    if not shown:
        empty = "The gallery holds no photos yet." if result.reason != FILTERED_OUT else "No photo passes the filter."
        return _answer(kind="none", title=NO_MATCH, text=empty)
    told: dict[str, Any] = {"threshold": result.threshold, "request_id": request_id, "agreeing": _agreeing(result)}
    told["scale"] = 1.25 * max(result.threshold or 0, *(match.distance for match in shown), 1e-6)
    if result.decision == RANKED:
        return _answer(kind="none", title="The closest items", text=NO_THRESHOLD, others=others, **told)
    if result.decision == PERHAPS:
        return _answer(kind="none", title=_perhaps_title(result), text=_perhaps_text(result), others=others, **told)
    if not matches:
        return _answer(kind="none", title=NO_MATCH, text=_no_match_text(len(others)), others=others, **told)
    text = "This item is close enough."
    if len(matches) > 1:
        text = f"{len(matches)} items are close enough; this is the closest."
    title = f"This is {title_of(matches[0])}"
    return _answer(kind="match", title=title, text=text, matches=matches, others=others, **told)


def parts_html(results: Sequence[SearchResult]) -> str:
    """Return the items that parts of a photo show, and the nearest items to the other parts."""
    found = [result.nearest for result in results if result.nearest is not None]
    if not found:
        return _answer(kind="none", title="Nothing found", text="The gallery holds no photos yet.")
    matches = [result.matches[0] for result in results if result.matches]
    others = [near for near in found if near.item_id not in {match.item_id for match in matches}]
    scale = 1.25 * max(1e-6, *(match.distance for match in found))
    if matches:
        title = f"This shows {' and '.join(title_of(match) for match in matches)}"
        text = "These items are close enough to parts of the photo."
        return _answer(kind="match", title=title, text=text, matches=matches, others=others, scale=scale)
    if any(result.decision == RANKED for result in results):
        return _answer(kind="none", title="The closest items", text=UNDECIDED, others=others, scale=scale)
    return _answer(
        kind="none", title=NO_MATCH, text="No part of the photo is close enough.", others=others, scale=scale
    )


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
        "threshold": None,
        "request_id": "",
        "agreeing": 0,
    }
    values = {**defaults, "photo": "", "scale": 1.0, **told}
    return _templates().get_template("answer.html").render(kind=kind, title=title, text=text, **values)


def _agreeing(result: SearchResult) -> int:
    """Return the number of details that agree with the picture of the first match, if they were verified."""
    known = result.explanation.items if result.explanation else ()
    first = result.matches[0].item_id if result.matches else ""
    return next((evidence.inliers for evidence in known if evidence.item_id == first), 0)


def _perhaps_title(result: SearchResult) -> str:
    if result.reason == TWINS:
        return f"{title_of(result.review[0])} or {title_of(result.review[1])}"
    return f"Probably {title_of(result.review[0])}, please confirm"


def _perhaps_text(result: SearchResult) -> str:
    if result.reason == TWINS:
        return "The catalogue may have this item twice. Please check both."
    return "This item is the most likely one, but the search is not sure."


def _no_match_text(count: int) -> str:
    if count > 1:
        return "None of these items is close enough to be sure. Is it one of them?"
    return "No item is close enough to be sure. This is the closest one."


def _closeness(p_value: float) -> str:
    """Return what a p-value says, as a sentence for visitors; a large one has no figure."""
    clause = p_value_words(p_value) if p_value <= REVIEW_P else "photos of unknown items often come this close"
    return f"{clause[:1].upper()}{clause[1:]}."
