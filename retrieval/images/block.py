"""The block of a photo: the thing on a plain or shaded ground, or the picture in a screenshot, found without a model.

A plane of colour is fitted to the frame's border, so that light may fall off across the ground. Of the parts that
differ from it, the block is the one with the largest and squarest bounding box.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .parts import opened, parts_of

SIDE, BORDER = 96, 4  # pixels of the reduced photo, and the width of its border
STARTS_WITHIN = 60  # levels from the border's median colour, for the first fit
ROUNDS, ERRORS, LEAST_ERROR = 3, 2.5, 12  # of the robust fit; median errors, and levels, that still fit
LEAST_BORDER = 0.7  # share of the border that has to fit
QUANTILE, FACTOR, LEAST_DIFFERENCE = 0.9, 3, 20  # of the border's errors; what differs is beyond both
SMALLEST, LARGEST = 0.05, 0.5  # shares of the frame that a block covers

Share = tuple[float, float, float, float]  # left, upper, right, lower in shares of the sides


def find_block(photo: Image.Image) -> Share | None:
    """Return the block of an upright RGB photo if it covers less than half of the frame, else None."""
    pixels = np.asarray(photo.resize((SIDE, SIDE), Image.Resampling.BOX)).astype(np.float32)
    differs = _differs_from_ground(pixels.reshape(-1, 3))
    if differs is None:
        return None
    boxes = [box for box, _ in parts_of(opened(differs.reshape(SIDE, SIDE)))]
    if not boxes:
        return None
    left, upper, right, lower = max(boxes, key=_size)
    block = left / SIDE, upper / SIDE, right / SIDE, lower / SIDE
    return block if SMALLEST <= (block[2] - block[0]) * (block[3] - block[1]) <= LARGEST else None


def _size(box: tuple[int, int, int, int]) -> float:
    """Return the area of a box, less where it is no square."""
    width, height = box[2] - box[0], box[3] - box[1]
    return width * height * min(width / height, height / width)


def _differs_from_ground(pixels: NDArray[np.float32]) -> NDArray[np.bool_] | None:
    """Return which pixels (SIDE², 3) differ from the ground (SIDE²,), None if the border shows no even ground."""
    y, x = np.mgrid[0:SIDE, 0:SIDE].reshape(2, -1) / np.float32(SIDE) - np.float32(0.5)
    basis = np.stack([np.ones_like(x), x, y], axis=1)
    depth = SIDE / 2 - BORDER
    border = np.maximum(np.abs(x + 0.5 / SIDE), np.abs(y + 0.5 / SIDE)) * SIDE > depth
    ground, colours = basis[border], pixels[border]
    fits = np.abs(colours - np.median(colours, axis=0)).max(axis=1) < STARTS_WITHIN
    if fits.mean() < LEAST_BORDER:
        return None
    for _ in range(ROUNDS):
        plane = np.linalg.lstsq(ground[fits], colours[fits])[0]
        error = np.abs(colours - ground @ plane).max(axis=1)
        fits = error <= max(LEAST_ERROR, ERRORS * float(np.median(error)))
    if fits.mean() < LEAST_BORDER:
        return None
    most = max(LEAST_DIFFERENCE, FACTOR * float(np.quantile(error[fits], QUANTILE)))
    return np.asarray(np.abs(pixels - basis @ plane).max(axis=1) > most)
