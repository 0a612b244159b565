"""A catalogue becomes a gallery: decode, embed and write overlap; a bad photo is reported and never stops it.

Each worker decodes, resizes and embeds one batch on its own core (on a CPU larger batches gain next to nothing); the
calling thread writes finished batches, a transaction each. An interrupted run is continued by running it again:
photos whose content is in the gallery already are not embedded again.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from index.gallery import DATABASE, Gallery, Merged
from index.where import is_column, kind_of

from .bundle import Bundle
from .catalogue import Photo
from .embedder import Embedder
from .errors import ImageRefused, InvalidParameter
from .images import crop, open_image, see, thumbnail
from .recalibration import probe_of
from .retriever import require_match

COLUMNS = 16  # that are declared without being asked for
CONTENT = "_content_sha256"  # reserved metadata key: what the photo's file held when it was embedded


@dataclass
class IndexReport:
    """What indexing did."""

    added: int = 0
    replaced: int = 0  # of the added: photos whose file had changed
    skipped: int = 0  # photos that were in the gallery already
    seconds: float = 0.0
    merged: Merged | None = None  # a new index, where one was due
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
    kind: str | None = None,
    max_memory: int | None = None,
) -> IndexReport:
    """Add photos to the gallery at a path, making it where there is none; return what happened.

    Metadata that filters may use are declared on the way (`columns_of`). At the end the index is built anew where that
    is due, or where `kind` and `max_memory` ask for another one (`Gallery.merge`). Raises BundleMismatch when the
    gallery belongs to another model, GalleryLocked when somebody else writes.
    """
    if batch_size < 1:
        raise InvalidParameter("batch_size", "be at least 1", batch_size)
    threads = threads or os.cpu_count() or 1
    embedder = bundle.embedder(threads=1)
    report = IndexReport()
    started = time.perf_counter()
    bar = tqdm(total=len(photos), desc="indexing", unit="photo", disable=not progress)
    with _open_or_create(gallery_path, bundle) as gallery, ThreadPoolExecutor(threads) as pool, bar:
        known = gallery.values(CONTENT)
        declared = gallery.columns()
        gallery.declare({name: is_a for name, is_a in columns_of(photos).items() if name not in declared})
        batches = (photos[start : start + batch_size] for start in range(0, len(photos), batch_size))
        for batch in _overlapped(pool, embedder, batches, known, ahead=2 * threads):
            _write(gallery, batch, known, report)
            bar.update(len(batch.photos) + batch.skipped + len(batch.refused))
        report.seconds = time.perf_counter() - started
        if kind is not None or max_memory is not None:
            report.merged = gallery.merge(kind=kind, max_memory=max_memory, probe=probe_of(bundle))
        else:
            report.merged = gallery.merge_if_due(probe=probe_of(bundle))
    return report


def columns_of(photos: Sequence[Photo]) -> dict[str, str]:
    """Return the metadata that filters may use, and their kinds: up to COLUMNS that are of one kind throughout."""
    kinds: dict[str, set[str | None]] = {}
    for photo in photos:
        for name, value in _named(photo).items():
            kinds.setdefault(name, set()).add(kind_of(value))
    found = {name: next(iter(seen)) for name, seen in kinds.items() if len(seen) == 1 and is_column(name)}
    return {name: kind for name, kind in list(found.items())[:COLUMNS] if kind is not None}


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
            data = photo.read()
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
    return {**_named(photo), CONTENT: digest}


def _named(photo: Photo) -> dict[str, Any]:
    named = {"group": photo.group, "source": photo.source}
    return {**{key: value for key, value in named.items() if value}, **photo.metadata}
