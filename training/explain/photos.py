"""Photos of the page: cropped like the model's input, and re-encoded. Unreadable ones are skipped."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError
from retrieval.images import Preprocessing
from retrieval.images.thumbnails import thumbnail
from training.data.reader import PhotoReader

SIDE = 144  # side of a picture on the page, in pixels
TILE = 56  # side of a picture on the map
TILES = 900  # pictures on the map
QUALITY = 75


class ForgivingReader(PhotoReader):
    """Reads photos; an unreadable one is black, and `refused` has the reason by its position."""

    def __init__(self, photos: Sequence[Photo], preprocessing: Preprocessing) -> None:
        super().__init__(photos, preprocessing, cache_bytes=0)
        self.refused: dict[int, str] = {}
        self._size = preprocessing.size

    def pixels(self, positions: Sequence[int]) -> np.ndarray:
        """Return uint8 (n, size, size, 3)."""
        try:
            return super().pixels(positions)
        except DataError:
            return np.stack([self._one(position) for position in positions])

    def _one(self, position: int) -> np.ndarray:
        try:
            return np.asarray(super().pixels([position])[0])
        except DataError as error:
            self.refused[position] = error.message
            return np.zeros((self._size, self._size, 3), np.uint8)


class Pictures:
    """Small JPEG files of photos, by position."""

    def __init__(self, photos: Sequence[Photo], preprocessing: Preprocessing) -> None:
        self._photos, self._preprocessing = photos, preprocessing
        self._encoded: dict[int, bytes] = {}

    def __call__(self, position: int) -> bytes:
        """Return a picture."""
        if position not in self._encoded:
            self._encoded[position] = thumbnail(Image.fromarray(self._reader(SIDE).pixels([position])[0]))
        return self._encoded[position]

    def sheet(self, positions: Sequence[int]) -> tuple[bytes, int]:
        """Return many small pictures as one image, and its number of columns."""
        columns = max(1, math.ceil(math.sqrt(len(positions))))
        rows = max(1, math.ceil(len(positions) / columns))
        sheet = np.zeros((rows * TILE, columns * TILE, 3), np.uint8)
        reader = self._reader(TILE)
        for index, position in enumerate(positions):
            top, left = index // columns * TILE, index % columns * TILE
            sheet[top : top + TILE, left : left + TILE] = reader.pixels([position])[0]
        out = io.BytesIO()
        Image.fromarray(sheet).save(out, "JPEG", quality=QUALITY)
        return out.getvalue(), columns

    def _reader(self, side: int) -> ForgivingReader:
        return ForgivingReader(self._photos, dataclasses.replace(self._preprocessing, size=side))
