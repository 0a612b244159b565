"""Segments: immutable files of photo vectors, written once and read through a memory map.

A segment is two files: NAME.npy, float32 vectors (n, d), and NAME.rows, which identifies the photo of each row and
holds a checksum of both. In a gallery with features NAME.features is a third file (`index.features`). They are written
under a temporary name, synced, renamed and hashed, and take effect only with the store transaction that references
them. Unreferenced files are leftovers of an interrupted write.

NAME.rows: the texts (JSON lists of photo_id, item_id and metadata), padded to eight bytes; seq (n, int64), start of
each text (n + 1, int64), number of the item (n, int32), CRC-32 of vector and text (n, uint32); n (uint32), CRC-32 of
the four arrays (uint32).

Data is checked once, before its first use: the arrays when a segment is opened; vector and text of a row by its
checksum; a whole segment without features by its sha256 when much of it is read.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import zlib
from collections.abc import Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .database import RESTORE, Segment
from .errors import GalleryBusy, GalleryCorrupt, GalleryError
from .features import FEATURES, FeatureWriter, OpenFeatures, open_features
from .files import load_array, new_file, sha256, sync_folder

VECTORS, ROWS, PARTIAL = ".npy", ".rows", ".partial"
ENDINGS = (VECTORS, ROWS, FEATURES, PARTIAL)  # of the files of segments
WHOLE = 0.25  # share of a segment's rows above which hashing the whole file is faster than row by row
BLOCK = 2**20  # bytes hashed at a time
DECODER = json.JSONDecoder()

Vectors = NDArray[np.float32]


@dataclass(frozen=True)
class Part:
    """Rows of a segment to be written."""

    vectors: Vectors  # (n, d)
    seqs: NDArray[np.int64]  # (n,) ascending
    items: NDArray[np.int32]  # (n,)
    texts: Sequence[bytes]  # (n,)
    features: Sequence[bytes] | None = None  # (n,) in a gallery with features


@dataclass(frozen=True)
class OpenSegment:
    """A memory-mapped segment."""

    id: int
    name: str
    vectors: Vectors  # (n, d)
    seqs: NDArray[np.int64]  # (n,)
    items: NDArray[np.int32]  # (n,)
    checksums: NDArray[np.uint32]  # (n,)
    starts: NDArray[np.int64]  # (n + 1,) offsets of the texts
    text: NDArray[np.uint8]
    files: tuple[NDArray[np.uint8], ...]  # bytes of vectors and rows
    sha256: str  # of all files
    checked: NDArray[np.bool_]  # (n,) rows that have passed their check
    features: OpenFeatures | None = None  # in a gallery with features

    def read(self, rows: NDArray[np.integer] | slice) -> Vectors:
        """Return the vectors (r, d) of some rows, checking them at their first use."""
        if not self.checked[rows].all():
            self.check(np.arange(len(self.checked))[rows])
        if isinstance(rows, slice):
            return np.asarray(self.vectors[rows])
        return self.vectors.take(rows, axis=0, mode="wrap")  # faster than [rows]

    def check(self, rows: NDArray[np.integer]) -> None:
        """Raise GalleryCorrupt if one of the rows fails its check.

        If many rows of a segment without features are requested, the whole segment is checked.
        """
        new = rows[~self.checked[rows]]
        if self.features is None and len(new) >= WHOLE * len(self.checked):
            self._check_whole()
            return
        lines = (new.tolist(), *(a.tolist() for a in (self.starts[new], self.starts[new + 1], self.checksums[new])))
        for row, start, stop, checksum in zip(*lines, strict=True):
            if zlib.crc32(self._texts[start:stop], zlib.crc32(self._vector(row))) != checksum:
                raise self._damaged(row)
        self.checked[new] = True

    def _check_whole(self) -> None:
        digest = hashlib.sha256()
        for file in self.files:
            for start in range(0, len(file), BLOCK):
                digest.update(file[start : start + BLOCK].data)
        if digest.hexdigest() != self.sha256:
            raise GalleryCorrupt(
                f"segment {self.name} has changed since it was written: its sha256 differs", remedy=RESTORE
            )
        self.checked[:] = True

    @cached_property
    def _texts(self) -> memoryview:
        return self.text.data

    @cached_property
    def _rows(self) -> tuple[memoryview, int]:
        """Return the bytes of all vectors, and the size of one."""
        size = 4 * self.vectors.shape[1]
        return self.files[0].data[len(self.files[0]) - size * len(self.checked) :], size

    def _vector(self, row: int) -> memoryview:
        """Return the bytes of a vector."""
        rows, size = self._rows
        return rows[size * row : size * row + size]

    def texts_of(self, rows: NDArray[np.integer], *, again: bool = True) -> list[memoryview]:
        """Return the JSON of some rows, with `again` checked each time; raise GalleryCorrupt if a checksum is wrong."""
        starts, stops = self.starts[rows].tolist(), self.starts[rows + 1].tolist()
        texts = [self._texts[start:stop] for start, stop in zip(starts, stops, strict=True)]
        if again or not self.checked[rows].all():
            for row, text, checksum in zip(rows.tolist(), texts, self.checksums[rows].tolist(), strict=True):
                if zlib.crc32(text, zlib.crc32(self._vector(row))) != checksum:
                    raise self._damaged(row)
        return texts

    def read_features(self, row: int) -> bytes:
        """Return the features of a row; raise GalleryError if there are none, GalleryCorrupt if they are damaged."""
        if self.features is None:
            raise GalleryError("this gallery keeps no features", remedy="Index the photos again with features")
        return self.features.read(row)

    def _damaged(self, row: int) -> GalleryCorrupt:
        return GalleryCorrupt(f"photo number {self.seqs[row]} has changed since it was written", remedy=RESTORE)

    def photos(self, rows: NDArray[np.integer]) -> list[tuple[str, str, dict[str, Any]]]:
        """Return photo_id, item_id and metadata of some rows."""
        text = b",".join(self.texts_of(rows, again=False)).decode()
        return list(map(tuple, DECODER.raw_decode(f"[{text}]")[0]))

    def part(self, rows: NDArray[np.int64]) -> Part:
        """Return some rows as a part for another segment."""
        texts = [bytes(text) for text in self.texts_of(rows)]
        features = None if self.features is None else [self.features.read(row) for row in rows.tolist()]
        return Part(np.asarray(self.vectors[rows]), self.seqs[rows], self.items[rows], texts, features)


def encode_row(photo_id: str, item_id: str, metadata: str) -> bytes:
    """Return the text of a row; `metadata` is JSON text."""
    return (
        f"[{json.dumps(photo_id, ensure_ascii=False)}, {json.dumps(item_id, ensure_ascii=False)}, {metadata}]".encode()
    )


def segment_paths(folder: Path, name: str, *, features: bool) -> list[Path]:
    """Return the files of a segment, in the order in which they are hashed."""
    return [folder / f"{name}{ending}" for ending in (VECTORS, ROWS, *([FEATURES] if features else []))]


def write_segment(
    folder: Path, parts: Iterable[Part], *, rows: int, dim: int, features: bool = False
) -> tuple[str, str]:
    """Write parts with `rows` rows in total as a new segment, synced to disk; return its name and sha256."""
    name = new_file(folder)
    partial_paths = [path.with_name(path.name + PARTIAL) for path in segment_paths(folder, name, features=features)]
    seqs, items, checksums, lengths = (np.zeros(rows, kind) for kind in (np.int64, np.int32, np.uint32, np.int64))
    with ExitStack() as stack:
        files = [stack.enter_context(path.open("wb")) for path in partial_paths]
        first, second = files[:2]
        third = FeatureWriter(files[2], rows) if features else None
        header = {"descr": "<f4", "fortran_order": False, "shape": (rows, dim)}
        np.lib.format.write_array_header_1_0(first, header)
        start = 0
        for part in parts:
            vectors = np.ascontiguousarray(part.vectors, dtype=np.float32)
            first.write(vectors.tobytes())
            second.write(b"".join(part.texts))
            if third is not None:
                third.write(part.features or [])
            rows_of_part = slice(start, start + len(part.seqs))
            seqs[rows_of_part], items[rows_of_part] = part.seqs, part.items
            lengths[rows_of_part] = [len(text) for text in part.texts]
            checksums[rows_of_part] = [
                zlib.crc32(text, zlib.crc32(vector.data)) for vector, text in zip(vectors, part.texts, strict=True)
            ]
            start = rows_of_part.stop
        starts = np.concatenate([[0], np.cumsum(lengths)])
        second.write(bytes(-int(starts[-1]) % 8))
        arrays = b"".join(array.tobytes() for array in (seqs, starts, items, checksums))
        second.write(arrays + np.array([rows, zlib.crc32(arrays)], dtype=np.uint32).tobytes())
        if third is not None:
            third.finish()
        for file in files:
            file.flush()
            os.fsync(file.fileno())
    digest = sha256(*partial_paths)
    for path in partial_paths:
        path.replace(path.with_suffix(""))
    sync_folder(folder)
    return name, digest


@contextmanager
def reading(what: str) -> Iterator[None]:
    """Turn a failed read into GalleryBusy if the process may open no more files now, else into GalleryCorrupt."""
    try:
        yield
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno in (errno.EMFILE, errno.ENFILE, errno.ENOMEM):
            raise GalleryBusy(f"{what} cannot be opened now: {error.strerror}") from error
        raise GalleryCorrupt(f"{what} is missing or cannot be read: {error}", remedy=RESTORE) from error


def open_segment(folder: Path, segment: Segment, *, dim: int, features: bool = False) -> OpenSegment:
    """Map a segment; raise GalleryCorrupt if it is missing or has another shape than recorded."""
    rows = segment.rows
    paths = segment_paths(folder, segment.name, features=features)
    with reading(f"segment {segment.name}"):
        vectors: Vectors = load_array(paths[0], mapped=True)
        raw = tuple(np.asarray(np.memmap(path, dtype=np.uint8, mode="r")) for path in paths[:2])
    with reading(f"the features of segment {segment.name}"):
        described = open_features(paths[2], rows) if features else None
    if vectors.shape != (rows, dim) or vectors.dtype != np.float32:
        raise GalleryCorrupt(
            f"segment {segment.name} holds {vectors.shape} {vectors.dtype}, not ({rows}, {dim}) float32", remedy=RESTORE
        )
    start = getattr(vectors, "offset", 0)  # of the vectors in the file; checks take them from its end
    if not vectors.flags.c_contiguous or start + vectors.nbytes != len(raw[0]):
        raise GalleryCorrupt(f"segment {segment.name} has vectors with a damaged header", remedy=RESTORE)
    arrays = _arrays(raw[1], segment)
    return OpenSegment(
        segment.id,
        segment.name,
        np.asarray(vectors),
        files=raw,
        sha256=segment.sha256,
        checked=np.zeros(rows, dtype=bool),
        features=described,
        **arrays,
    )


def _arrays(raw: NDArray[np.uint8], segment: Segment) -> dict[str, Any]:
    """Return the arrays of NAME.rows; raise GalleryCorrupt if they fail their check."""
    rows, end = segment.rows, len(raw) - 8
    sizes = {"checksums": 4 * rows, "items": 4 * rows, "starts": 8 * (rows + 1), "seqs": 8 * rows}
    first = end - sum(sizes.values())
    arrays: dict[str, Any] = {}
    whole = rows > 0 and first >= 0 and len(raw) % 8 == 0
    if whole:
        count, checksum = raw[end:].view(np.uint32).tolist()
        whole = count == rows and checksum == zlib.crc32(raw[first:end].data)
    if whole:
        for name, size in sizes.items():
            kind = {"checksums": np.uint32, "items": np.int32}.get(name, np.int64)
            arrays[name] = raw[end - size : end].view(kind)
            end -= size
        starts = arrays["starts"]
        whole = starts[0] == 0 and starts[-1] <= end < starts[-1] + 8 and arrays["seqs"][0] == segment.first
    if not whole:
        raise GalleryCorrupt(f"segment {segment.name} has a damaged description of its {rows} photos", remedy=RESTORE)
    return {**arrays, "text": raw[:first]}
