"""HTML page of an explanation. It works offline, in light and dark mode, with mouse and keyboard.

All texts from the catalogue are escaped here or in `page_map`; no other module writes HTML.
"""

from __future__ import annotations

import html
import math
from pathlib import Path

from retrieval.html import document, picture

from .before_after import Comparison
from .item_search import Neighbour
from .item_utilities import ItemUtility, Utilities
from .outcomes import FALSE_ALARM, FOUND, MISIDENTIFIED, MISSED, ConfusedPair, WorstQuery
from .page_causes import causes_section
from .page_map import map_section, part_words
from .run import MEASURED, PLAIN_DISTANCE, ExplainedRun

STYLE, SCRIPT = (Path(__file__).with_name(name) for name in ("page.css", "page.js"))
WORST_ITEMS, BEST_ITEMS = 8, 4
LISTED = 20  # unreadable photos
WIDTH, HEIGHT = 150, 46  # size of a curve
HEADINGS = {
    MISIDENTIFIED: ("Another item returned first", "another item is nearer than its own, and within the threshold"),
    MISSED: ("Own item not found", "its own item is in the gallery, but nothing is within the threshold"),
    FALSE_ALARM: (
        "False alarms",
        "without its own item in the gallery, the search would return another one",
    ),
}
SPLITS = {
    "unseen": "that it was not trained on",
    "trained": "of its training partition",
    "mixed": "that it was and was not trained on",
}


def explain_page(explained: ExplainedRun, comparison: Comparison | None = None) -> str:
    """Return the page, with a comparison of its misses with another run's if given."""
    sections = (
        _head(explained),
        map_section(explained),
        _queries(explained),
        causes_section(explained, comparison),
        _pairs(explained),
        _items(explained),
    )
    body = f'<a class="skip" href="#queries">Skip the map</a>{sections[0]}<main>{"".join(sections[1:])}</main>'
    title = f"Errors of {explained.name}"
    return document(title, style=STYLE.read_text(), body=body, script=SCRIPT.read_text())


def _head(explained: ExplainedRun) -> str:
    explanation, outcomes = explained.explanation, explained.explanation.outcomes
    queries, alarms, mated = (
        len(explanation.split.queries),
        int(outcomes.false_alarm.sum()),
        explanation.rates.mated_queries,
    )
    source = f"from {MEASURED}" if explained.threshold_from == MEASURED else "set on the calibration items"
    distance = "plain distance" if explained.distance == PLAIN_DISTANCE else "the distance that export would select"
    known = _shares(
        f"When its item is in the gallery: {mated:,} searches",
        [
            ("good", "own item first", outcomes.count(FOUND)),
            ("wrong", "another item first", outcomes.count(MISIDENTIFIED)),
            ("none", "own item not found", outcomes.count(MISSED)),
        ],
    )
    unknown = _shares(
        f"When its item is not in the gallery: {queries:,} searches",
        [
            ("good", "nothing returned", queries - alarms),
            ("bad", f"something returned (target {explained.target_fpir:.1%})", alarms),
        ],
    )
    notes = [f"{note}." for note in explained.notes]
    if explained.unreadable:
        listed = "; ".join(f"{photo_id}: {reason}" for photo_id, reason in explained.unreadable[:LISTED])
        more = len(explained.unreadable) - LISTED
        count = len(explained.unreadable)
        notes.append(
            f"{count} {'photo' if count == 1 else 'photos'} could not be read and {'is' if count == 1 else 'are'} left "
            f"out: {listed}{f'; and {more} more' if more > 0 else ''}."
        )
    size = f"{explanation.gallery_items:,} items and {len(explanation.split.gallery):,} photos"
    return (
        f"<header><h1>Errors of {html.escape(explained.name)}</h1>"
        f"<p>{queries:,} searches for items {SPLITS[explained.split]}, in a gallery of {size}; "
        f"{html.escape(explained.protocol)}. A match is a distance of at most <b>{explanation.threshold:.4f}</b>: "
        f"{distance}, the threshold {source} for an FPIR of {explained.target_fpir:g}. "
        "Photos are cropped to the centred square that the model sees.</p>"
        + "".join(f'<p class="note">{html.escape(note[:1].upper() + note[1:])}</p>' for note in notes)
        + f'<div class="shares">{known}{unknown}</div>'
        '<nav aria-label="Sections"><a href="#map">Map</a><a href="#queries">Worst searches</a>'
        '<a href="#causes">Why searches miss</a>'
        '<a href="#pairs">Confused items</a><a href="#items">Items by utility</a></nav></header>'
    )


def _shares(title: str, parts: list[tuple[str, str, int]]) -> str:
    total = sum(count for *_, count in parts)
    if not total:
        return ""
    bars = "".join(f'<i class="is-{kind}" style="flex:{count}"></i>' for kind, _, count in parts if count)
    legend = "".join(
        f'<li><span class="dot is-{kind}"></span>{words}: <b>{count / total:.1%}</b> ({count:,})</li>'
        for kind, words, count in parts
    )
    return f'<div><h2>{title}</h2><div class="stack" aria-hidden="true">{bars}</div><ul>{legend}</ul></div>'


def _queries(explained: ExplainedRun) -> str:
    explanation = explained.explanation
    outcomes = explanation.outcomes
    counts = {
        MISIDENTIFIED: outcomes.count(MISIDENTIFIED),
        MISSED: outcomes.count(MISSED),
        FALSE_ALARM: int(outcomes.false_alarm.sum()) - outcomes.count(MISIDENTIFIED),
    }
    distances = [
        neighbour.distance for queries in explanation.worst.values() for query in queries for neighbour in _shown(query)
    ]
    scale = 1.15 * max([explanation.threshold, *distances, 1e-6])
    parts = []
    for kind, (heading, meaning) in HEADINGS.items():
        queries = explanation.worst[kind]
        text = f"The worst {len(queries)} of {counts[kind]:,}: {meaning}." if queries else f"None: {meaning}."
        parts.append(
            f'<h3>{heading}</h3><p class="soft">{text}</p>'
            + "".join(_query(explained, query, scale) for query in queries)
        )
    return (
        '<section aria-labelledby="queries"><h2 id="queries">Worst searches</h2><p class="soft">The searches '
        "whose distances are furthest from a right answer come first. Each is shown with its own item's nearest photo "
        "and the nearest items. The line in a bar is the threshold. The frame of its own item is green, that of other "
        "items within the threshold red.</p>"
        f"{''.join(parts)}</section>"
    )


def _shown(query: WorstQuery) -> tuple[Neighbour, ...]:
    return (*query.neighbours, query.own) if query.own else query.neighbours


def _query(explained: ExplainedRun, query: WorstQuery, scale: float) -> str:
    asked = _card(explained, query.photo, query.item, kind="asked")
    own = (
        _neighbour(explained, query.own, query.item, scale)
        if query.own
        else '<p class="soft">No photo of it is in the gallery.</p>'
    )
    others = "".join(_neighbour(explained, neighbour, query.item, scale) for neighbour in query.neighbours)
    return (
        f'<article class="query"><div><h4>Query and its own item</h4><div class="cards two">{asked}{own}</div></div>'
        f'<div><h4>Nearest items</h4><div class="cards four">{others}</div></div></article>'
    )


def _neighbour(explained: ExplainedRun, neighbour: Neighbour, own_item: int, scale: float) -> str:
    threshold = explained.explanation.threshold
    kind = "own" if neighbour.item == own_item else "match" if neighbour.accepted else "far"
    words = f"{neighbour.distance:.3f}, {'a match' if neighbour.accepted else 'too far'}"
    bar = (
        f'<span class="far">{words}</span><span class="bar" title="distance {neighbour.distance:.4f}, threshold '
        f'{threshold:.4f}"><i style="width:{100 * neighbour.distance / scale:.1f}%"></i>'
        f'<u style="left:{100 * threshold / scale:.1f}%"></u></span>'
    )
    return _card(explained, neighbour.photo, neighbour.item, kind=kind, more=bar)


def _card(explained: ExplainedRun, photo: int, item: int, *, kind: str, more: str = "") -> str:
    return (
        f'<figure class="card {kind}">{_image(explained, photo, item)}<figcaption>'
        f'<b>{_name(explained, item)}</b>{more}<span class="id">{html.escape(explained.photos[photo].photo_id)}</span>'
        "</figcaption></figure>"
    )


def _image(explained: ExplainedRun, photo: int, item: int) -> str:
    return picture(explained.pictures(photo), alt=f"Photo of {explained.names[item]}")


def _name(explained: ExplainedRun, item: int) -> str:
    name = explained.names[item]
    part = part_words(explained, name)
    return html.escape(name) + (f' <span class="soft">({part})</span>' if part else "")


def _pairs(explained: ExplainedRun) -> str:
    explanation = explained.explanation
    text = (
        f"{explanation.confused_pairs:,} pairs of items are within the threshold of each other in at least one "
        f"search; the {len(explanation.confused)} most frequent are shown, query above, returned photo below."
        if explanation.confused
        else "No search returns another item."
    )
    return (
        f'<section aria-labelledby="pairs"><h2 id="pairs">Confused items</h2><p class="soft">{text}</p>'
        f'<div class="pairs">{"".join(_pair(explained, pair) for pair in explanation.confused)}</div></section>'
    )


def _pair(explained: ExplainedRun, pair: ConfusedPair) -> str:
    labels = explained.labels
    examples = "".join(
        f"<figure>{_image(explained, match.query, labels[match.query])}"
        f"{_image(explained, match.photo, labels[match.photo])}"
        f'<figcaption class="soft">Query: {html.escape(explained.names[labels[match.query]])}, {match.distance:.3f}'
        "</figcaption></figure>"
        for match in pair.examples
    )
    first, second = (_name(explained, item) for item in pair.items)
    return (
        f'<article class="pair"><h3>{first} and {second}</h3><p>{pair.times:,} of the {pair.queries:,} searches for '
        f"either return the other ({pair.times / pair.queries:.0%}), {pair.first:,} of them before their own. Mean "
        f'distance {pair.distance:.3f}.</p><div class="couples">{examples}</div></article>'
    )


def _items(explained: ExplainedRun) -> str:
    utilities = explained.explanation.utilities
    head = '<section aria-labelledby="items"><h2 id="items">Items by utility</h2>'
    if utilities is None:
        return f"{head}<p>Utilities need at least two items, one of them with two photos.</p></section>"
    worst = utilities.items[:WORST_ITEMS]
    best = utilities.items[len(worst) :][-BEST_ITEMS:][::-1]
    line = ", the red line the threshold" if explained.distance == PLAIN_DISTANCE else ""
    lists = "".join(
        f'<h3>{title}</h3><ul class="items">{"".join(_item(explained, utilities, item) for item in items)}</ul>'
        for title, items in (("Lowest utility", worst), ("Highest utility", best))
        if items
    )
    return (
        f'{head}<p class="soft">Utility is the harmonic mean of specificity and sensitivity over pairs of photos, as '
        f"OPIS counts it; the number is its mean over the calibration range, {utilities.d_min:.3f} to "
        f"{utilities.d_max:.3f} (shaded; FAR 1&nbsp;% to 10&nbsp;%). A curve runs from distance "
        f"{utilities.distances[0]:.2f} to {utilities.distances[-1]:.2f}, its height from 0 to 1; grey is the mean of "
        f"all {len(utilities.items):,} items{line}. OPIS {utilities.opis:.2e}.</p>{lists}</section>"
    )


def _item(explained: ExplainedRun, utilities: Utilities, item: ItemUtility) -> str:
    photos = "".join(_image(explained, photo, item.item) for photo in item.examples)
    threshold = explained.explanation.threshold if explained.distance == PLAIN_DISTANCE else None
    return (
        f"<li>{sparkline(utilities, item, threshold)}<p><b>{_name(explained, item.item)}</b>"
        f'<span>utility {item.utility:.3f}</span><span class="soft">{item.photos} photos</span></p>'
        f'<div class="photos">{photos}</div></li>'
    )


def sparkline(utilities: Utilities, item: ItemUtility, threshold: float | None) -> str:
    """Return an SVG of an item's curve, with the mean curve and the calibration range."""
    low, high = utilities.distances[0], utilities.distances[-1]

    def across(distance: float) -> float:
        return WIDTH * (distance - low) / max(high - low, 1e-9)

    def path(curve: tuple[float, ...], kind: str) -> str:
        points = " ".join(
            f"{across(d):.1f},{2 + (HEIGHT - 4) * (1 - u):.1f}" for d, u in zip(utilities.distances, curve, strict=True)
        )
        return f'<polyline class="{kind}" points="{points}"/>'

    start, end = across(utilities.d_min), across(utilities.d_max)
    line = ""
    if threshold is not None and low <= threshold <= high and math.isfinite(threshold):
        line = f'<path class="line" d="M{across(threshold):.1f} 0V{HEIGHT}"/>'
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="utility {item.utility:.3f} on average over the '
        f'calibration range"><rect class="band" x="{start:.1f}" width="{max(end - start, 0.5):.1f}" height="{HEIGHT}"/>'
        f"{line}{path(utilities.mean, 'mean')}{path(item.curve, 'curve')}</svg>"
    )
