"""Limits of the arguments of a search. They are those of the HTTP API."""

from __future__ import annotations

from collections.abc import Sequence
from numbers import Integral, Real

import numpy as np

from .errors import InvalidParameter

MOST_MATCHES = 100  # per search
MOST_QUERY_PHOTOS = 8  # photos of one query
MOST_IMAGES, MOST_WHERE = 64, 2000  # photos per batch, characters in a filter


def check_arguments(images: Sequence[object], *, top_k: int, where: str | None, review: float) -> None:
    """Raise InvalidParameter for invalid arguments of `Retriever.search_batch`."""
    if isinstance(images, str | bytes) or not isinstance(images, Sequence | np.ndarray):
        raise InvalidParameter("images", "be a sequence of images", type(images), remedy="Use `search` for one")
    if len(images) > MOST_IMAGES:
        raise InvalidParameter("images", f"be at most {MOST_IMAGES} in a batch", len(images))
    if not isinstance(top_k, Integral) or not 1 <= top_k <= MOST_MATCHES:
        raise InvalidParameter("top_k", f"be a whole number between 1 and {MOST_MATCHES}", top_k)
    if where is not None and (not isinstance(where, str) or len(where) > MOST_WHERE):
        told = f"{len(where)} characters" if isinstance(where, str) else where
        raise InvalidParameter("where", f"be a text of at most {MOST_WHERE} characters", told)
    if not isinstance(review, Real) or not 0 <= review <= 1:
        raise InvalidParameter("review", "lie between 0 and 1", review)


def check_photos(images: Sequence[object]) -> None:
    """Raise InvalidParameter unless there are 2 to 8 images, the limits of a query of several photos."""
    if isinstance(images, str | bytes) or not isinstance(images, Sequence | np.ndarray):
        raise InvalidParameter("images", "be a sequence of images", type(images), remedy="Use `search` for one")
    if not 2 <= len(images) <= MOST_QUERY_PHOTOS:
        raise InvalidParameter("images", f"be 2 to {MOST_QUERY_PHOTOS} photos of the same item", len(images))
