"""Copies: photos with the same file or the same picture, which may be one item under two ids."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np

from .distance import plain_distance
from .drawable import Photos
from .drawn import NOBODY
from .stored import Rows

CLOSE = 0.2  # largest plain distance at which the pixels of two photos are compared
IsCopy = Callable[[str, str], bool]  # takes two photo ids


@dataclass(frozen=True)
class Copies:
    """Finds copies among the photos of one snapshot."""

    snapshot: Photos
    content_key: str = ""  # metadata key of the hash of a photo's file; with "", files are not compared
    is_copy: IsCopy | None = None  # compares pictures by their pixels; with None, they are not compared
    _contents: dict[int, object] = field(default_factory=dict)  # of positions that have been read

    def of_query(self, query: Rows, position: int) -> bool:
        """Return whether the photo at a position is a copy of one of the query's photos; NOBODY for a probe."""
        return any(self._same(photo, position) for photo in np.atleast_1d(query).tolist() if photo != NOBODY)

    def _same(self, one: int, other: int) -> bool:
        content = self._content(one)
        if content is not None and content == self._content(other):
            return True
        if self.is_copy is None or plain_distance(*self.snapshot.vectors(np.array([one, other]))[:, None])[0] > CLOSE:
            return False
        return self.is_copy(self.snapshot.photo(one)[0], self.snapshot.photo(other)[0])

    def _content(self, position: int) -> object:
        """Return the hash of the file of the photo at a position, None if it is unknown."""
        if not self.content_key:
            return None
        if position not in self._contents:
            self._contents[position] = self.snapshot.photo(position)[2].get(self.content_key)
        return self._contents[position]
