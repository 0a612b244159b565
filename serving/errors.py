"""Errors of a server."""

from __future__ import annotations

from retrieval.errors import RetrievalError


class NoSuchThing(RetrievalError):
    """A photo, item or answer that does not exist."""


class GalleryMismatch(RetrievalError):
    """The served bundle does not compute the local features that the gallery keeps."""
