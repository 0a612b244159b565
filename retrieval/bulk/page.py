"""HTML page with the error rates of a search with many photos, and its worst answers with pictures.

If the bundle verifies matches, the pictures show the places where a query agrees with the photo that was found, and
with one of its own item.
"""

from __future__ import annotations

import html
from collections.abc import Callable, Mapping, Sequence

from PIL import Image

from index.location import AnyGallery
from retrieval.catalogue.photos import Photo
from retrieval.errors import ImageRefused
from retrieval.html import document, picture
from retrieval.images import crop, open_image
from retrieval.images.thumbnails import thumbnail
from retrieval.matched_places import STYLE as PLACES
from retrieval.matched_places import MatchedPlaces
from retrieval.result import RANKED
from retrieval.verification.verifier import GeometricVerifier

from .answers_file import Line
from .outcome import Outcome
from .rates import is_misidentified, is_nearest

STYLE = """
:root { color-scheme: light dark; --back: #fff; --text: #1a202c; --soft: #4a5568; --line: #cbd5e0; --box: #f1f5f9;
  --a: #2b6cb0; --b: #c05621; --c3: #c53030; }
@media (prefers-color-scheme: dark) { :root { --back: #0b1220; --text: #e8edf4; --soft: #a8b5c7; --line: #3a475c;
  --box: #172033; --a: #63b3ed; --b: #f6ad55; --c3: #fc8181; } }
* { box-sizing: border-box; }
body { font: 16px/1.55 system-ui, sans-serif; color: var(--text); background: var(--back); max-width: 62rem;
  margin: 1.5rem auto; padding: 0 1rem; }
h1 { font-size: 1.7rem; line-height: 1.25; margin: 0 0 .6rem; } h2 { font-size: 1.2rem; margin: 2rem 0 .4rem; }
p, li { max-width: 46rem; overflow-wrap: anywhere; } a { color: var(--a); } figcaption, .soft { color: var(--soft);
  font-size: .92rem; }
.status { border-left: 5px solid var(--b); background: var(--box); padding: .4rem 1rem; }
.certified { border-color: #2f855a; } .warning { border-left: 5px solid var(--b); padding-left: .8rem; }
.pair { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(24rem, 100%), 1fr)); gap: 1.2rem; }
figure { margin: 0; } .scroll { overflow-x: auto; }
table { border-collapse: collapse; font-size: .95rem; } td, th { padding: .3rem 1rem .3rem 0; text-align: right;
  font-weight: 400;
  border-bottom: 1px solid var(--line); font-variant-numeric: tabular-nums; }
td:first-child, th:first-child { text-align: left; } thead th { color: var(--soft); vertical-align: bottom; }
tr.chosen { font-weight: 600; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(min(15rem, 100%), 1fr)); gap: 1rem; }
.card { border: 1px solid var(--line); border-radius: 10px; padding: .6rem; overflow-wrap: anywhere;
  font-size: .9rem; }
.card div { display: flex; gap: .4rem; margin-bottom: .4rem; } .card img { width: calc(50% - .2rem); aspect-ratio: 1;
  object-fit: cover;
  border-radius: 6px; background: var(--box); }
summary { min-height: 44px; line-height: 44px; cursor: pointer; }
"""
TITLE = "Answers to photos of known items"
SHOWN = 24  # cards per section


def answers_page(
    outcome: Outcome,
    photos: Sequence[Photo],
    gallery: AnyGallery,
    *,
    target_fpir: float | None,
    verifier: GeometricVerifier | None = None,
) -> str:
    """Render the rates and the worst answers to the photos of a search as one HTML page."""
    rates = outcome.rates
    told = [outcome.summary() + ".", *([] if rates is None else rates.lines(target_fpir))]
    by_id = {photo.photo_id: photo for photo in photos}
    matched = None if verifier is None else MatchedPlaces(verifier, gallery)
    parts = [f"<h1>{TITLE}</h1>", *(f"<p>{html.escape(line)}</p>" for line in told)]
    for title, lines, text in worst_cases(outcome.known):
        cards = [_card(line, text(line), by_id, gallery, matched) for line in lines[:SHOWN]]
        more = f", {SHOWN} of {len(lines):,}" if len(lines) > SHOWN else f": {len(lines)}"
        parts.append(f"<h2>{title}{more}</h2><div class='cards'>{''.join(cards) or 'none'}</div>")
    return document(TITLE, style=STYLE + PLACES, body=f"<main>{''.join(parts)}</main>")


Section = tuple[str, list[Line], Callable[[Line], str]]


def worst_cases(lines: Sequence[Line]) -> list[Section]:
    """Return the sections of the page: a title, the answers, worst first, and a function that describes an answer."""
    used = [line for line in lines if not line["copy"]]
    mated = [line for line in used if line["in_gallery"]]
    wrong = [line for line in mated if is_misidentified(line)]
    if any(line["decision"] == RANKED for line in used):
        behind = [line for line in mated if not is_nearest(line)]
        return [("Photos whose nearest item is another one", sorted(behind, key=_distance), _nearest)]
    unknown = [line for line in used if not line["in_gallery"] and line["matches"]]
    missed = [line for line in mated if not line["matches"]]
    return [
        ("Unknown items that return a match", sorted(unknown, key=_distance), _matched),
        ("Photos that match another item first", sorted(wrong, key=_distance), _matched),
        ("Photos of the gallery's items without a match", sorted(missed, key=_distance, reverse=True), _nearest),
    ]


def _distance(line: Line) -> float:
    return float(line["nearest"]["distance"]) if line["nearest"] else float("inf")


def _matched(line: Line) -> str:
    shows = f"shows {line['truth']}" if line["truth"] else "shows an unknown item"
    return f"{line['photo_id']} {shows}; the answer is {_told(line['matches'][0])}."


def _nearest(line: Line) -> str:
    nearest = f"the nearest item is {_told(line['nearest'])}" if line["nearest"] else "no photo was compared"
    return f"{line['photo_id']} shows {line['truth']}; {nearest}."


def _told(match: Mapping[str, object]) -> str:
    p_value = match["p_value"]
    words = "" if p_value is None else f" (p-value {p_value:.3f})"
    return f"{match['item_id']}, {match['distance']:.3f} away{words}"


def _card(
    line: Line, text: str, photos: Mapping[str, Photo], gallery: AnyGallery, matched: MatchedPlaces | None
) -> str:
    """Return a card with the query, the photo that was found and one of the right item."""
    found = line["matches"][0] if line["matches"] else line["nearest"]
    query, shown = _query(photos.get(line["photo_id"])), {}
    if found:
        shown[f"found: {found['item_id']}"] = [found["photo_id"]]
    if line["in_gallery"] and not (found and found["item_id"] == line["truth"]):
        shown[f"its item: {line['truth']}"] = [photo_id for photo_id, *_ in gallery.photos(line["truth"])]
    if matched is not None and query is not None:
        return f"<div class='card'>{matched.of(query, shown)}{html.escape(text)}</div>"
    jpegs = {"query": None if query is None else thumbnail(query)}
    jpegs |= {caption: gallery.thumbnail(photo_ids[0]) for caption, photo_ids in shown.items() if photo_ids}
    pictures = "".join(picture(jpeg, alt=alt) for alt, jpeg in jpegs.items() if jpeg)
    return f"<div class='card'><div>{pictures}</div>{html.escape(text)}</div>"


def _query(photo: Photo | None) -> Image.Image | None:
    """Return a photo of the search, upright and cropped, None if it is gone."""
    if photo is None:
        return None
    try:
        return crop(open_image(photo.read()), photo.bbox)
    except ImageRefused:
        return None
