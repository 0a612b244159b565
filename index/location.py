"""Where a gallery is: a directory of this machine, or an address on a Milvus cluster."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from .gallery import Gallery
from .reader import DATABASE

if TYPE_CHECKING:
    from .milvus import MilvusGallery

SCHEME = "milvus+"


class Place(click.ParamType["Path | str"]):
    """A gallery on the command line."""

    name = "gallery"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Path | str:  # noqa: ARG002
        """Return a path, or an address as it is."""
        return value if isinstance(value, str) and value.startswith(SCHEME) else Path(value)


def open_gallery(place: str | Path, *, read_only: bool = False) -> Gallery | MilvusGallery:
    """Open a gallery; GalleryError where there is none."""
    if isinstance(place, str) and place.startswith(SCHEME):
        from .milvus import MilvusGallery

        return MilvusGallery.open(place)
    return Gallery.open(place, read_only=read_only)


def open_or_create(
    place: str | Path, *, dim: int, embedding_id: str, columns: Mapping[str, str] | None = None
) -> Gallery | MilvusGallery:
    """Open a gallery, making it where there is none."""
    facts: Any = {"dim": dim, "embedding_id": embedding_id, "columns": columns}
    if isinstance(place, str) and place.startswith(SCHEME):
        from .milvus import MilvusGallery, exists

        return MilvusGallery.open(place) if exists(place) else MilvusGallery.create(place, **facts)
    return Gallery.open(place) if (Path(place) / DATABASE).exists() else Gallery.create(place, **facts)
