"""Change log of a gallery on Milvus: one row per change, in the collection of the parts."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime

from index.database import Change

from .collection import Collection

KEY = "change/{}"


@dataclass(frozen=True)
class ChangeLog:
    """Reads and writes the change log."""

    collection: Collection

    def write(self, changes: Sequence[Change]) -> None:
        """Write changes; collections of earlier versions have no log."""
        if self.collection.is_numbered:
            self.collection.put_parts({KEY.format(change.version): json.dumps(asdict(change)) for change in changes})

    def add(self, version: int, actor: str, action: str, photos: int) -> None:
        """Write the change that makes a version."""
        time = datetime.now(UTC).isoformat(timespec="seconds")
        self.write([Change(version, time, actor, action, photos)])

    def newest(self, version: int, limit: int) -> list[Change]:
        """Return the newest changes up to a version, newest first; a limit of -1 returns all of them."""
        if not self.collection.is_numbered:
            return []
        oldest = 0 if limit < 0 else max(0, version - limit)
        parts = self.collection.parts([KEY.format(number) for number in range(oldest + 1, version + 1)])
        changes = [Change(**json.loads(text)) for text in parts.values()]
        return sorted(changes, key=lambda change: -change.version)
