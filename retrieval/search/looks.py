"""The input of a search: its options, and the looks of a query (a photo, a part of it, or several photos of one item).

Shapes: n photos, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from numbers import Integral, Real
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from index.search.distance import plain_distance
from retrieval.bundle.embedder import Embeddings
from retrieval.errors import ImageRefused, InvalidParameter
from retrieval.images import DAMAGED, Appearance, Source, open_image

from .boxes import check_bbox, cropped
from .result import PHOTO, BBox
from .second_look import SquareEmbedder, reduced

MOST_MATCHES = 100  # per search
MOST_QUERY_PHOTOS = 4  # photos of one query
MOST_IMAGES, MOST_WHERE = 64, 2000  # photos per batch, characters in a filter


@dataclass(frozen=True)
class Options:
    """Options of a search (`Retriever.search`). Raises InvalidParameter for invalid options."""

    top_k: int = 10
    where: str | None = None
    explain: bool = False
    review: float | None = None  # p-value up to which items are listed for review; None: where a question is worth it
    left_out: Collection[str] = ()  # ids of photos

    def __post_init__(self) -> None:
        top_k, where, review = self.top_k, self.where, self.review
        if not isinstance(top_k, Integral) or not 1 <= top_k <= MOST_MATCHES:
            raise InvalidParameter("top_k", f"be a whole number between 1 and {MOST_MATCHES}", top_k)
        if where is not None and (not isinstance(where, str) or len(where) > MOST_WHERE):
            told = f"{len(where)} characters" if isinstance(where, str) else where
            raise InvalidParameter("where", f"be a text of at most {MOST_WHERE} characters", told)
        if self.left_out and where is not None:
            raise InvalidParameter("left_out", "be empty in a search with a filter", len(self.left_out))
        if review is not None and not (isinstance(review, Real) and 0 <= review <= 1):
            raise InvalidParameter("review", "lie between 0 and 1", review)


class PhotoEmbedder(SquareEmbedder, Protocol):
    """The part of an `Embedder` that searches use."""

    def open(self, image: Source) -> Image.Image:
        """Return the decoded image; raise ImageRefused if it cannot be used."""

    def describe(self, image: Image.Image) -> bytes | None:
        """Return the local features of the image, None if the bundle does not verify matches."""


@dataclass(frozen=True)
class Look:
    """A photo, or a part of it, that is ready for a search."""

    pixels: NDArray[np.uint8]  # (size, size, 3)
    features: bytes = b""  # empty if the bundle does not verify matches
    box: BBox | None = None  # the part; None for the whole photo
    name: Literal["photo", "block", "region"] = PHOTO
    image: Image.Image | None = None  # of a photo that may be looked at again
    damaged: bool = False  # whether blocks of the JPEG are lost or noisy

    @classmethod
    def read(cls, embedder: PhotoEmbedder, image: Source, bbox: Sequence[float] | None = None) -> Look:
        """Decode, preprocess and describe an image, which may be looked at again, or a part of it.

        Raises ImageRefused if it cannot be used, and InvalidParameter if the box is invalid or reaches beyond it.
        """
        if bbox is not None:
            return cls.of_part(embedder, open_image(image), check_bbox(bbox))
        opened = embedder.open(image)
        features = embedder.describe(opened) or b""
        return cls(
            embedder.square(opened),
            features,
            image=reduced(opened, embedder.preprocessing),
            damaged=DAMAGED in opened.info,
        )

    @classmethod
    def of_part(cls, embedder: PhotoEmbedder, opened: Image.Image, box: BBox, *, describe: bool = True) -> Look:
        """Preprocess the part of an upright image in a box, and describe it unless its features are not needed."""
        part = cropped(opened, box)
        return cls(
            embedder.square(part),
            (embedder.describe(part) or b"") if describe else b"",
            box,
            damaged=DAMAGED in opened.info,
        )

    @property
    def appearance(self) -> Appearance:
        """The statistics of the pixels."""
        return Appearance.of(self.pixels)


def check_images(images: Sequence[object], least: int, most: int) -> None:
    """Raise InvalidParameter unless these are a sequence of `least` to `most` images."""
    if isinstance(images, str | bytes) or not isinstance(images, Sequence | np.ndarray):
        raise InvalidParameter("images", "be a sequence of images", type(images), remedy="Use `search` for one")
    if not least <= len(images) <= most:
        rule = f"be {least} to {most} photos of one item" if least else f"be at most {most} in a batch"
        raise InvalidParameter("images", rule, len(images))


def embed_several(embedder: PhotoEmbedder, images: Sequence[Source]) -> Embeddings:
    """Return the vectors (n, d) and certainties of 2 to 4 photos of one item.

    Raises ImageRefused with the number of the photo if one cannot be used.
    """
    check_images(images, 2, MOST_QUERY_PHOTOS)
    pixels = []
    for number, image in enumerate(images, 1):
        try:
            pixels.append(embedder.square(embedder.open(image)))
        except ImageRefused as error:
            raise type(error)(f"photo {number}: {error.message}", remedy=error.remedy) from error
    return embedder.embed_pixels(np.stack(pixels))


def distinct(vectors: NDArray[np.float32], least: float) -> NDArray[np.float32]:
    """Return the vectors (m, d) of photos without repetitions: photos nearer than `least` to an earlier photo."""
    kept: list[NDArray[np.float32]] = []
    for vector in vectors:
        if not kept or plain_distance(vector[None], np.stack(kept)).min() >= least:
            kept.append(vector)
    return np.stack(kept)
