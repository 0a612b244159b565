"""Vectors of a local gallery's photos by fold models, in a file of its folder: draws of fitted items are made of them.

Shapes: n photos, K fold models, d = embedding size.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self
from zipfile import BadZipFile

import numpy as np
from numpy.typing import NDArray

from index.files import load_arrays, write_file
from index.search.distance import Rows

if TYPE_CHECKING:
    from index.gallery import Gallery
    from index.snapshot import Snapshot

FILE = "folds.npz"  # in the folder of a gallery


@dataclass(frozen=True)
class FoldVectors:
    """Vectors of gallery photos by the fold models of a bundle."""

    key: str  # of the fold models
    seqs: Rows  # (n,) of the photos, ascending
    vectors: NDArray[np.float16]  # (n, K, d)

    @classmethod
    def read(cls, gallery: Gallery, key: str = "") -> Self | None:
        """Return the vectors that a gallery keeps, None if it has none by the fold models of a key, or none at all."""
        try:
            arrays = load_arrays((gallery.path / FILE).read_bytes())
            kept = cls(str(arrays["key"]), arrays["seqs"], arrays["vectors"])
        except (OSError, ValueError, KeyError, EOFError, BadZipFile):  # missing or damaged: `index` makes it anew
            return None
        return kept if kept.key == (key or kept.key) else None

    def write(self, gallery: Gallery) -> None:
        """Replace the vectors that a gallery keeps."""
        file = io.BytesIO()
        np.savez(file, key=np.array(self.key), seqs=self.seqs, vectors=self.vectors)
        write_file(gallery.path / FILE, file.getvalue())

    def renumbered(self, live: Rows) -> FoldVectors:
        """Return the vectors for a copy of their gallery, in which its live photos (seqs, ascending) count from 0."""
        kept = np.isin(self.seqs, live)
        return FoldVectors(self.key, np.searchsorted(live, self.seqs[kept]), self.vectors[kept])

    @classmethod
    def unpacked(cls, photos: Sequence[bytes | None], key: str, count: int) -> FoldVectors:
        """Return the vectors of photos that count from 0, given as bytes, by `count` fold models."""
        seqs = [seq for seq, content in enumerate(photos) if content is not None]
        vectors = np.frombuffer(b"".join(content for content in photos if content is not None), dtype=np.float16)
        return cls(key, np.array(seqs, dtype=np.int64), vectors.reshape(len(seqs), count, -1 if seqs else 0))

    def positions(self, now: Snapshot) -> tuple[Rows, Rows]:
        """Return the positions (m,) of the live photos that have vectors, and their rows (m,)."""
        rows = np.flatnonzero(np.isin(self.seqs, now.seqs[now.live]))
        return np.searchsorted(now.seqs, self.seqs[rows]), rows
