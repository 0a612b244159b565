"""Embedding of a catalogue on a Ray cluster, with the same results as on one machine.

Every machine must have access to the photos and the bundle under the same paths, and the credentials of remote photos.
On a single machine, the local engine is faster.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np

from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.embedded import EmbeddedPhoto
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.remote import RemotePhoto
from retrieval.errors import ImageRefused, InvalidParameter, importing

from .worker import Batch, embed_batch

PREFETCHED = 2  # batches prefetched for the writer
KINDS = (Photo, RemotePhoto, EmbeddedPhoto)  # photos that an actor can read


class Embedding:
    """A Ray actor that opens a bundle's model once and converts catalogue rows to records."""

    def __init__(self, bundle: str) -> None:
        self._embedder = Bundle.open(bundle).embedder(threads=1)

    def __call__(self, columns: Mapping[str, Any]) -> dict[str, Any]:
        """Return one record per photo: number, hash, vector, thumbnail, features, and reason if it was refused."""
        numbers = [int(number) for number in columns["number"]]
        photos = {number: _photo(line) for number, line in zip(numbers, columns["photo"], strict=True)}
        known = {
            photo.photo_id: str(digest)
            for photo, digest in zip(photos.values(), columns["known"], strict=True)
            if str(digest)
        }
        batch = embed_batch(self._embedder, list(photos.values()), known)
        number_of = {photo.photo_id: number for number, photo in photos.items()}
        records = {number: _record(number) for number in numbers}
        for place, photo in enumerate(batch.photos):
            vector = batch.vectors[place] if batch.vectors is not None else np.zeros(0, np.float32)
            records[number_of[photo.photo_id]] |= {
                "vector": vector.tobytes(),
                "hash": batch.hashes[place],
                "thumbnail": batch.thumbnails[place],
                "features": batch.features[place] if batch.features else b"",
            }
        for photo_id in batch.damaged:
            records[number_of[photo_id]]["damaged"] = "damaged"
        for photo_id, error in batch.refused:
            records[number_of[photo_id]]["refused"] = str(error)
        rows = [records[number] for number in numbers]
        return {
            name: np.array([row[name] for row in rows], dtype=np.int64 if name == "number" else object)
            for name in _record(0)
        }


def ray_batches(
    bundle: Bundle, photos: Sequence[Photo], known: Mapping[str, str], *, batch_size: int, workers: int | None = None
) -> Iterator[Batch]:
    """Yield finished batches in the order of the photos, embedded by `workers` actors (default: all CPUs but one)."""
    if any(type(photo) not in KINDS for photo in photos):
        raise InvalidParameter("engine", "be local for photos in memory", "ray")
    with importing("ray", "ray"):
        import ray
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    started = not ray.is_initialized()
    if started:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level="ERROR")
    try:
        context = ray.data.DataContext.get_current()
        context.execution_options.preserve_order = True
        context.enable_progress_bars = False
        lines = [
            {"number": number, "photo": _line(photo), "known": known.get(photo.photo_id, "")}
            for number, photo in enumerate(photos)
        ]
        cpus = int(ray.cluster_resources().get("CPU", 2))
        records = ray.data.from_items(lines).map_batches(
            Embedding,
            fn_constructor_args=(str(Path(bundle.path).resolve()),),
            batch_size=batch_size,
            concurrency=workers or max(1, cpus - 1),  # reading needs one free CPU, or it deadlocks
            num_cpus=1,
        )
        for columns in records.iter_batches(batch_size=batch_size, prefetch_batches=PREFETCHED, batch_format="numpy"):
            yield _batch(columns, photos)
    finally:
        if started:
            ray.shutdown()


def _batch(columns: Mapping[str, Any], photos: Sequence[Photo]) -> Batch:
    batch, vectors = Batch(), []
    for place, number in enumerate(columns["number"].tolist()):
        photo, refused = photos[number], str(columns["refused"][place])
        if refused:
            batch.refused.append((photo.photo_id, ImageRefused(refused)))
        elif not columns["hash"][place]:
            batch.unchanged.append(photo)
        else:
            batch.photos.append(photo)
            batch.hashes.append(str(columns["hash"][place]))
            batch.thumbnails.append(bytes(columns["thumbnail"][place]))
            batch.damaged += [photo.photo_id] if columns["damaged"][place] else []
            features = bytes(columns["features"][place])
            batch.features += [features] if features else []
            vectors.append(np.frombuffer(columns["vector"][place], dtype=np.float32))
    batch.vectors = np.stack(vectors) if vectors else None
    return batch


def _record(number: int) -> dict[str, Any]:
    texts = {"hash": "", "refused": "", "damaged": ""}
    return {"number": number, **texts, "vector": b"", "thumbnail": b"", "features": b""}


def _line(photo: Photo) -> dict[str, Any]:
    """Return the fields of a photo that an actor needs."""
    values = asdict(photo)
    return {
        "kind": type(photo).__name__,
        "url": photo.url if isinstance(photo, RemotePhoto) else "",
        "photo_id": photo.photo_id,
        "path": str(photo.path if isinstance(photo, RemotePhoto) else photo.path.resolve()),
        "bbox": list(values["bbox"] or ()),
        "span": list(values["span"] or ()),
    }


def _photo(line: Mapping[str, Any]) -> Photo:
    bbox, span = tuple(float(v) for v in line["bbox"]), tuple(int(v) for v in line["span"])
    kind: type[Photo] = next(kind for kind in KINDS if kind.__name__ == line["kind"])
    photo = kind(
        photo_id=str(line["photo_id"]),
        path=Path(str(line["path"])),
        item_id="",
        bbox=bbox if len(bbox) == 4 else None,
        span=span if len(span) == 2 else None,
    )
    return replace(photo, url=str(line["url"])) if isinstance(photo, RemotePhoto) else photo
