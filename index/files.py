"""The files in use of a gallery: segments and candidate indexes, as its database lists them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .contents import Contents
from .database import RESTORE
from .errors import GalleryCorrupt

CHECKSUM = "checksum"  # key in the settings of an index


@dataclass(frozen=True)
class Segment:
    """A vector file in use."""

    id: int
    name: str  # path without its ending, from the folder of all segments
    rows: int
    first: int  # seq of the first row; the others follow in ascending order
    sha256: str


@dataclass(frozen=True)
class IndexFile:
    """A candidate index in use."""

    name: str  # path without its ending, from the folder of all indexes
    kind: str
    settings: Mapping[str, Any]
    sha256: str


class Files(Contents):
    """A connection to a gallery database that lists the files in use."""

    def segments(self) -> list[Segment]:
        """Return the vector files in use, in insertion order of their photos."""
        return [
            Segment(*row) for row in self._query("SELECT id, name, rows, first, sha256 FROM segments ORDER BY first")
        ]

    def add_segment(self, name: str, rows: int, first: int, digest: str) -> None:
        """Add a vector file to those in use."""
        self._connection.execute(
            "INSERT INTO segments (name, rows, first, sha256) VALUES (?, ?, ?, ?)", (name, rows, first, digest)
        )

    def drop_segments(self, numbers: Iterable[int]) -> None:
        """Remove vector files from those in use."""
        self._connection.executemany("DELETE FROM segments WHERE id = ?", [(number,) for number in numbers])

    def index(self) -> IndexFile | None:
        """Return the candidate index in use, None if there is none."""
        for name, kind, text, digest in self._query("SELECT name, kind, settings, sha256 FROM indexes"):
            settings = self._json(text)
            if settings.pop(CHECKSUM, None) != _checksum(settings):
                raise GalleryCorrupt(
                    f"the settings of the index {name} have changed since they were written", remedy=RESTORE
                )
            return IndexFile(name, kind, settings, digest)
        return None

    def set_index(self, index: IndexFile | None) -> None:
        """Set the candidate index, or remove it with None."""
        self._connection.execute("DELETE FROM indexes")
        if index is not None:
            settings = json.dumps({**index.settings, CHECKSUM: _checksum(index.settings)})
            self._connection.execute(
                "INSERT INTO indexes VALUES (?, ?, ?, ?)", (index.name, index.kind, settings, index.sha256)
            )


def _checksum(settings: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(dict(settings), sort_keys=True).encode())
