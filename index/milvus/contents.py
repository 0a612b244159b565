"""Named contents of a gallery on Milvus, such as the operating point and the draws.

A content is written in parts under a new name. One row of the facts lists the parts of all contents, so the contents
of one change are replaced together.
"""

from __future__ import annotations

import base64
import binascii
import json
import uuid
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from index.database import RESTORE
from index.errors import GalleryCorrupt

from .collection import LONGEST_TEXT, Collection

PART = LONGEST_TEXT // 4 * 3 - 3  # bytes of a part, which is stored as base64
ATTEMPTS = 5  # at reading a content while it is replaced
KEPT = "kept"  # fact that lists the contents
Entry = tuple[str, int, int]  # name of the parts, their number, and the checksum of the content


@dataclass
class Contents:
    """Reads and writes named contents, and remembers those that it has read."""

    collection: Collection
    _read: dict[str, tuple[Entry, bytes]] = field(default_factory=dict)

    def names(self, facts: Mapping[str, str]) -> list[str]:
        """Return the names of all contents; `facts` are those of the gallery."""
        return sorted(_entries(facts))

    def get(self, name: str, facts: Mapping[str, str]) -> bytes | None:
        """Return the content under a name, None if there is none; `facts` are those of the gallery."""
        for _ in range(ATTEMPTS):
            entry = _entries(facts).get(name)
            if entry is None:
                return None
            known = self._read.get(name)
            if known is not None and known[0] == entry:
                return known[1]
            content = self._joined(entry)
            if content is not None:
                self._read[name] = entry, content
                return content
            facts = self.collection.facts()  # another process has replaced it
        raise GalleryCorrupt(f"the {name} of the gallery cannot be read", remedy=RESTORE)

    def _joined(self, entry: Entry) -> bytes | None:
        """Return a content from its parts, None if they are not those that were written."""
        name, count, checksum = entry
        parts = self.collection.parts([f"{name}/{number}" for number in range(count)])
        try:
            content = b"".join(base64.b64decode(parts[f"{name}/{number}"]) for number in range(count))
        except (KeyError, binascii.Error):
            return None
        return content if zlib.crc32(content) == checksum else None

    def write(self, contents: Mapping[str, bytes | None], facts: Mapping[str, str]) -> dict[str, str]:
        """Write the parts of contents, and return the fact that makes them the contents of the gallery."""
        entries = _entries(facts)
        for name, content in contents.items():
            if content is None:
                entries.pop(name, None)
                continue
            parts = [content[start : start + PART] for start in range(0, len(content), PART)]
            entry = uuid.uuid4().hex, len(parts), zlib.crc32(content)
            written = {f"{entry[0]}/{number}": base64.b64encode(part).decode() for number, part in enumerate(parts)}
            self.collection.put_parts(written)
            entries[name] = entry
        return {KEPT: json.dumps(entries)}

    def forget(self, before: Mapping[str, str], after: Mapping[str, str]) -> None:
        """Delete the parts of contents that were replaced between two states of the facts."""
        current = {entry[0] for entry in _entries(after).values()}
        old = [entry for entry in _entries(before).values() if entry[0] not in current]
        self.collection.delete_parts([f"{name}/{number}" for name, count, _ in old for number in range(count)])


def _entries(facts: Mapping[str, str]) -> dict[str, Entry]:
    return {name: (entry[0], entry[1], entry[2]) for name, entry in json.loads(facts.get(KEPT, "{}")).items()}
