"""Map of the page: its controls, and the data that `page.js` draws.

Texts from the catalogue are passed as JSON, which the script inserts as text, never as HTML.
"""

from __future__ import annotations

import html
import json
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from retrieval.html import data_uri

from .embedding_map import TSNE, chosen_photos
from .outcomes import MISIDENTIFIED, MISSED, OUTCOMES
from .photos import TILE, TILES
from .run import ExplainedRun

KINDS = (  # kinds of points, in the order in which the script draws them
    ("gallery", "gallery photo", '<circle cx="8" cy="8" r="3"/>'),
    ("right", "right answer", '<circle class="full" cx="8" cy="8" r="4"/>'),
    (
        "alarm",
        "right answer, with another item within the threshold",
        '<circle class="full" cx="8" cy="8" r="3.5"/><circle cx="8" cy="8" r="7"/>',
    ),
    ("missed", "own item not found", '<path d="M8 2.5 13.5 12.5H2.5Z"/>'),
    ("mistaken", "another item returned first", '<path d="M3 3 13 13M13 3 3 13"/>'),
)
GALLERY, RIGHT, ALARM, MISSING, MISTAKEN = range(len(KINDS))
WORDS = {"test": "not trained on", "fit": "trained on", "validation": "held out in training"}
HELP = (
    "Hover over a photo, or click to select it. Arrow keys move between photos, N and P to the next and the previous "
    "error, plus and minus zoom, 0 shows all, Escape clears the selection."
)


def map_section(explained: ExplainedRun) -> str:
    """Return the HTML of the section."""
    kinds = point_kinds(explained)
    data, sheet = map_data(explained, kinds)
    boxes = "".join(
        f'<label><input type="checkbox" checked data-kind="{number}"><svg viewBox="0 0 16 16" aria-hidden="true">'
        f"{glyph}</svg>{words} ({int((kinds == number).sum())})</label>"
        for number, (_, words, glyph) in enumerate(KINDS)
        if (kinds == number).any()
    )
    present = np.unique(explained.labels[explained.map.photos]).tolist()
    options = "".join(f'<option value="{label}">{html.escape(explained.names[label])}</option>' for label in present)
    embedded = explained.map
    method = (
        "t-SNE, started from the principal components"
        if embedded.method == TSNE
        else "the first two principal components"
    )
    text = (
        f"{len(embedded.photos):,} photos by {method}; photos that are similar to the model are close to each other"
        + ("" if embedded.method == TSNE else f" (the plane explains {embedded.variance:.0%} of the variance)")
        + (f". {embedded.left_out:,} more are not drawn; errors take precedence" if embedded.left_out else "")
        + ". Colours are items. Errors are decided by distance, not by this map."
    )
    return (
        '<section aria-labelledby="map"><h2 id="map">Map of the embedding</h2>'
        f'<p class="soft">{text}</p><p class="soft" id="map-help">{HELP}</p>'
        '<div class="tools"><label>Show item <select id="map-item"><option value="-1">all</option>'
        f"{options}</select></label>"
        '<button type="button" id="map-previous">Previous error</button>'
        '<button type="button" id="map-next">Next error</button>'
        '<button type="button" id="map-closer" aria-label="Zoom in">+</button>'
        '<button type="button" id="map-wider" aria-label="Zoom out">−</button>'
        '<button type="button" id="map-reset">Show all</button></div>'
        f'<div class="tools"><fieldset><legend class="out">Kinds of photos to show</legend>{boxes}</fieldset></div>'
        '<div class="frame" id="map-frame" tabindex="0" role="application" aria-label="Map of photos" '
        'aria-describedby="map-help"><canvas></canvas><div class="tip" id="map-tip" hidden></div></div>'
        '<p class="out" id="map-told" role="status"></p><noscript><p>The map needs scripts.</p></noscript>'
        f'<img id="map-sheet" alt="" hidden src="{data_uri(sheet)}">'
        f'<script type="application/json" id="map-data">{script_json(data)}</script></section>'
    )


def point_kinds(explained: ExplainedRun) -> np.ndarray:
    """Return the kind of each point of the map (k,)."""
    explanation = explained.explanation
    kinds = np.full(len(explained.photos), GALLERY)
    outcomes = explanation.outcomes
    of_query = np.where(outcomes.false_alarm, ALARM, RIGHT)
    of_query[outcomes.kind == OUTCOMES.index(MISSED)] = MISSING
    of_query[outcomes.kind == OUTCOMES.index(MISIDENTIFIED)] = MISTAKEN
    kinds[explanation.split.queries] = of_query
    return np.asarray(kinds[explained.map.photos])


def map_data(explained: ExplainedRun, kinds: np.ndarray) -> tuple[dict[str, Any], bytes]:
    """Return the script's data, with columns for the map's points (k,), and the sheet of thumbnails."""
    explanation, embedded, photos = explained.explanation, explained.map, explained.photos
    labels = explained.labels[embedded.photos].tolist()
    row_of = {int(photo): row for row, photo in enumerate(explanation.split.queries)}
    rows = [row_of.get(int(photo)) for photo in embedded.photos]
    places = np.arange(len(embedded.photos))
    pictured = chosen_photos(places, places[kinds >= MISSING], most=TILES, seed=0)
    sheet, columns = explained.pictures.sheet(embedded.photos[pictured].tolist())
    tile_of = {int(place): tile for tile, place in enumerate(pictured)}
    return {
        "x": np.rint(embedded.points[:, 0] * 1e4).astype(int).tolist(),
        "y": np.rint((1 - embedded.points[:, 1]) * 1e4).astype(int).tolist(),
        "kind": kinds.tolist(),
        "item": labels,
        "photo": [photos[photo].photo_id for photo in embedded.photos],
        "tile": [tile_of.get(place, -1) for place in places.tolist()],
        "own": _of_rows(explanation.outcomes.own, rows),
        "other": _of_rows(explanation.outcomes.impostor, rows),
        "otherItem": [-1 if row is None else int(explanation.outcomes.nearest_other[row]) for row in rows],
        "items": list(explained.names),
        "parts": [part_words(explained, name) for name in explained.names],
        "words": [words for _, words, _ in KINDS],
        "side": TILE,
        "columns": columns,
    }, sheet


def part_words(explained: ExplainedRun, name: str) -> str:
    """Return whether the model was trained on an item, if the split has both kinds."""
    return "" if explained.split == "unseen" else WORDS.get(explained.parts.get(name, ""), "")


def script_json(value: Any) -> str:
    """Return JSON that cannot close the script element that contains it."""
    text = json.dumps(value, separators=(",", ":"), allow_nan=False)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _of_rows(values: np.ndarray, rows: Sequence[int | None]) -> list[float | None]:
    return [round(float(values[row]), 4) if row is not None and math.isfinite(values[row]) else None for row in rows]
