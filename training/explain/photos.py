"""Photos of a page: seen as the model sees them, re-encoded, and none that cannot be read stops anything."""

from __future__ import annotations

import dataclasses
import io
import math
from collections.abc import Sequence

import numpy as np
from PIL import Image

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError
from retrieval.images import Preprocessing, thumbnail
from training.data.reader import PhotoReader

SIDE = 144  # pixels of a picture on the page
TILE = 56  # of one on the map
TILES = 900  # pictures of the map
QUALITY = 75


class ForgivingReader(PhotoReader):
    """Reads photos; one that cannot be read is black, and its reason is kept in `refused` by its position."""

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
    """Photos by position, as small JPEG files."""

    def __init__(self, photos: Sequence[Photo], preprocessing: Preprocessing) -> None:
        self._photos, self._preprocessing = photos, preprocessing
        self._made: dict[int, bytes] = {}

    def __call__(self, position: int) -> bytes:
        """Return one picture."""
        if position not in self._made:
            self._made[position] = thumbnail(Image.fromarray(self._reader(SIDE).pixels([position])[0]))
        return self._made[position]

    def sheet(self, positions: Sequence[int]) -> tuple[bytes, int]:
        """Return many small pictures as one, row by row, and how many stand in a row."""
        columns = max(1, math.ceil(math.sqrt(len(positions))))
        rows = max(1, math.ceil(len(positions) / columns))
        sheet = np.zeros((rows * TILE, columns * TILE, 3), np.uint8)
        reader = self._reader(TILE)
        for place, position in enumerate(positions):
            top, left = place // columns * TILE, place % columns * TILE
            sheet[top : top + TILE, left : left + TILE] = reader.pixels([position])[0]
        out = io.BytesIO()
        Image.fromarray(sheet).save(out, "JPEG", quality=QUALITY)
        return out.getvalue(), columns

    def _reader(self, side: int) -> ForgivingReader:
        return ForgivingReader(self._photos, dataclasses.replace(self._preprocessing, size=side))
