"""Listings of what a gallery's database holds: facts, photos, items, changes and named contents."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Any

from .database import Change
from .store import Store


class Listing:
    """Reads a gallery's database, from any number of threads."""

    _store: Store
    _guard: threading.RLock

    def facts(self) -> dict[str, str]:
        """Return the facts about the gallery: format, version, dim, embedding_id, created and more."""
        with self._guard:
            return self._store.facts()

    def columns(self) -> dict[str, str]:
        """Return the metadata keys that filters may use, and their kinds."""
        with self._guard:
            return self._store.columns()

    def changes(self, limit: int = 20) -> list[Change]:
        """Return the newest changes, newest first; a limit of -1 returns all of them."""
        with self._guard:
            return self._store.changes(limit)

    def photo_ids(self) -> set[str]:
        """Return the ids of all live photos."""
        with self._guard:
            return set(self._store.photo_ids())

    def values(self, key: str) -> dict[str, Any]:
        """Return a mapping from photo_id to the value of a metadata key, for the photos that have one."""
        with self._guard:
            return self._store.values(key)

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, or None if it does not exist."""
        with self._guard:
            return self._store.photo(photo_id)

    def photos(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of all live photos of one version, in insertion order."""
        with self._guard:
            return self._store.photos()

    def item(self, item_id: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of each photo of an item; empty for an unknown item."""
        with self._guard:
            return self._store.item(item_id)

    def item_ids(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return up to `limit` item ids that follow `after` in alphabetical order."""
        with self._guard:
            return self._store.item_ids(after, limit)

    def thumbnail(self, photo_id: str) -> bytes | None:
        """Return the JPEG thumbnail of a photo, or None if it has none."""
        with self._guard:
            return self._store.thumbnail(photo_id)

    def thumbnails(self, photo_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the JPEG thumbnails of photos by photo_id, for those that have one."""
        return {photo_id: jpeg for photo_id in photo_ids if (jpeg := self.thumbnail(photo_id))}

    def kept(self, name: str) -> bytes | None:
        """Return what is kept under a name with the newest version, None if there is nothing."""
        with self._guard:
            return self._store.kept(name)
