"""The photo of a search: its pixels for the model, and its local features if the bundle verifies matches."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .errors import ImageRefused
from .images import Appearance, Source, open_image
from .regions.boxes import BBox, cropped


class PhotoEmbedder(Protocol):
    """The part of an `Embedder` that prepares photos."""

    def open(self, image: Source) -> Image.Image:
        """Return the decoded image; raise ImageRefused if it cannot be used."""

    def square(self, image: Image.Image) -> NDArray[np.uint8]:
        """Return the preprocessed image, uint8 (size, size, 3)."""

    def describe(self, image: Image.Image) -> bytes | None:
        """Return the local features of the image, None if the bundle does not verify matches."""


@dataclass(frozen=True)
class QueryPhoto:
    """A photo that is ready for a search."""

    pixels: NDArray[np.uint8]  # (size, size, 3)
    features: bytes | None = None  # None if the bundle does not verify matches
    seconds: float = 0.0  # time to compute the features

    @classmethod
    def read(cls, embedder: PhotoEmbedder, image: Source, bbox: BBox | None = None) -> QueryPhoto | ImageRefused:
        """Decode, preprocess and describe an image or a part of it; return the refusal if it cannot be used.

        Raises InvalidParameter if the box reaches beyond the image.
        """
        try:
            opened = embedder.open(image) if bbox is None else open_image(image)
        except ImageRefused as refusal:
            return refusal
        return cls.of_image(embedder, opened if bbox is None else cropped(opened, bbox))

    @classmethod
    def of_image(cls, embedder: PhotoEmbedder, opened: Image.Image) -> QueryPhoto:
        """Preprocess and describe an upright RGB image."""
        pixels, started = embedder.square(opened), time.perf_counter()
        features = embedder.describe(opened)
        return cls(pixels, features, 0.0 if features is None else time.perf_counter() - started)

    @classmethod
    def of_several(cls, embedder: PhotoEmbedder, number: int, image: Source) -> QueryPhoto:
        """Return a photo of a query of several; raise ImageRefused with its number if it cannot be used."""
        photo = cls.read(embedder, image)
        if isinstance(photo, ImageRefused):
            raise type(photo)(f"photo {number}: {photo.message}", remedy=photo.remedy)
        return photo

    @property
    def appearance(self) -> Appearance:
        """The statistics of the pixels."""
        return Appearance.of(self.pixels)


def different_photos(vectors: NDArray[np.float32], photos: Sequence[QueryPhoto]) -> list[int]:
    """Return the rows of photos with different vectors (n, d), ascending.

    Of photos with the same vector, the one with the smallest features is chosen, so that their order has no effect.
    """
    chosen: dict[bytes, int] = {}
    for row in sorted(range(len(photos)), key=lambda row: photos[row].features or b""):
        chosen.setdefault(vectors[row].tobytes(), row)
    return sorted(chosen.values())
