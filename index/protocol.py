"""The interface of every gallery: what retrieval and serving use, whatever holds the photos.

`Gallery` (a local directory) and `MilvusGallery` (a Milvus cluster) satisfy it; `open_gallery` returns one of them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, Self

from numpy.typing import ArrayLike, NDArray

from index.ann.recall import Probe

from .database import Change
from .distance import PLAIN, DistanceForm
from .features import FeatureFormat
from .maintenance import MIN_RECALL, Rebuilt
from .neighbours import Neighbour, StoredPhoto
from .search.leave_one_out import Drawable
from .snapshot import Within
from .verified import Features


class GalleryProtocol(Drawable, Protocol):
    """Photos of items with their vectors: search, list, add and remove."""

    dim: int
    embedding_id: str  # of the embedder that made the vectors
    features_key: str  # identifies how features are computed, "" in a gallery without features
    feature_format: FeatureFormat | None  # checks the features of added photos, if it is set
    damage: list[str]  # problems found by a search or by `check_in_background`

    @property
    def path(self) -> Path | str:
        """Return the directory or the address."""

    def __enter__(self) -> Self: ...

    def __exit__(self, *_: object) -> None: ...

    def close(self) -> None:
        """Release files, locks and connections."""

    def __len__(self) -> int:
        """Return the number of photos."""

    def index(self) -> dict[str, Any]:
        """Return the kind of index and what is known about it."""

    def columns(self) -> dict[str, str]:
        """Return the metadata keys that filters may use, and their kinds."""

    def declare(self, columns: Mapping[str, str | None]) -> None:
        """Declare metadata keys for filters; None removes a key, so that it can be declared again."""

    def photo_ids(self) -> set[str]:
        """Return the ids of all photos."""

    def values(self, key: str) -> dict[str, Any]:
        """Return a mapping from photo_id to the value of a metadata key, for the photos that have one."""

    def photos(self) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of all photos."""

    def photo(self, photo_id: str) -> tuple[str, str, dict[str, Any]] | None:
        """Return photo_id, item_id and metadata of a photo, or None if it does not exist."""

    def item(self, item_id: str) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of each photo of an item; empty for an unknown item."""

    def item_ids(self, *, after: str = "", limit: int = 100) -> list[str]:
        """Return up to `limit` item ids that follow `after` in alphabetical order."""

    def features_of(self, photo_id: str) -> bytes | None:
        """Return the local features of a photo, None if it does not exist or the gallery keeps no features."""

    def facts(self) -> dict[str, str]:
        """Return the facts about the gallery: version, dim, embedding_id, created and more."""

    def changes(self, limit: int = 20) -> list[Change]:
        """Return the newest changes, newest first; a limit of -1 returns all of them."""

    def kept_names(self) -> list[str]:
        """Return the names of the kept contents."""

    def walk(self, count: int, *, features: bool = False) -> Iterator[list[StoredPhoto]]:
        """Return the live photos of the newest version in insertion order, `count` per batch."""

    def thumbnails(self, photo_ids: Sequence[str]) -> dict[str, bytes]:
        """Return the JPEG thumbnails of photos by photo_id, for those that have one."""

    def add(
        self,
        photo_ids: Sequence[str],
        item_ids: Sequence[str],
        vectors: ArrayLike,
        *,
        metadata: Sequence[Mapping[str, Any]] | None = None,
        thumbnails: Sequence[bytes | None] | None = None,
        features: Sequence[bytes] | None = None,
        upsert: bool = False,
        actor: str | None = None,
    ) -> int:
        """Add photos and return their number; see `Gallery.add`."""

    def update(
        self,
        photo_ids: Sequence[str],
        item_ids: Sequence[str],
        metadata: Sequence[Mapping[str, Any]],
        *,
        actor: str | None = None,
    ) -> int:
        """Set the items and metadata of photos and return their number; see `Gallery.update`."""

    def remove(
        self, *, photo_ids: Sequence[str] | None = None, item_ids: Sequence[str] | None = None, actor: str | None = None
    ) -> int:
        """Remove photos, or all photos of items; return how many existed."""

    def rebuild(
        self,
        *,
        kind: str | None = None,
        max_memory: int | None = None,
        probe: Probe | None = None,
        min_recall: float = MIN_RECALL,
    ) -> Rebuilt:
        """Rebuild the index; see `Gallery.rebuild`."""

    def rebuild_if_due(
        self, *, kind: str | None = None, max_memory: int | None = None, probe: Probe | None = None
    ) -> Rebuilt | None:
        """Rebuild the index if that is due, or if `kind` or `max_memory` is given; return None if it was not."""

    def search(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        distance_form: DistanceForm = PLAIN,
        within: float | None = None,
        features: Sequence[Features] | None = None,
    ) -> list[list[Neighbour]]:
        """Return the k nearest items for each of the vectors (n, d); see `Reader.search`."""

    def search_version(
        self,
        vectors: ArrayLike,
        k: int,
        *,
        where: str | None = None,
        distance_form: DistanceForm = PLAIN,
        within: Within = None,
        features: Sequence[Features] | None = None,
    ) -> tuple[int, list[list[Neighbour]]]:
        """Search as `search` does, and also return the version that was searched."""

    def contents(self) -> tuple[list[str], list[str], NDArray[Any]]:
        """Return photo_ids, item_ids and vectors (n, d) of all photos, in the same order."""

    def verify(self) -> list[str]:
        """Read all data and return a list of problems in words; empty if there are none."""

    def check_in_background(self) -> object:
        """Start a check of the files while searches go on; problems are added to `damage`."""
