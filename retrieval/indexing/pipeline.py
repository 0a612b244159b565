"""Indexing pipeline: decode, embed and write the photos of a catalogue into a gallery.

Each worker decodes, resizes and embeds one batch on its own core (on a CPU, larger batches bring almost no speedup).
The calling thread meanwhile writes finished batches, one transaction per batch. Photos that cannot be used are
reported and do not stop the run. To continue an interrupted run, run it again: photos whose content is already in the
gallery are skipped.
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tqdm import tqdm

from index.ann.recall import Probe
from index.filters import is_column, kind_of
from index.gallery import Gallery, Merged
from index.location import is_address, open_or_create
from index.store import encode_metadata
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter
from retrieval.retriever import require_match

from .ray import ray_batches
from .worker import Batch, embed_batch

if TYPE_CHECKING:
    from index.milvus import MilvusGallery

LOCAL, RAY = ENGINES = ("local", "ray")
COLUMNS = 16  # maximum number of columns declared automatically
CONTENT = "_content_sha256"  # reserved metadata key: hash of the photo's content when it was embedded


@dataclass
class IndexReport:
    """The outcome of indexing."""

    added: int = 0
    replaced: int = 0  # photos among the added ones whose file had changed
    skipped: int = 0  # photos already in the gallery
    seconds: float = 0.0
    merged: Merged | None = None  # the new index, if it was rebuilt
    refused: list[tuple[str, str]] = field(default_factory=list)  # photo_id, reason


def index_catalogue(
    bundle: Bundle,
    photos: Sequence[Photo],
    gallery_place: str | Path,
    *,
    threads: int | None = None,
    batch_size: int = 16,
    progress: bool = True,
    kind: str | None = None,
    max_memory: int | None = None,
    engine: str = LOCAL,
) -> IndexReport:
    """Add photos to the gallery at a path or address and return a report. The gallery is created if missing.

    A new gallery is removed again if every photo was refused.

    Metadata columns for filters are declared automatically (`columns_of`). Finally, the index is rebuilt if that is
    due, or if `kind` or `max_memory` is given (`Gallery.merge`). The `engine` is "local", which embeds on this
    machine's cores, or "ray", which embeds on a Ray cluster.

    Raises BundleMismatch if the gallery belongs to another model, and GalleryLocked if another process is writing.
    """
    if engine not in ENGINES:
        raise InvalidParameter("engine", f"be one of {', '.join(ENGINES)}", engine)
    if batch_size < 1:
        raise InvalidParameter("batch_size", "be at least 1", batch_size)
    embedder = bundle.embedder(threads=1) if engine == LOCAL else None  # may fail, so do it before creating a gallery
    report = IndexReport()
    is_new = not is_address(gallery_place) and not Path(gallery_place).exists()
    started = time.perf_counter()
    with (
        open_or_create(gallery_place, dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery,
        tqdm(total=len(photos), desc="indexing", unit="photo", disable=not progress) as bar,
    ):
        require_match(bundle, gallery)
        known = gallery.values(CONTENT)
        declared = gallery.columns()
        gallery.declare({name: is_a for name, is_a in columns_of(photos).items() if name not in declared})
        wrong = _unusable(photos, gallery.columns())
        report.refused += wrong.items()
        bar.update(len(wrong))
        usable = [photo for photo in photos if photo.photo_id not in wrong]
        if embedder is None:
            made = ray_batches(bundle, usable, known, batch_size=batch_size)
        else:
            made = _overlapped(embedder, usable, known, batch_size, threads or os.cpu_count() or 1)
        for batch in made:
            _write(gallery, batch, known, report)
            bar.update(len(batch.photos) + batch.skipped + len(batch.refused))
        report.seconds = time.perf_counter() - started
        if isinstance(gallery, Gallery):  # Milvus maintains its own index
            if kind is not None or max_memory is not None:
                report.merged = gallery.merge(kind=kind, max_memory=max_memory, probe=probe_of(bundle))
            else:
                report.merged = gallery.merge_if_due(probe=probe_of(bundle))
        is_useless = is_new and bool(report.refused) and not len(gallery)
    if is_useless:
        shutil.rmtree(gallery_place)
    return report


def probe_of(bundle: Bundle) -> Probe:
    """Return the threshold, distance and queries that measure the recall of an approximate index."""
    queries = None if bundle.calibration is None else bundle.calibration.vectors
    return Probe(bundle.threshold, bundle.distance_form, queries)


def columns_of(photos: Sequence[Photo]) -> dict[str, str]:
    """Return the kinds of up to COLUMNS metadata columns that filters can use: those of a single kind."""
    kinds: dict[str, set[str | None]] = {}
    for photo in photos:
        for name, value in _named(photo).items():
            kinds.setdefault(name, set()).add(kind_of(value))
    found = {name: next(iter(seen)) for name, seen in kinds.items() if len(seen) == 1 and is_column(name)}
    return {name: kind for name, kind in list(found.items())[:COLUMNS] if kind is not None}


def _unusable(photos: Sequence[Photo], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the reason per photo_id, for photos whose metadata the gallery or a declared column refuses."""
    found = {}
    for photo in photos:
        try:
            encode_metadata(_metadata(photo, "0" * 64))
        except InvalidParameter as error:
            found[photo.photo_id] = error.message
        for name, value in _named(photo).items():
            if name in columns and kind_of(value) != columns[name]:
                found[photo.photo_id] = f"{name} is {value!r}, and the gallery's column {name} is a {columns[name]}"
    return found


def _overlapped(
    embedder: Embedder, photos: Sequence[Photo], known: Mapping[str, str], batch_size: int, threads: int
) -> Iterator[Batch]:
    """Yield finished batches in order. A kill loses at most the `threads` + 2 batches in flight."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: list[Future[Batch]] = []
        for start in range(0, len(photos), batch_size):
            waiting.append(pool.submit(embed_batch, embedder, photos[start : start + batch_size], known))
            if len(waiting) > threads + 1:
                yield waiting.pop(0).result()
        for future in waiting:
            yield future.result()


def _write(gallery: Gallery | MilvusGallery, batch: Batch, known: Mapping[str, str], report: IndexReport) -> None:
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
    """Return the metadata stored with a photo, including the hash of its content."""
    return {**_named(photo), CONTENT: digest}


def _named(photo: Photo) -> dict[str, Any]:
    named = {"group": photo.group, "source": photo.source}
    return {**{key: value for key, value in named.items() if value}, **photo.metadata}
