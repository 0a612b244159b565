"""Protocols for galleries that draws are made from, whatever stores their photos."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from .distance import DistanceForm, Floats
from .stored import Filter, Rows
from .verified import VerifiedDistance
from .verified_search import VerifiedSearch


class Photos(Protocol):
    """The photos of one version by position, in insertion order: n of them, live or removed."""

    @property
    def seqs(self) -> Rows:
        """Return the seq of each photo (n,), ascending."""

    @property
    def items(self) -> NDArray[np.int32]:
        """Return the item number of each photo (n,)."""

    @property
    def live(self) -> NDArray[np.bool_]:
        """Return which photos are live (n,)."""

    @property
    def fingerprint(self) -> tuple[int, int]:
        """Return the number of live photos and the sum of their seqs, which identify them."""

    def vectors(self, positions: Rows) -> NDArray[np.float32]:
        """Return the vectors (p, d) at some positions."""

    def photo(self, position: int) -> tuple[str, str, dict[str, Any]]:
        """Return photo_id, item_id and metadata of the photo at a position."""

    def nearest(
        self,
        vectors: NDArray[np.float32],
        k: int,
        distance_form: DistanceForm,
        densities: tuple[Floats, float],
        *,
        only: Filter | None = None,
    ) -> list[list[tuple[int, float]]]:
        """Return position and distance of the k nearest items, by their nearest photo, for unit vectors (n, d)."""


class Drawable(Protocol):
    """A gallery that draws are made from, and that keeps them with its photos.

    `on_change` is called with each change of photos. The contents that it returns are kept with the change.
    """

    embedding_id: str  # of the embedder that made the vectors
    on_change: Callable[[Drawable], Mapping[str, bytes | None]] | None

    @property
    def items(self) -> int:
        """Return the number of items."""

    def undrawable(self) -> str:
        """Return the reason why no draws can be made, "" if they can."""

    def snapshot(self) -> Photos:
        """Return the photos of the newest version."""

    def one_version(self) -> AbstractContextManager[None]:
        """Return a context in which all reads are of one version."""

    def densities(self, distance_form: DistanceForm) -> tuple[Floats, float]:
        """Return the density around each photo of the newest version (n,), and their minimum."""

    def verified_search(self, distance_form: VerifiedDistance) -> VerifiedSearch:
        """Return the search of the newest version; raise GalleryError if the form cannot use its features."""

    def contents_since(self, seq: int, key: str) -> Iterable[tuple[str, str | None]]:
        """Return item id and value of a metadata key for the live photos from a seq on."""

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are in the gallery."""

    def fingerprint(self) -> tuple[int, int]:
        """Return the `Photos.fingerprint` of the newest version."""

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""

    def kept(self, name: str) -> bytes | None:
        """Return the content that is kept under a name with the newest version, None if there is none."""

    def keep(self, contents: Mapping[str, bytes | None], action: str, *, actor: str | None = None) -> None:
        """Keep named contents, such as an operating point, as one change; None removes a content."""
