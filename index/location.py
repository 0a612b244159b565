"""Gallery locations: a local directory or an address on a Milvus cluster."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from .database import DATABASE
from .errors import GalleryError
from .files import take_lock
from .gallery import Gallery

if TYPE_CHECKING:
    from .milvus.gallery import MilvusGallery

AnyGallery: TypeAlias = "Gallery | MilvusGallery"
MEASURING = "measure.lock"  # file that is locked by the process that measures a local gallery
SCHEME = "milvus+"  # scheme of an address: milvus+http://host:19530/name, or milvus+/folder/lite.db/name


def is_address(place: str | Path) -> bool:
    """Return whether a location is the address of a gallery on a Milvus cluster."""
    return isinstance(place, str) and place.startswith(SCHEME)


def open_gallery(place: str | Path, *, read_only: bool = False) -> AnyGallery:
    """Open a gallery; raise GalleryError if there is none."""
    if is_address(place):
        from .milvus.gallery import MilvusGallery

        return MilvusGallery.open(str(place))
    return Gallery.open(place, read_only=read_only)


def is_writable(gallery: AnyGallery) -> bool:
    """Return whether this process may change a gallery; the server of one on Milvus decides."""
    return not isinstance(gallery, Gallery) or os.access(gallery.path, os.W_OK)


def writing(gallery: AnyGallery) -> AbstractContextManager[AnyGallery]:
    """Open a gallery that is served for a change: a local one a second time."""
    return Gallery.open(gallery.path) if isinstance(gallery, Gallery) else nullcontext(gallery)


@contextmanager
def measuring(gallery: AnyGallery) -> Iterator[None]:
    """Keep other processes from measuring a gallery; raise GalleryLocked if one does so."""
    if not isinstance(gallery, Gallery):
        from .milvus.gallery import measuring as noting

        with noting(gallery):
            yield
        return
    lock = take_lock(gallery.path / MEASURING)
    try:
        yield
    finally:
        os.close(lock)


def exists(place: str | Path) -> bool:
    """Return whether there is a gallery at a path or an address."""
    if is_address(place):
        from .milvus.gallery import exists as exists_at

        return exists_at(str(place))
    return (Path(place) / DATABASE).exists()


def open_or_create(
    place: str | Path, *, dim: int, embedding_id: str, features_key: str = "", index: str = ""
) -> AnyGallery:
    """Open a gallery, or create it if there is none, with features if there is a `features_key`.

    `index` is the kind of index of a large gallery on Milvus, by default the one that was chosen before, at first FLAT.

    Raise GalleryError if there is a `features_key` and the place is on a Milvus cluster, which keeps no features.
    """
    if is_address(place):
        if features_key:
            from .milvus.photos import LOCAL

            raise GalleryError(
                f"a gallery on Milvus keeps no features, which verification needs: {place}",
                remedy=f"{LOCAL}, or a bundle without verification",
            )
        from .milvus.gallery import MilvusGallery

        address = str(place)
        if not exists(address):
            return MilvusGallery.create(address, dim=dim, embedding_id=embedding_id, index=index or "FLAT")
        gallery = MilvusGallery.open(address)
        if index:
            gallery.choose_index(index)
        return gallery
    if (Path(place) / DATABASE).exists():
        return Gallery.open(place)
    return Gallery.create(place, dim=dim, embedding_id=embedding_id, features_key=features_key)
