"""Duplicates: photos that are in a gallery under two items, found by their file or by their pixels.

A copy is recognised by its pixels, not by its distance, because photos of two items can be as close as copies.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index.protocol import GalleryProtocol
from retrieval.indexing.worker import CONTENT

SAME_FILE, SAME_PICTURE, NEAR = "same file", "same picture", "nearly the same"  # kinds of duplicates
# Limits that separate photos that were scaled and saved again from photos of two items, which differ far more.
HASH_SIDE = 8  # of the perceptual hash, which has HASH_SIDE² bits
MOST_BITS = 2  # that differ between copies
FLAT = 8  # difference of brightness below which a bit is noise
PIXEL_SIDE = 16
MOST_DIFFERENCE = 7.0  # mean difference of pixels between copies, of 255


def same_files(gallery: GalleryProtocol) -> dict[tuple[str, str], tuple[str, str]]:
    """Return one photo of each item with the shared file, for pairs of items that share one, in alphabetical order."""
    holders: dict[str, dict[str, str]] = defaultdict(dict)  # photo_id by file hash and item
    for photo_id, digest in sorted(gallery.values(CONTENT).items()):
        stored = gallery.photo(photo_id)
        if stored is not None:
            holders[str(digest)].setdefault(stored[1], photo_id)
    shared = {}
    for photos in holders.values():
        for one, other in pairwise(sorted(photos)):
            shared[one, other] = photos[one], photos[other]
    return shared


def is_copy(thumbnail: Callable[[str], bytes | None], photo_id: str, other_photo_id: str) -> bool:
    """Return whether two photos are copies, by a perceptual hash and the pixels of their thumbnails."""
    jpegs = [thumbnail(name) for name in (photo_id, other_photo_id)]
    if None in jpegs:
        return False
    images = [Image.open(io.BytesIO(jpeg)).convert("RGB") for jpeg in jpegs if jpeg is not None]
    first, second = (_slopes(image) for image in images)
    differ = ((first > 0) != (second > 0)) & (np.abs(first - second) > FLAT)
    if int(differ.sum()) > MOST_BITS:
        return False
    pixels = [np.asarray(_resized(image, PIXEL_SIDE, PIXEL_SIDE), dtype=np.float64) for image in images]
    return float(np.abs(pixels[0] - pixels[1]).mean()) <= MOST_DIFFERENCE


def _slopes(image: Image.Image) -> NDArray[np.int16]:
    """Return how much brighter each pixel of a small grey version is than its left neighbour (a difference hash)."""
    grey = np.asarray(_resized(image.convert("L"), HASH_SIDE + 1, HASH_SIDE), dtype=np.int16)
    return np.diff(grey, axis=1)


def _resized(image: Image.Image, width: int, height: int) -> Image.Image:
    return image.resize((width, height), Image.Resampling.BOX)
