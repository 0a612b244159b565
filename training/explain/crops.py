"""Other crops of a query, as the model would see them: closer ones, and wider ones."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.catalogue.read import Photo
from retrieval.images import Preprocessing, center_crop_resize, crop, open_image

CLOSER = (0.8, 0.6)  # sides of the closer crops
WIDER = 1.25  # side of the wider crop, where the photo shows more than was searched
CROPS = (*(f"the central {share:.0%}" for share in CLOSER), "a wider view")

Box = tuple[float, float, float, float]


def crops_of(photo: Photo, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Return a readable photo's crops, uint8 (len(CROPS), size, size, 3).

    The wider view is the surroundings of the photo's box; without a box, the whole photo on a square of its mean
    colour instead of its centre, and a margin if it is square already.
    """
    whole = open_image(photo.read())
    searched = crop(whole, photo.bbox)
    views = [searched.crop(_central(searched.size, share)) for share in CLOSER]
    views.append(_padded(searched) if photo.bbox is None else whole.crop(_around(photo.bbox, whole.size)))
    return np.stack([center_crop_resize(view, preprocessing) for view in views])


def _central(size: Sequence[int], share: float) -> tuple[int, int, int, int]:
    side = max(1, round(share * min(size)))
    left, upper = (size[0] - side) // 2, (size[1] - side) // 2
    return left, upper, left + side, upper + side


def _around(box: Box, size: Sequence[int]) -> tuple[int, int, int, int]:
    left, upper, right, lower = box
    across, down = ((WIDER - 1) / 2 * side for side in (right - left, lower - upper))
    return (
        max(0, round(left - across)),
        max(0, round(upper - down)),
        min(size[0], round(right + across)),
        min(size[1], round(lower + down)),
    )


def _padded(image: Image.Image) -> Image.Image:
    side = max(*image.size, round(WIDER * min(image.size)))
    red, green, blue = (round(float(value)) for value in np.asarray(image).mean(axis=(0, 1)))
    square = Image.new("RGB", (side, side), (red, green, blue))
    square.paste(image, ((side - image.width) // 2, (side - image.height) // 2))
    return square
