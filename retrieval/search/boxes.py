"""Boxes in a photo: left, upper, right, lower in pixels of the upright photo; given boxes, and windows.

A box that is given is a query of its own. Windows decide in a gallery that was indexed with them; in other galleries
they only rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from numbers import Real

import numpy as np
from PIL import Image

from retrieval.errors import InvalidParameter
from retrieval.images import MAX_DECODED, MIN_SIDE, crop, full_size

from .result import BBox

WINDOWS = "windows"
MOST_BBOXES = 64  # of one search
MOST_WINDOWS = 10
MOST_AREA = 8 * MAX_DECODED  # of the boxes of one search together; each of them is resized from the full photo
SHAPE = "be four numbers, left upper right lower in pixels, with left < right and upper < lower"


def check_bbox(value: Sequence[float]) -> BBox:
    """Return a bounding box as floats; raise InvalidParameter if it is not a bounding box or is empty."""
    try:
        sides = (
            [float(side) for side in value if isinstance(side, Real)]
            if isinstance(value, Sequence | np.ndarray)
            else []
        )
    except OverflowError:  # an integer that no float can hold
        sides = []
    if len(sides) != 4 or len(value) != 4 or not all(map(math.isfinite, sides)):
        raise InvalidParameter("bbox", SHAPE, value)
    left, upper, right, lower = sides
    if not (0 <= left < right and 0 <= upper < lower):
        raise InvalidParameter("bbox", SHAPE, value)
    return left, upper, right, lower


def check_boxes(values: str | Sequence[Sequence[float]]) -> list[BBox] | str:
    """Return WINDOWS, or 1 to 64 boxes as floats; raise InvalidParameter for anything else."""
    if isinstance(values, str) and values == WINDOWS:
        return values
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
        raise InvalidParameter("boxes", f"be {WINDOWS} or a sequence of bounding boxes", values)
    if not 1 <= len(values) <= MOST_BBOXES:
        raise InvalidParameter("boxes", f"have 1 to {MOST_BBOXES} bounding boxes", len(values))
    bboxes = [check_bbox(value) for value in values]  # type: ignore[arg-type]  # not text
    if (pixels := sum(map(area, bboxes))) > MOST_AREA:
        raise InvalidParameter("boxes", f"cover at most {MOST_AREA:,} pixels together", f"{pixels:,.0f}")
    return bboxes


def parse_bbox(text: str) -> BBox:
    """Return a bounding box from text, four numbers with spaces or commas between them."""
    try:
        return check_bbox([float(word) for word in text.replace(",", " ").split()])
    except ValueError:  # also InvalidParameter, its subclass
        raise InvalidParameter("bbox", SHAPE, text) from None


def bbox_text(bbox: Sequence[float]) -> str:
    """Return a bounding box as text, four numbers with commas between them."""
    return ",".join(f"{side:.3f}".rstrip("0").rstrip(".") for side in check_bbox(bbox))


def cropped(image: Image.Image, bbox: BBox) -> Image.Image:
    """Return the part of an upright image in a bounding box; raise InvalidParameter if it reaches beyond the image."""
    left, upper, right, lower = (round(side) for side in bbox)
    width, height = full_size(image)
    if right > width or lower > height:
        raise InvalidParameter("bbox", f"lie within the {width}×{height} pixels of the photo", bbox)
    if min(right - left, lower - upper) < MIN_SIDE:
        raise InvalidParameter("bbox", f"have sides of at least {MIN_SIDE} pixels", bbox)
    return crop(image, bbox)


def area(bbox: BBox) -> float:
    """Return the area of a box."""
    return (bbox[2] - bbox[0]) * (bbox[3] - bbox[1])


def windows(width: int, height: int) -> list[BBox]:
    """Return the whole photo, its halves, its quarters and its centre; those with sides below 8 pixels are left out."""
    x, y = width // 2, height // 2
    halves = [(0, 0, x, height), (x, 0, width, height), (0, 0, width, y), (0, y, width, height)]
    quarters = [(left, upper, left + x, upper + y) for upper in (0, height - y) for left in (0, width - x)]
    centre = (x // 2, y // 2, x // 2 + x, y // 2 + y)
    boxes = [(0, 0, width, height), *halves, *quarters, centre]
    return [box for box in boxes if min(box[2] - box[0], box[3] - box[1]) >= MIN_SIDE]
