"""Decisions: what the neighbours that a database returned for a query show."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

MATCH: Literal["match"] = "match"
PERHAPS: Literal["perhaps"] = "perhaps"  # no match, but an item to confirm
NO_MATCH: Literal["no_match"] = "no_match"

BEYOND_THRESHOLD: Literal["beyond_threshold"] = "beyond_threshold"
TWINS: Literal["twins"] = "twins"  # the first two items look like one under two ids
SHORT_LIST: Literal["short_list"] = "short_list"  # an item that is not in the list may be nearer than the first
NO_NEIGHBOURS: Literal["no_neighbours"] = "no_neighbours"


class Match(NamedTuple):
    """An item within the threshold."""

    item_id: str
    score: float  # of its nearest photo
    p_value: float  # rate at which an unknown item comes at least as close


@dataclass(frozen=True)
class Decision:
    """The answer to one query."""

    decision: Literal["match", "perhaps", "no_match"]
    item_id: str | None  # the item that matches, or the item to confirm
    score: float | None  # of the nearest photo of the first item, None without neighbours
    p_value: float | None  # rate at which an unknown item comes at least as close as the first item
    matches: tuple[Match, ...] = ()  # items within the threshold, best first
    reason: Literal["", "beyond_threshold", "twins", "short_list", "no_neighbours"] = ""
    neighbours_short: bool = False  # whether it is no match, and more neighbours could make it one

    @property
    def matched(self) -> bool:
        """Whether the query shows an item of the collection."""
        return self.decision == MATCH
