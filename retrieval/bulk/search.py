"""Search with many photos: batches are decoded, embedded and searched in threads; answers stay in order."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.reading import ReadBatch, in_order, read_ahead
from retrieval.errors import ImageRefused
from retrieval.images import Source, crop, open_image
from retrieval.indexing.worker import CONTENT
from retrieval.result import REVIEW_P, SearchResult
from retrieval.retriever import Retriever
from retrieval.text import as_utf8

from .answers_file import Line

LEFT_OUT = ("bundle_id", "timings_ms")  # of an answer: the same for all, and the time of a batch


@dataclass(frozen=True)
class BulkSettings:
    """Options of a search with many photos; the first four are those of `Retriever.search`."""

    top_k: int = 10
    where: str | None = None
    review: float = REVIEW_P
    explain: bool = False
    truth: str | None = None  # column with the item that a photo shows
    batch_size: int = 16
    threads: int | None = None


@dataclass(frozen=True)
class KnownItems:
    """Items of the photos that are in the gallery, and the content of its photos."""

    items: frozenset[str] = frozenset()  # those of the photos that are in the gallery
    hashes: frozenset[str] = field(default_factory=frozenset)  # of the contents of all photos of the gallery

    @classmethod
    def of(cls, retriever: Retriever, photos: Sequence[Photo]) -> KnownItems:
        """Look up the items of photos in the gallery."""
        gallery = retriever.gallery
        items = {photo.item_id for photo in photos} - {""}
        known = frozenset(gallery.item_numbers(sorted(items)))
        return cls(known, frozenset(digest for *_, digest in gallery.values(CONTENT) if digest))


def answer_photos(retriever: Retriever, photos: Sequence[Photo], settings: BulkSettings) -> Iterator[list[Line]]:
    """Yield the answers to photos in order, batch by batch, as lines of a file of answers."""
    known = KnownItems() if settings.truth is None else KnownItems.of(retriever, photos)

    def answer(batch: ReadBatch) -> list[Line]:
        read = list(batch.contents())
        results = _search(retriever, batch.photos, read, settings)
        lines = [_line(photo, result) for photo, result in zip(batch.photos, results, strict=True)]
        if settings.truth is None:
            return lines
        told = [_truth(photo, data, known) for photo, data in zip(batch.photos, read, strict=True)]
        return [line | truth for line, truth in zip(lines, told, strict=True)]

    threads = settings.threads or os.cpu_count() or 1
    return in_order(answer, read_ahead(photos, size=settings.batch_size), threads=threads)


def _search(
    retriever: Retriever, photos: Sequence[Photo], read: Sequence[bytes | ImageRefused], settings: BulkSettings
) -> Iterator[SearchResult | ImageRefused]:
    """Yield the result for each photo, or the reason why it cannot be used."""
    sources = [_source(photo, data) for photo, data in zip(photos, read, strict=True)]
    results = iter(
        retriever.search_batch(
            [source for source in sources if not isinstance(source, ImageRefused)],
            top_k=settings.top_k,
            where=settings.where,
            explain=settings.explain,
            review=settings.review,
        )
    )
    for source in sources:
        yield source if isinstance(source, ImageRefused) else next(results)


def _source(photo: Photo, data: bytes | ImageRefused) -> Source | ImageRefused:
    """Return the encoded photo, or its part in the bounding box."""
    if photo.bbox is None or isinstance(data, ImageRefused):
        return data
    try:
        return crop(open_image(data), photo.bbox)
    except ImageRefused as refusal:
        return refusal


def _line(photo: Photo, result: SearchResult | ImageRefused) -> Line:
    if isinstance(result, ImageRefused):
        return {"photo_id": photo.photo_id, "error": as_utf8(str(result))}
    values = {name: value for name, value in result.to_dict().items() if name not in LEFT_OUT}
    if values["explanation"] is None:
        del values["explanation"]
    item = result.matches[0].item_id if result.matches else None
    return {"photo_id": photo.photo_id, "item_id": item, **values}


def _truth(photo: Photo, data: bytes | ImageRefused, known: KnownItems) -> Line:
    copied = not isinstance(data, ImageRefused) and content_hash(data, photo.bbox) in known.hashes
    return {"truth": photo.item_id, "in_gallery": photo.item_id in known.items, "copy": copied}
