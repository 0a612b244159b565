"""Local features of photos: the third file of a segment in galleries with verification.

The features of a photo are opaque bytes; a `FeatureFormat` can check them before they are kept. NAME.features holds:
the features of each photo, padded to eight bytes; start of each (n + 1, int64), CRC-32 of each (n, uint32); n (uint32),
CRC-32 of both arrays (uint32). The file is read through a memory map, and the checksum of a photo's features is checked
each time they are read.
"""

from __future__ import annotations

import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO, Protocol

import numpy as np
from numpy.typing import NDArray

from .database import RESTORE
from .errors import GalleryCorrupt, GalleryError, InvalidParameter

FEATURES = ".features"
MOST_PHOTOS = 200_000  # photos of a gallery with features, about 40 KB each: 8 GB
MOST_BYTES = 2**20  # of the features of a photo


class FeatureFormat(Protocol):
    """A check of the features of a photo."""

    def problem(self, features: bytes) -> str:
        """Return what is wrong with the features of a photo, "" if nothing is."""


@dataclass(frozen=True)
class OpenFeatures:
    """A memory-mapped file with the features of a segment's photos."""

    name: str
    data: NDArray[np.uint8]
    starts: NDArray[np.int64]  # (n + 1,)
    checksums: NDArray[np.uint32]  # (n,)

    def read(self, row: int) -> bytes:
        """Return the features of a row; raise GalleryCorrupt if they fail their checksum."""
        features = self.data[self.starts[row] : self.starts[row + 1]].tobytes()
        if zlib.crc32(features) != self.checksums[row]:
            raise GalleryCorrupt(
                f"the features of photo {row} of segment {self.name} have changed since they were written",
                remedy=RESTORE,
            )
        return features


class FeatureWriter:
    """Writes the features of n photos in order. `finish` writes what follows them."""

    def __init__(self, file: BinaryIO, rows: int) -> None:
        self._file = file
        self._lengths: list[int] = []
        self._checksums: list[int] = []
        self._rows = rows

    def write(self, features: Sequence[bytes]) -> None:
        """Write the features of the next photos."""
        self._file.writelines(features)
        self._lengths += map(len, features)
        self._checksums += map(zlib.crc32, features)

    def finish(self) -> None:
        """Write the padding and the arrays."""
        starts = np.concatenate([[0], np.cumsum(self._lengths, dtype=np.int64)]).astype(np.int64)
        arrays = starts.tobytes() + np.array(self._checksums, dtype=np.uint32).tobytes()
        self._file.write(bytes(-int(starts[-1]) % 8) + arrays)
        self._file.write(np.array([self._rows, zlib.crc32(arrays)], dtype=np.uint32).tobytes())


def open_features(path: Path, rows: int) -> OpenFeatures:
    """Map the features of a segment; raise GalleryCorrupt if its arrays fail their check, OSError without the file."""
    raw = np.asarray(np.memmap(path, dtype=np.uint8, mode="r"))
    end = len(raw) - 8
    first = end - 8 * (rows + 1) - 4 * rows
    whole = (
        first >= 0 and first % 8 == 0 and raw[end:].view(np.uint32).tolist() == [rows, zlib.crc32(raw[first:end].data)]
    )
    if whole:
        starts, checksums = raw[first : end - 4 * rows].view(np.int64), raw[end - 4 * rows : end].view(np.uint32)
        whole = starts[0] == 0 and starts[-1] <= first < starts[-1] + 8
    if not whole:
        raise GalleryCorrupt(f"segment {path.stem} has a damaged list of the features of its photos", remedy=RESTORE)
    return OpenFeatures(path.stem, raw[:first], starts, checksums)


def check_features(
    features: Sequence[bytes] | None, photo_ids: Sequence[str], features_key: str, form: FeatureFormat | None = None
) -> Sequence[bytes] | None:
    """Return the features to add; raise InvalidParameter if they are missing, or given to a gallery without features.

    If there is a `form`, they must have it.
    """
    count = len(photo_ids)
    if not features_key:
        if features is not None:
            raise InvalidParameter(
                "features",
                "be None in a gallery without features",
                f"{len(features)} of them",
                remedy="Create a new gallery with a features_key, and index the photos again",
            )
        return None
    if features is None or len(features) != count:
        raise InvalidParameter(
            "features",
            f"have one entry per photo_id ({count}), because this gallery keeps features",
            None if features is None else len(features),
        )
    for photo_id, some in zip(photo_ids, features, strict=True):
        if not isinstance(some, bytes):
            raise InvalidParameter("features", "hold bytes", type(some).__name__)
        if len(some) > MOST_BYTES:
            raise InvalidParameter("features", f"have at most {MOST_BYTES:,} bytes per photo", len(some))
        problem = "" if form is None else form.problem(some)
        if problem:
            rule = "be computed by the bundle that the gallery was made with"
            raise InvalidParameter("features", rule, f"for {photo_id}: {problem}", remedy="Index the photo again")
    return features


def check_size(photos: int, features_key: str) -> None:
    """Raise GalleryError if a gallery with features would have too many photos."""
    if features_key and photos > MOST_PHOTOS:
        raise GalleryError(
            f"a gallery with features holds at most {MOST_PHOTOS:,} photos, about 40 KB each; it would hold {photos:,}",
            remedy="Use a bundle without verification, or divide the photos among several galleries",
        )
