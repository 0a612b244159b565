"""Duplicates: photos that are in a gallery under two items, found by their file or by their pixels.

A copy is recognised by its pixels, not by its distance, because photos of two items can be as close as copies.
"""

from __future__ import annotations

import io
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index.location import AnyGallery
from index.photos import CONTENT

SAME_FILE, SAME_PICTURE, NEAR = "same file", "same picture", "nearly the same"  # kinds of duplicates
# Limits that separate photos that were scaled and saved again from photos of two items, which differ far more.
HASH_SIDE = 8  # of the perceptual hash, which has HASH_SIDE² bits
MOST_BITS = 2  # that differ between copies
FLAT = 8  # difference of brightness below which a bit is noise
PIXEL_SIDE = 16
MOST_DIFFERENCE = 7.0  # mean difference of pixels between copies, of 255
MOST_LOCAL_DIFFERENCE, LOCAL = 30.0, 0.98  # the same for the pixels that differ most: this quantile of them
KEPT = 256  # signatures that are kept


def same_files(gallery: AnyGallery) -> dict[tuple[str, str], tuple[str, str]]:
    """Return one photo of each item with the shared file, for pairs of items that share one, in alphabetical order."""
    copies: dict[str, list[str]] = defaultdict(list)  # photo_ids by file hash
    for photo_id, _, digest in sorted(gallery.values(CONTENT)):
        if digest is not None:
            copies[str(digest)].append(photo_id)
    shared = {}
    for photo_ids in copies.values():
        photos: dict[str, str] = {}  # photo_id by item
        for stored in map(gallery.photo, photo_ids if len(photo_ids) > 1 else ()):
            if stored is not None:
                photos.setdefault(stored[1], stored[0])
        for one, other in pairwise(sorted(photos)):
            shared[one, other] = photos[one], photos[other]
    return shared


def shared_photos(gallery: AnyGallery, pairs: Iterable[tuple[str, str]]) -> list[tuple[str, list[str]]]:
    """Return a photo and the items that have it, for each photo of several items, the most frequent first.

    They have the same file, or are given as `pairs` of photos that are copies.
    """
    items, files = dict[str, str](), defaultdict[str, list[str]](list)
    for photo_id, item, digest in gallery.values(CONTENT):
        items[photo_id] = item
        if digest is not None:
            files[str(digest)].append(photo_id)
    sets = {photo_id: {photo_id} for photo_id in items}
    same = (pair for photo_ids in files.values() for pair in pairwise(photo_ids))
    for one, other in (*same, *pairs):
        if one in sets and other in sets and sets[one] is not sets[other]:
            sets[one] |= sets[other]
            sets.update(dict.fromkeys(sets[other], sets[one]))
    whole = {id(photos): photos for photos in sets.values() if len(photos) > 1}.values()
    shared = [(min(photos), sorted({items[photo_id] for photo_id in photos})) for photos in whole]
    return sorted((each for each in shared if len(each[1]) > 1), key=lambda each: (-len(each[1]), each[0]))


def is_copy(thumbnail: Callable[[str], bytes | None], photo_id: str, other_photo_id: str) -> bool:
    """Return whether two photos are copies, by a perceptual hash and the pixels of their thumbnails.

    Photos without a readable thumbnail are no copies, nor are flat ones in which there is something. Every part of the
    picture has to agree, because two things on the same background differ in a small part only.
    """
    one, other = (_signature(thumbnail(name) or b"") for name in (photo_id, other_photo_id))
    if one is None or other is None:
        return False
    differ = ((one.slopes > 0) != (other.slopes > 0)) & (np.abs(one.slopes - other.slopes) > FLAT)
    if int(differ.sum()) > MOST_BITS:
        return False
    apart = np.abs(one.pixels - other.pixels)
    local = np.quantile(apart.max(axis=2), LOCAL)
    return bool(apart.mean() <= MOST_DIFFERENCE and local <= MOST_LOCAL_DIFFERENCE)


@dataclass(frozen=True)
class _Signature:
    """Properties by which pictures are compared."""

    slopes: NDArray[np.int16]  # how much brighter each pixel of a small grey version is than the one to its left
    pixels: NDArray[np.float64]  # of a small version


@lru_cache(maxsize=KEPT)
def _signature(jpeg: bytes) -> _Signature | None:
    """Return the signature of a thumbnail, None if it cannot be read or is flat, but not of one colour."""
    try:
        with Image.open(io.BytesIO(jpeg), formats=("JPEG",)) as opened:
            image = opened.convert("RGB")
    except (OSError, ValueError, Image.DecompressionBombError):
        return None
    grey = np.asarray(_resized(image.convert("L"), HASH_SIDE + 1, HASH_SIDE), dtype=np.int16)
    slopes = np.diff(grey, axis=1)
    if np.abs(slopes).max() <= FLAT < np.ptp(np.asarray(image), axis=(0, 1)).max():
        return None
    return _Signature(slopes, np.asarray(_resized(image, PIXEL_SIDE, PIXEL_SIDE), dtype=np.float64))


def _resized(image: Image.Image, width: int, height: int) -> Image.Image:
    return image.resize((width, height), Image.Resampling.BOX)
