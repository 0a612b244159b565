"""A benchmark set as a catalogue: one CSV, with items set aside for calibration where asked."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from retrieval.catalogue.byte_ranges import write_file
from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, InvalidParameter

from .layout import TEST, TRAIN

CALIBRATION = "calibration"


def set_aside(photos: Sequence[Photo], *, share: float, seed: int) -> list[Photo]:
    """Return the photos with a share of the training items, drawn from the seed, in the partition "calibration".

    An official split has no such items, and a threshold may come from none of its parts: not from items that the loss
    saw, nor from those it is judged by.
    """
    if not 0 <= share < 1:
        raise InvalidParameter("share", "lie in [0, 1)", share)
    items = sorted({photo.item_id for photo in photos if photo.partition == TRAIN})
    if share and set(items) & {photo.item_id for photo in photos if photo.partition == TEST}:
        raise InvalidParameter("share", "be 0 where training and test share their items", share)
    taken = set(np.random.default_rng(seed).permutation(items)[: round(share * len(items))].tolist())
    return [replace(photo, partition=CALIBRATION) if photo.item_id in taken else photo for photo in photos]


def write_catalogue(photos: Sequence[Photo], path: Path) -> Path:
    """Write photos as a CSV that `retrieval.catalogue.read.read_catalogue` reads.

    Paths are relative to the CSV where the photos lie below its folder, else absolute. Raises DataError for photos in
    tar shards, which have no file of their own.
    """
    if any(photo.span is not None for photo in photos):
        raise DataError(
            "photos in tar shards have no path of their own", remedy="Unpack the shards, or use them as they are"
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
        place = where.relative_to(home) if where.is_relative_to(home) else where
        values = [getattr(photo, name) for name in known]
        values += [" ".join(map(str, photo.bbox or ())) for _ in boxes]
        values += [photo.metadata.get(name, "") for name in extra]
        writer.writerow([photo.photo_id, place.as_posix(), photo.item_id, photo.partition, photo.role, *values])
    write_file(path, text.getvalue())
    return path
