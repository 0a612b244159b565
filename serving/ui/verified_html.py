"""Render the matched places of a photo and of the catalogue picture that it matches."""

from __future__ import annotations

import html
from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.places_svg import Place, places_svg
from retrieval.result import SearchResult

from .page_links import photo_url, thumbnail_url

WHOLE = (0.0, 100.0, 0.0, 100.0)  # left, right, top, bottom of the searched part, in percent


@dataclass(frozen=True)
class AskedPhotos:
    """Photos of a visitor's query, and the searched part of the first one."""

    tokens: Sequence[str]
    part: Sequence[float] = WHOLE

    def places(self, places: Sequence[Place], number: int) -> list[Place]:
        """Return places in the searched part of a photo (numbered from 1) as places in the whole photo."""
        left, right, top, bottom = (side / 100 for side in (self.part if number == 1 else WHOLE))
        return [(left + x * (right - left), top + y * (bottom - top)) for x, y in places]


def verified_html(result: SearchResult, asked: AskedPhotos, title: str) -> str:
    """Return both pictures with the places that agree, "" unless local features of the first match were verified."""
    verified = (result.explanation or {}).get("verified") or []
    first = result.matches[0] if result.matches else None
    found = next((photo for photo in verified if first is not None and photo["photo_id"] == first.photo_id), None)
    if found is None or not found["inliers"]:
        return ""
    count, number, name = found["inliers"], found["query_photo"], html.escape(title)
    photo = "Your photo" if len(asked.tokens) == 1 else f"Your photo {number}"
    words = f"{count} details of {photo[:1].lower()}{photo[1:]} are at the same places in the picture of {name}."
    pictures = (
        (photo_url(asked.tokens[number - 1]), photo, asked.places(found["query"], number)),
        (thumbnail_url(found["photo_id"]), title, found["photo"]),
    )
    shown = "".join(
        f'<span class="places"><img src="{html.escape(url)}" alt="{html.escape(alt)}">{places_svg(places)}</span>'
        for url, alt, places in pictures
    )
    return (
        f'<details class="r-same"><summary>What agrees: {count} details</summary><figure><div>{shown}</div>'
        f"<figcaption>{words} The outline surrounds them.</figcaption></figure></details>"
    )
