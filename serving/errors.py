"""Errors of a server."""

from __future__ import annotations

from retrieval.errors import RetrievalError


class NoSuchThing(RetrievalError):
    """A photo, item or answer that does not exist."""


class GalleryMismatch(RetrievalError):
    """The gallery needs photos with other local features than the served bundle computes."""
