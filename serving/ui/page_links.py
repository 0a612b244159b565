"""URLs of the pictures on the page, relative to it."""

from __future__ import annotations

from urllib.parse import quote


def photo_url(token: str) -> str:
    """Return the URL of a photo that the visitor uploaded."""
    return f"gradio_api/file={quote(token, safe='')}"


def thumbnail_url(photo_id: str) -> str:
    """Return the URL of a thumbnail of the gallery."""
    return f"v1/thumbnails/{quote(photo_id, safe='')}"  # quotes slashes too: a browser would resolve `..`
