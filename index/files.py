"""The files in use of a gallery: segments and candidate indexes, as its database lists them."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from .contents import Contents
from .database import FEATURES_KEY, FORMAT, RESTORE, WITH_FEATURES, WITH_SHARDS
from .errors import GalleryCorrupt
from .shards import SHARDS, shard_in

CHECKSUM = "checksum"  # key in the settings of an index


@dataclass(frozen=True)
class Segment:
    """A vector file in use."""

    id: int
    name: str  # path without its ending, from the folder of all segments
    rows: int
    first: int  # seq of the first row; the others follow in ascending order
    sha256: str

    @property
    def shard(self) -> int:
        """The number of the shard that it belongs to."""
        return shard_in(self.name)


@dataclass(frozen=True)
class IndexFile:
    """A candidate index in use."""

    name: str  # path without its ending, from the folder of all indexes
    kind: str
    settings: Mapping[str, Any]
    sha256: str

    @property
    def shard(self) -> int:
        """The number of the shard that it belongs to."""
        return shard_in(self.name)


class Files(Contents):
    """A connection to a gallery database that lists the files in use."""

    def shards(self) -> int:
        """Return the number of shards, 1 in a gallery that is not divided."""
        return self.number(SHARDS) if self.number("format") == WITH_SHARDS else 1

    def set_shards(self, shards: int) -> None:
        """Set the number of shards, and with it the format."""
        key = self.features_key()
        if shards > 1:
            self.set_fact("format", WITH_SHARDS)
            self.set_fact(SHARDS, shards)
            self.set_fact(FEATURES_KEY, key)
        else:
            self.set_fact("format", WITH_FEATURES if key else FORMAT)
            self._connection.execute("DELETE FROM facts WHERE key = ?", (SHARDS,))

    def segments(self) -> list[Segment]:
        """Return the vector files in use, in insertion order of their photos within each shard."""
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

    def indexes(self) -> list[IndexFile]:
        """Return the candidate indexes in use, at most one per shard."""
        return [self._index(*row) for row in self._query("SELECT name, kind, settings, sha256 FROM indexes")]

    def _index(self, name: str, kind: str, text: str, digest: str) -> IndexFile:
        settings = self._json(text)
        written = settings.pop(CHECKSUM, None)  # absent in earlier releases
        if written not in (None, _checksum(settings)):
            raise GalleryCorrupt(
                f"the settings of the index {name} have changed since they were written", remedy=RESTORE
            )
        return IndexFile(name, kind, settings, digest)

    def set_index(self, index: IndexFile | None, *, shard: int = 0) -> None:
        """Set the candidate index of a shard, or remove it with None."""
        old = [(file.name,) for file in self.indexes() if file.shard == shard]
        self._connection.executemany("DELETE FROM indexes WHERE name = ?", old)
        if index is not None:
            settings = json.dumps({**index.settings, CHECKSUM: _checksum(index.settings)})
            self._connection.execute(
                "INSERT INTO indexes VALUES (?, ?, ?, ?)", (index.name, index.kind, settings, index.sha256)
            )

    def drop_indexes(self) -> None:
        """Remove the candidate indexes of all shards."""
        self._connection.execute("DELETE FROM indexes")


def _checksum(settings: Mapping[str, Any]) -> int:
    return zlib.crc32(json.dumps(dict(settings), sort_keys=True).encode())
