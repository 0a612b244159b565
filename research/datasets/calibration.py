"""Training items of a benchmark set that are set aside for calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

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
