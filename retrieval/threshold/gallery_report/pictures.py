"""Cards of the report: pairs of photos, duplicates and items, with thumbnails from the gallery."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

import numpy as np

from index.location import AnyGallery, AnyPhotos
from index.search.leave_one_out import NOBODY, OWN
from retrieval.html import picture

from .data import GalleryReport

SHOWN = 12  # cards per section


def look_alike_cards(report: GalleryReport) -> list[str]:
    """Return the nearest pairs of photos of different items, each pair of items once."""
    draws, snapshot = (report.draws or {}).get(OWN), report.snapshot
    if draws is None or snapshot is None:
        return []
    cards: list[str] = []
    seen: set[frozenset[str]] = set()
    for row in np.argsort(draws.distances, kind="stable").tolist():
        pair = frozenset((str(draws.items[row]), str(draws.nearest_items[row])))
        if len(cards) == SHOWN or not np.isfinite(draws.distances[row]):
            break
        if pair in seen:
            continue
        seen.add(pair)
        photos = (str(draws.ids[row]), _photo_of(snapshot, int(draws.nearest[row])))
        distance = float(draws.distances[row]) + report.shift
        match = " If one is missing, its photo returns the other." if distance <= report.point.threshold else ""
        names = f"{draws.items[row]} and {draws.nearest_items[row]}"
        cards.append(card(report.gallery, photos, f"{names}, {distance:.3f} apart.{match}"))
    return cards


def duplicate_cards(report: GalleryReport) -> list[str]:
    """Return the photos in the gallery under two items, as far as the draws found them."""
    draws, snapshot = (report.draws or {}).get(OWN), report.snapshot
    if draws is None or snapshot is None:
        return []
    cards: list[str] = []
    seen: set[frozenset[str]] = set()
    for row in np.flatnonzero(draws.duplicates != NOBODY).tolist():
        other = _photo_of(snapshot, int(draws.duplicates[row]))
        pair = frozenset((str(draws.ids[row]), other))
        if pair in seen or not other:
            continue
        seen.add(pair)
        stored = report.gallery.photo(other)
        names = f"{draws.items[row]} and {'another item' if stored is None else stored[1]}"
        cards.append(card(report.gallery, (str(draws.ids[row]), other), names))
    return cards[:SHOWN]


def named_cards(gallery: AnyGallery, entries: Iterable[tuple[Sequence[str], str]]) -> list[str]:
    """Return a card for each entry: item ids, and a text about them."""
    cards = []
    for items, text in entries:
        photos = [rows[0][0] for item in items if (rows := gallery.item(item))]
        cards.append(card(gallery, photos, f"{', '.join(items)}: {text}."))
    return cards[:SHOWN]


def card(gallery: AnyGallery, photo_ids: Iterable[str], text: str) -> str:
    """Return a card with the thumbnails of photos and a text."""
    pictures = "".join(
        picture(jpeg, alt=photo_id) for photo_id in photo_ids if photo_id and (jpeg := gallery.thumbnail(photo_id))
    )
    return f"<div class='card'><div>{pictures}</div>{html.escape(text)}</div>"


def _photo_of(snapshot: AnyPhotos, seq: int) -> str:
    """Return the photo_id of the live photo with a seq, or an empty string."""
    place = int(np.searchsorted(snapshot.seqs, seq))
    found = place < len(snapshot.seqs) and snapshot.seqs[place] == seq and bool(snapshot.live[place])
    return snapshot.photo(place)[0] if found else ""
