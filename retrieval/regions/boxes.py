"""Bounding boxes in pixels of the upright photo: (left, upper, right, lower)."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from numbers import Real

import numpy as np
from PIL import Image

from retrieval.errors import InvalidParameter
from retrieval.images import MAX_PIXELS, MIN_SIDE

BBox = tuple[float, float, float, float]

MOST_BBOXES = 64  # of one search
MOST_AREA = 8 * MAX_PIXELS  # of the boxes of one search together; each of them is resized from the full photo
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


def check_bboxes(values: Iterable[Sequence[float]]) -> list[BBox]:
    """Return the bounding boxes of a caller; raise InvalidParameter unless there are 1 to 64 valid ones."""
    if isinstance(values, str | bytes) or not isinstance(values, Sequence | np.ndarray):
        raise InvalidParameter("regions", "be auto, detector or a sequence of bounding boxes", values)
    if not 1 <= len(values) <= MOST_BBOXES:
        raise InvalidParameter("regions", f"have 1 to {MOST_BBOXES} bounding boxes", len(values))
    bboxes = [check_bbox(value) for value in values]
    if (pixels := sum(map(area, bboxes))) > MOST_AREA:
        raise InvalidParameter("regions", f"cover at most {MOST_AREA:,} pixels together", f"{pixels:,.0f}")
    return bboxes


def check_parts(images: Sequence[object], bboxes: Sequence[Sequence[float] | None] | None) -> list[BBox | None]:
    """Return the part of each image, None for the whole image; raise InvalidParameter if a part is invalid."""
    if bboxes is None:
        return [None] * len(images)
    if len(bboxes) != len(images):
        raise InvalidParameter("bboxes", f"have one entry for each of the {len(images)} images", len(bboxes))
    return [None if bbox is None else check_bbox(bbox) for bbox in bboxes]


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
    if right > image.width or lower > image.height:
        raise InvalidParameter("bbox", f"lie within the {image.width}×{image.height} pixels of the photo", bbox)
    if min(right - left, lower - upper) < MIN_SIDE:
        raise InvalidParameter("bbox", f"have sides of at least {MIN_SIDE} pixels", bbox)
    return image.crop((left, upper, right, lower))


def overlap(one: BBox, other: BBox) -> float:
    """Return the share of the smaller box that lies in the other one."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    if width <= 0 or height <= 0:
        return 0.0
    return width * height / min(area(one), area(other))


def area(bbox: BBox) -> float:
    """Return the area of a box."""
    return (bbox[2] - bbox[0]) * (bbox[3] - bbox[1])
