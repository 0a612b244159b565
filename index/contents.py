"""Named contents in a gallery's database, such as the operating point and the draws."""

from __future__ import annotations

import zlib
from collections.abc import Mapping

from .database import RESTORE, Database
from .errors import GalleryCorrupt

POINT = "operating point"  # name under which a gallery keeps its operating point


class Contents(Database):
    """A connection to a gallery database that reads and writes named contents."""

    def kept(self, name: str) -> bytes | None:
        """Return the content kept under a name, or None; raise GalleryCorrupt if it is damaged."""
        rows = self._query("SELECT content, checksum FROM kept WHERE name = ?", (name,))
        if not rows:
            return None
        content = rows[0][0]
        if not isinstance(content, bytes) or zlib.crc32(content) != rows[0][1]:
            raise GalleryCorrupt(f"the {name} in {self._path} has changed since it was written", remedy=RESTORE)
        return content

    def keep(self, contents: Mapping[str, bytes | None]) -> None:
        """Keep each content under its name; None removes it."""
        for name, content in contents.items():
            if content is None:
                self._connection.execute("DELETE FROM kept WHERE name = ?", (name,))
            else:
                self._connection.execute(
                    "INSERT OR REPLACE INTO kept VALUES (?, ?, ?)", (name, content, zlib.crc32(content))
                )

    def kept_names(self) -> list[str]:
        """Return the names of all contents."""
        return [row[0] for row in self._query("SELECT name FROM kept ORDER BY name")]
