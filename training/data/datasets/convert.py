"""Conversion of a benchmark data set to a catalogue CSV, optionally with calibration items."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter

from .layout import TEST, TRAIN

CALIBRATION = "calibration"


def set_aside(photos: Sequence[Photo], *, share: float, seed: int) -> list[Photo]:
    """Return the photos with a random share of the training items in the partition "calibration".

    Official splits have no calibration items, and the threshold may be set neither on items that the loss was trained
    on nor on test items.
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

    Paths are relative to the CSV if the photos are below its folder, else absolute.
    """
    home = path.resolve().parent
    extra = list(dict.fromkeys(name for photo in photos for name in photo.metadata))
    home.mkdir(parents=True, exist_ok=True)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["photo_id", "path", "item_id", "partition", "role", *extra])
        for photo in photos:
            absolute = photo.path.resolve()
            location = absolute.relative_to(home) if absolute.is_relative_to(home) else absolute
            values = [photo.metadata.get(name, "") for name in extra]
            writer.writerow([photo.photo_id, location.as_posix(), photo.item_id, photo.partition, photo.role, *values])
    return path
