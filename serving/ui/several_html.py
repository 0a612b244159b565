"""Render what is special to a query of several photos: their previews, and what its answer says."""

from __future__ import annotations

import html
from collections.abc import Sequence

from retrieval.arguments import MOST_QUERY_PHOTOS
from retrieval.bundle.operating_point import EXTRAPOLATED
from retrieval.result import SearchResult

from .page_links import photo_url


def previews_html(added: Sequence[str]) -> str:
    """Return small pictures of the added photos with remove buttons; "" if there are none."""
    if not added:
        return ""
    pictures = "".join(
        f'<li><img src="{html.escape(photo_url(token))}" alt="Photo {number + 2}">'
        f'<button type="button" data-remove="{number}" aria-label="Remove photo {number + 2}">×</button></li>'
        for number, token in enumerate(added)
    )
    count = 1 + len(added)
    words = f"One search with {count} photos of the same item."
    if count >= MOST_QUERY_PHOTOS:
        words += " No more can be added."
    return f'<p class="r-small">{words}</p><ul class="r-previews" aria-label="Added photos">{pictures}</ul>'


def several_html(result: SearchResult, sent: int) -> str:
    """Return what the answer to `sent` photos stands on, as a paragraph; "" for one photo."""
    if sent == 1:
        return ""
    words = f"One answer for your {sent} photos together."
    if result.photos < sent:
        alike = "count as one" if result.photos == 1 else f"count as {result.photos}"
        words += f" Some of them are the same photo, so they {alike}."
    if result.threshold_status == EXTRAPOLATED:
        for_photos = "one photo" if result.threshold_photos == 1 else f"{result.threshold_photos} photos"
        words += (
            f" What is close enough was measured for searches with {for_photos}. "
            f"With {result.photos}, unknown items may return a match more often: check it before you rely on it."
        )
    elif result.threshold is not None and result.photos > 1:
        words += f" What is close enough was measured for searches with {result.photos} photos."
    return f'<p class="r-several">{words}</p>'
