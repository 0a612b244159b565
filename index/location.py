"""Gallery locations: a local directory or an address on a Milvus cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .gallery import Gallery
from .reader import DATABASE

if TYPE_CHECKING:
    from .milvus import MilvusGallery

SCHEME = "milvus+"


def is_address(place: str | Path) -> bool:
    """Return whether a location is the address of a gallery on a Milvus cluster."""
    return isinstance(place, str) and place.startswith(SCHEME)


def open_gallery(place: str | Path, *, read_only: bool = False) -> Gallery | MilvusGallery:
    """Open a gallery; raise GalleryError if there is none."""
    if is_address(place):
        from .milvus import MilvusGallery

        return MilvusGallery.open(str(place))
    return Gallery.open(place, read_only=read_only)


def open_or_create(
    place: str | Path, *, dim: int, embedding_id: str, columns: Mapping[str, str] | None = None
) -> Gallery | MilvusGallery:
    """Open a gallery, or create it if there is none."""
    facts: Any = {"dim": dim, "embedding_id": embedding_id, "columns": columns}
    if is_address(place):
        from .milvus import MilvusGallery, exists

        return MilvusGallery.open(str(place)) if exists(str(place)) else MilvusGallery.create(str(place), **facts)
    return Gallery.open(place) if (Path(place) / DATABASE).exists() else Gallery.create(place, **facts)
