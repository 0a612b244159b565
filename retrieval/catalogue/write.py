"""Write labelled photos as a CSV file."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from pathlib import Path

from retrieval.errors import DataError
from retrieval.files import write_file

from .photos import Photo
from .remote import RemotePhoto


def write_catalogue(photos: Sequence[Photo], path: Path) -> Path:
    """Write photos as a CSV file for `retrieval.catalogue.read.read_catalogue`; return its path.

    Paths are relative to the CSV if the photos are below its folder, and absolute otherwise. Raise DataError for photos
    in tar shards or parquet files, which are not separate files.
    """
    if any(photo.span is not None for photo in photos):
        raise DataError(
            "photos in tar shards or parquet files are not separate files",
            remedy="Unpack them, or use them as they are",
        )
    known = [name for name in ("group", "source") if any(getattr(photo, name) for photo in photos)]
    boxes = ["bbox"] * any(photo.bbox is not None for photo in photos)
    home = path.resolve().parent
    extra = list(dict.fromkeys(name for photo in photos for name in photo.metadata))
    home.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["photo_id", "path", "item_id", "partition", "role", *known, *boxes, *extra])
    for photo in photos:
        where = photo.path.resolve()
        place = where.relative_to(home).as_posix() if where.is_relative_to(home) else where.as_posix()
        if isinstance(photo, RemotePhoto):
            place = photo.url
        values = [getattr(photo, name) for name in known]
        values += [" ".join(map(str, photo.bbox or ())) for _ in boxes]
        values += [photo.metadata.get(name, "") for name in extra]
        writer.writerow([photo.photo_id, place, photo.item_id, photo.partition, photo.role, *values])
    write_file(path, text.getvalue())
    return path
