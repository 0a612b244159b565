"""A catalogue becomes a gallery: decode, embed and write overlap; a bad photo is reported and never stops it.

Each worker decodes, resizes and embeds one batch on its own core (on a CPU larger batches gain next to nothing); the
calling thread writes finished batches, a transaction each. An interrupted run is continued by running it again:
photos whose content is in the gallery already are not embedded again.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from index.gallery import DATABASE, Gallery

from .bundle import Bundle
from .catalogue import Photo
from .embedder import Embedder
from .errors import ImageRefused, ImageUnreadable, InvalidParameter
from .images import MAX_BYTES, crop, open_image, see, thumbnail
from .retriever import require_match

CONTENT = "_content_sha256"  # reserved metadata key: what the photo's file held when it was embedded


@dataclass
class IndexReport:
    """What indexing did."""

    added: int = 0
    replaced: int = 0  # of the added: photos whose file had changed
    skipped: int = 0  # photos that were in the gallery already
    refused: list[tuple[str, str]] = field(default_factory=list)  # photo_id, reason


@dataclass
class _Batch:
    photos: list[Photo] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    thumbnails: list[bytes] = field(default_factory=list)
    vectors: NDArray[np.float32] | None = None
    skipped: int = 0
    refused: list[tuple[str, str]] = field(default_factory=list)


def index_catalogue(
    bundle: Bundle,
    photos: Sequence[Photo],
    gallery_path: str | Path,
    *,
    threads: int | None = None,
    batch_size: int = 16,
    progress: bool = True,
) -> IndexReport:
    """Add photos to the gallery at a path, making it where there is none; return what happened.

    Raises BundleMismatch when the gallery belongs to another model, GalleryLocked when somebody else writes.
    """
    if batch_size < 1:
        raise InvalidParameter("batch_size", "be at least 1", batch_size)
    threads = threads or os.cpu_count() or 1
    embedder = bundle.embedder(threads=1)
    report = IndexReport()
    bar = tqdm(total=len(photos), desc="indexing", unit="photo", disable=not progress)
    with _open_or_create(gallery_path, bundle) as gallery, ThreadPoolExecutor(threads) as pool, bar:
        known = gallery.values(CONTENT)
        batches = (photos[start : start + batch_size] for start in range(0, len(photos), batch_size))
        for batch in _overlapped(pool, embedder, batches, known, ahead=2 * threads):
            _write(gallery, batch, known, report)
            bar.update(len(batch.photos) + batch.skipped + len(batch.refused))
    return report


def _open_or_create(path: str | Path, bundle: Bundle) -> Gallery:
    if not (Path(path) / DATABASE).exists():
        return Gallery.create(path, dim=bundle.dim, embedding_id=bundle.embedding_id)
    gallery = Gallery.open(path)
    require_match(bundle, gallery)
    return gallery


def _overlapped(
    pool: ThreadPoolExecutor,
    embedder: Embedder,
    batches: Iterator[Sequence[Photo]],
    known: dict[str, str],
    *,
    ahead: int,
) -> Iterator[_Batch]:
    """Yield finished batches in order, with `ahead` of them under way."""
    waiting: list[Future[_Batch]] = []
    for photos in batches:
        waiting.append(pool.submit(_embed, embedder, photos, known))
        if len(waiting) > ahead:
            yield waiting.pop(0).result()
    for future in waiting:
        yield future.result()


def _embed(embedder: Embedder, photos: Sequence[Photo], known: dict[str, str]) -> _Batch:
    batch = _Batch()
    squares = []
    sight = embedder.preprocessing
    for photo in photos:
        try:
            data = _read(photo.path)
            digest = hashlib.sha256(data + repr(photo.bbox).encode()).hexdigest()
            if known.get(photo.photo_id) == digest:
                batch.skipped += 1
                continue
            image = crop(open_image(data, min_side=sight.min_side if photo.bbox is None else 0), photo.bbox)
            squares.append(see(image, sight))
            batch.thumbnails.append(thumbnail(image))
        except ImageRefused as error:
            batch.refused.append((photo.photo_id, error.message))
            continue
        batch.photos.append(photo)
        batch.hashes.append(digest)
    if squares:
        batch.vectors = embedder.embed_pixels(np.stack(squares)).vectors
    return batch


def _read(path: Path) -> bytes:
    try:
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ImageUnreadable(f"{path} cannot be read: {error.strerror}") from error


def _write(gallery: Gallery, batch: _Batch, known: dict[str, str], report: IndexReport) -> None:
    report.skipped += batch.skipped
    report.refused += batch.refused
    if batch.vectors is None:
        return
    report.added += gallery.add(
        [photo.photo_id for photo in batch.photos],
        [photo.item_id for photo in batch.photos],
        batch.vectors,
        metadata=[_metadata(photo, digest) for photo, digest in zip(batch.photos, batch.hashes, strict=True)],
        thumbnails=batch.thumbnails,
        upsert=True,
    )
    report.replaced += sum(photo.photo_id in known for photo in batch.photos)


def _metadata(photo: Photo, digest: str) -> dict[str, Any]:
    """Return what is kept of a photo's catalogue line, and the hash of its content."""
    named = {"group": photo.group, "source": photo.source}
    return {**{k: v for k, v in named.items() if v}, **photo.metadata, CONTENT: digest}
