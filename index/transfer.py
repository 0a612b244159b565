"""A gallery's photos as a parquet file, and back: for backups, other programs, and moving between machines."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from .errors import DataError, GalleryError
from .gallery import Gallery
from .reader import DATABASE
from .shell import command

BATCH = 5000  # photos written or read at a time
FACTS = b"retrieval.gallery"  # key of dim, embedding_id and columns in the file's metadata


def export_photos(gallery: Gallery, path: Path) -> int:
    """Write all live photos of one version and return how many; GalleryError where the file exists."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    if path.exists():
        raise GalleryError(f"{path} exists", remedy="Choose a new name")
    facts = {"dim": gallery.dim, "embedding_id": gallery.embedding_id, "columns": gallery.columns()}
    schema = pa.schema(
        [
            ("photo_id", pa.string()),
            ("item_id", pa.string()),
            ("vector", pa.list_(pa.float32(), gallery.dim)),
            ("metadata", pa.string()),
            ("thumbnail", pa.binary()),
        ],
        metadata={FACTS: json.dumps(facts).encode()},
    )
    aside, count = path.with_name(f"{path.name}.partial"), 0
    try:
        with pq.ParquetWriter(aside, schema) as writer:
            for photos in gallery.walk(BATCH):
                columns = {
                    "photo_id": [photo.photo_id for photo in photos],
                    "item_id": [photo.item_id for photo in photos],
                    "vector": pa.FixedSizeListArray.from_arrays(
                        pa.array(np.concatenate([photo.vector for photo in photos])), gallery.dim
                    ),
                    "metadata": [json.dumps(photo.metadata, ensure_ascii=False) for photo in photos],
                    "thumbnail": [gallery.thumbnail(photo.photo_id) for photo in photos],
                }
                writer.write_table(pa.table(columns, schema=schema))
                count += len(photos)
        with aside.open("rb+") as file:
            os.fsync(file.fileno())
        aside.replace(path)
    finally:
        aside.unlink(missing_ok=True)
    return count


def import_photos(path: Path, gallery_path: Path) -> int:
    """Add the photos of an exported file to a gallery, making it where there is none; return how many."""
    facts = _facts(path)
    if (gallery_path / DATABASE).exists():
        gallery = Gallery.open(gallery_path)
        if (gallery.dim, gallery.embedding_id) != (facts["dim"], facts["embedding_id"]):
            gallery.close()
            raise GalleryError(f"{gallery_path} was made by another model than {path}", remedy="Import into a new one")
    else:
        gallery = Gallery.create(gallery_path, dim=facts["dim"], embedding_id=facts["embedding_id"])
    count = 0
    with gallery:
        gallery.declare(facts["columns"])
        for rows in _batches(path):
            vectors = np.asarray(rows["vector"].combine_chunks().flatten()).reshape(-1, facts["dim"])
            count += gallery.add(
                rows["photo_id"].to_pylist(),
                rows["item_id"].to_pylist(),
                vectors,
                metadata=[json.loads(text) for text in rows["metadata"].to_pylist()],
                thumbnails=rows["thumbnail"].to_pylist(),
                upsert=True,
            )
        gallery.merge_if_due()
    return count


def _facts(path: Path) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        written = (pq.read_schema(path).metadata or {})[FACTS]
        return dict(json.loads(written))
    except (pa.ArrowException, OSError, KeyError, ValueError) as error:
        raise DataError(
            f"{path} is not an exported gallery",
            remedy=f"`{command('gallery', 'export', 'GALLERY', 'NEW.parquet')}` writes one",
        ) from error


def _batches(path: Path) -> Iterator[Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for batch in pq.ParquetFile(path).iter_batches(batch_size=BATCH):
        yield pa.Table.from_batches([batch])
