"""Local features of one photo, and the bytes in which a gallery keeps them.

Shapes: k key points.
"""

from __future__ import annotations

import struct
import zlib
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import GalleryCorrupt, InvalidParameter

LENGTH = 128  # numbers of a descriptor
UNIT = 512  # Euclidean length of a descriptor
MOST_POINTS = 4096
LARGEST_SIDE = 4096
_HEADER = struct.Struct("<4sHHHHI")  # magic, key points, width, height, zero, checksum of what follows
_MAGIC = b"RLF1"
_BYTES = 2 + 4 + LENGTH  # per key point: word, position, descriptor


@dataclass(frozen=True, eq=False)
class LocalFeatures:
    """Key points of a photo that was scaled to `width` x `height` pixels, strongest first.

    Descriptors are RootSIFT: integers of one length, whose products are exact in float32.
    """

    descriptors: NDArray[np.uint8]  # (k, 128)
    positions: NDArray[np.float16]  # (k, 2) x and y in pixels of the scaled photo
    words: NDArray[np.uint16]  # (k,) visual words, 0 until a vocabulary assigns them
    width: int
    height: int

    def __post_init__(self) -> None:
        count = len(self.descriptors)
        for name, dtype, shape in (
            ("descriptors", np.uint8, (count, LENGTH)),
            ("positions", np.float16, (count, 2)),
            ("words", np.uint16, (count,)),
        ):
            array = getattr(self, name)
            if array.dtype != dtype or array.shape != shape:
                raise InvalidParameter(name, f"be {np.dtype(dtype)} {shape}", f"{array.dtype} {array.shape}")
        if count > MOST_POINTS:
            raise InvalidParameter("descriptors", f"have at most {MOST_POINTS:,} rows", count)
        if not (1 <= self.width <= LARGEST_SIDE and 1 <= self.height <= LARGEST_SIDE):
            raise InvalidParameter("size", f"lie between 1 and {LARGEST_SIDE:,} pixels", (self.width, self.height))

    @classmethod
    def empty(cls, width: int, height: int) -> LocalFeatures:
        """Return the features of a photo without key points."""
        none = np.zeros((0, LENGTH), np.uint8), np.zeros((0, 2), np.float16), np.zeros(0, np.uint16)
        return cls(*none, width, height)

    def __len__(self) -> int:
        return len(self.descriptors)

    def with_words(self, words: NDArray[np.uint16]) -> LocalFeatures:
        """Return the same features with these visual words (k,)."""
        return replace(self, words=words)

    def relative(self, positions: NDArray[Any]) -> NDArray[np.float64]:
        """Convert positions (n, 2) from pixels to fractions of the width and height."""
        return np.asarray(positions, dtype=np.float64) / (self.width, self.height)

    def pack(self) -> bytes:
        """Return the features as bytes for `unpack`."""
        body = self.words.tobytes() + self.positions.tobytes() + self.descriptors.tobytes()
        return _HEADER.pack(_MAGIC, len(self), self.width, self.height, 0, zlib.crc32(body)) + body

    @classmethod
    def unpack(cls, data: bytes) -> LocalFeatures:
        """Return the features in bytes from `pack`; raise GalleryCorrupt if these are damaged."""
        count, width, height = _check(data)
        start = _HEADER.size
        words = np.frombuffer(data, np.uint16, count, start)
        positions = np.frombuffer(data, np.float16, 2 * count, start + 2 * count).reshape(count, 2)
        descriptors = np.frombuffer(data, np.uint8, LENGTH * count, start + 6 * count).reshape(count, LENGTH)
        return cls(descriptors, positions, words, width, height)


def unpack_words(data: bytes) -> NDArray[np.uint16]:
    """Return the visual words (k,) in bytes from `LocalFeatures.pack`."""
    return np.frombuffer(data, np.uint16, _check(data)[0], _HEADER.size)


def _check(data: bytes) -> tuple[int, int, int]:
    """Return the number of key points, width and height; raise GalleryCorrupt if the bytes are damaged."""
    if len(data) >= _HEADER.size:
        magic, count, width, height, zero, checksum = _HEADER.unpack_from(data)
        whole = len(data) == _HEADER.size + count * _BYTES and count <= MOST_POINTS
        sized = 1 <= width <= LARGEST_SIDE and 1 <= height <= LARGEST_SIDE
        body = memoryview(data)[_HEADER.size :]
        if magic == _MAGIC and not zero and whole and sized and zlib.crc32(body) == checksum:
            return int(count), int(width), int(height)
    raise GalleryCorrupt(
        f"the local features of a photo ({len(data):,} bytes) are damaged",
        remedy="Restore the gallery from a backup, or index the photos again",
    )


@dataclass(frozen=True)
class PackedFeatures:
    """The format of `LocalFeatures.pack`, with the size of the vocabulary, `words`, if it is known."""

    words: int | None = None

    def problem(self, features: bytes) -> str:
        """Return what is wrong with the features of a photo, "" if nothing is."""
        try:
            words = unpack_words(features)
        except GalleryCorrupt as error:
            return error.message
        largest = int(words.max(initial=0))
        if self.words is not None and largest >= self.words:
            return f"they have the visual word {largest}, but the words of the vocabulary are 0 to {self.words - 1}"
        return ""
