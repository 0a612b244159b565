"""The second look at a photo whose first look is no match: at its block, or else at its region.

The block is the thing on a plain or shaded ground, or the picture in a screenshot; the region is where the model
responds most. Both find things that fill a small part of the frame. The smaller item distance of the two looks decides,
and the draws of a gallery are made by the same rule. A gallery photo has at most one second look, too.

Shapes: n photos, d = embedding size.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index.search.neighbours import Neighbour
from retrieval.bundle.embedder import Embeddings
from retrieval.images import FULL_SIZE, MIN_SIDE, Preprocessing, full_size
from retrieval.images.block import Share, find_block
from retrieval.images.region import find_region

from .result import BLOCK, REGION, BBox

LONG = 4  # times the side that is kept: largest root of the pixels that are kept of a photo


class SquareEmbedder(Protocol):
    """The part of an `Embedder` that second looks use."""

    @property
    def preprocessing(self) -> Preprocessing:
        """The preprocessing of the model."""

    def square(self, image: Image.Image) -> NDArray[np.uint8]:
        """Return the preprocessed image, uint8 (size, size, 3)."""

    def embed_pixels(self, pixels: NDArray[np.uint8]) -> Embeddings:
        """Return the embeddings of pixels (n, size, size, 3)."""


@dataclass(frozen=True)
class SecondLook:
    """A part of a photo that is ready for a search."""

    name: Literal["block", "region"]
    box: BBox  # in pixels of the upright photo at full size
    pixels: NDArray[np.uint8]  # (size, size, 3)

    @classmethod
    def at(cls, image: Image.Image, energy: NDArray[np.float32] | None, embedder: SquareEmbedder) -> SecondLook | None:
        """Return the second look at an upright photo, given its energy if the model tells it; None if there is none."""
        name: Literal["block", "region"] = BLOCK
        share = find_block(image)
        if share is None and energy is not None and (region := find_region(energy)) is not None:
            name, share = REGION, _of_photo(region, image, embedder.preprocessing)
        if share is None:
            return None
        left, upper, right, lower = _scaled(share, image.size)
        if min(right - left, lower - upper) < MIN_SIDE:
            return None
        part = image.crop((round(left), round(upper), round(right), round(lower)))
        left, upper, right, lower = _scaled(share, full_size(image))
        return cls(name, (round(left), round(upper), round(right), round(lower)), embedder.square(part))


def second_vectors(
    embedder: SquareEmbedder, images: Sequence[Image.Image], made: Embeddings, folds: SquareEmbedder | None = None
) -> list[NDArray[np.float32]]:
    """Return the vectors (w, d) of the second look at each photo, given the first looks; (0, d) where there is none.

    They are the vector of the model and, if there are any, those of its fold models.
    """
    dim = made.vectors.shape[1]
    looks = [SecondLook.at(image, energy, embedder) for image, energy in zip(images, energies_of(made), strict=True)]
    pixels = [look.pixels for look in looks if look is not None]
    models = [] if not pixels else [embedder] if folds is None else [embedder, folds]
    by_model = [model.embed_pixels(np.stack(pixels)).vectors.reshape(len(pixels), -1, dim) for model in models]
    vectors = list(np.concatenate(by_model, axis=1)) if by_model else []
    return [np.zeros((0, dim), np.float32) if look is None else vectors.pop(0) for look in looks]


def energies_of(made: Embeddings) -> Sequence[NDArray[np.float32] | None]:
    """Return the energy of each photo, None where the model tells none."""
    return [None] * len(made.vectors) if made.energies is None else list(made.energies)


def nearest_of(neighbours: Sequence[Neighbour]) -> list[Neighbour]:
    """Return the neighbours of several looks at a photo, nearest first, each item once."""
    items: dict[str, Neighbour] = {}
    for neighbour in sorted(neighbours, key=lambda neighbour: neighbour.distance):
        items.setdefault(neighbour.item_id, neighbour)
    return list(items.values())


def reduced(image: Image.Image, preprocessing: Preprocessing) -> Image.Image:
    """Return a photo with at least twice the pixels a side that the model reads, to keep until it is looked at again.

    A photo from a JPEG is decoded as small as that (`open_image`). A long photo is kept with fewer, for a batch of them
    would fill the memory.
    """
    least = 2 * preprocessing.min_side
    factor = max(min(image.size) // least, math.ceil(math.sqrt(image.width * image.height) / (LONG * least)))
    if factor < 2:
        return image
    small = image.reduce(factor)
    small.info[FULL_SIZE] = full_size(image)
    return small


def _of_photo(share: Share, image: Image.Image, preprocessing: Preprocessing) -> Share:
    """Return a part of the model's input as a part of the photo."""
    sides = image.size if preprocessing.squash else (min(image.size),) * 2
    (width, height) = (preprocessing.view * side / whole for side, whole in zip(sides, image.size, strict=True))
    left, upper = (1 - width) / 2, (1 - height) / 2
    return left + share[0] * width, upper + share[1] * height, left + share[2] * width, upper + share[3] * height


def _scaled(share: Share, size: tuple[int, int]) -> BBox:
    width, height = size
    return share[0] * width, share[1] * height, share[2] * width, share[3] * height
