"""Error rates of answers to photos whose items are known, with 95 % intervals.

Photos of one item are not independent, so an interval is computed for an effective number of independent photos, from
the observed variance over items (design effect). Each photo without an item id counts as an unknown item of its own.
Items of one group count as one, as they do in draws, and so do the photos without an item id.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.groups import group_of
from retrieval.errors import counted, photos_of_items
from retrieval.metrics.bounds import binomial_bound

from .result import RANKED, Match, SearchResult

EACH_SIDE = 0.975  # confidence of each end of a 95 % interval


@dataclass(frozen=True)
class Known:
    """The answer to a photo whose item is known."""

    photo_id: str
    truth: str  # item that the photo shows; empty if it is not known
    in_gallery: bool  # whether the gallery has this item
    result: SearchResult
    group: str = ""  # of this item, whose items count as one; empty if it has none

    @property
    def item(self) -> str:
        """The group, or else the item, or a name of its own for a photo without one."""
        return f"group {self.group}" if self.group else self.truth or f" {self.photo_id}"

    @property
    def matches(self) -> bool:
        """Whether there is a match."""
        return bool(self.result.matches)

    @property
    def is_right(self) -> bool:
        """Whether the first match is the item that the photo shows."""
        return self.matches and self._is_own(self.result.matches[0])

    @property
    def is_nearest(self) -> bool:
        """Whether the nearest item is the one that the photo shows."""
        return self.result.nearest is not None and self._is_own(self.result.nearest)

    def _is_own(self, match: Match) -> bool:
        group = group_of(match.item_id, match.metadata)
        return match.item_id == self.truth or (group != "" and group == self.group)


@dataclass(frozen=True)
class Rate:
    """A share of photos, with its 95 % interval."""

    value: float
    lower: float
    upper: float
    photos: int

    @classmethod
    def of(cls, hits: Sequence[bool], items: Sequence[str]) -> Rate | None:
        """Return the share of hits among photos (n,) of these items, None if there are no photos."""
        if not hits:
            return None
        hit = np.array(hits, dtype=np.float64)
        value = float(hit.mean())
        count = effective_count(hit, items)
        upper = binomial_bound(value * count, count, confidence=EACH_SIDE)
        lower = 1 - binomial_bound((1 - value) * count, count, confidence=EACH_SIDE)
        return cls(value, lower, upper, len(hits))

    def __str__(self) -> str:
        """Return the rate and its interval: "93.3% (88.0% to 97.0%)"."""
        return f"{self.value:.1%} ({self.lower:.1%} to {self.upper:.1%})"


def effective_count(hits: NDArray[np.float64], items: Sequence[str]) -> float:
    """Return the number of independent photos whose share of hits has the same variance as that of these photos (n,).

    If all or none are hits, the variance is zero, and photos of one item count as fully dependent.
    """
    _, place = np.unique(np.array(items), return_inverse=True)
    sizes = np.bincount(place)
    count, mean, groups = len(hits), float(hits.mean()), len(sizes)
    variance = mean * (1 - mean)
    if variance == 0 or groups == 1:
        return float(count**2 / (sizes**2).sum())
    residuals = np.bincount(place, weights=hits - mean)
    clustered = float((residuals**2).sum()) * groups / (groups - 1) / count
    return max(1.0, count / max(1.0, clustered / variance))


@dataclass(frozen=True)
class TrueRates:
    """Error rates; None where nothing was measured: no such photos, or no threshold."""

    r_at_1: Rate | None  # photos of the gallery's items whose nearest item is theirs
    tpir: Rate | None  # photos of the gallery's items whose first match is their item
    misidentification: Rate | None  # photos of the gallery's items whose first match is another item
    fpir: Rate | None  # photos of unknown items that return a match
    items: int  # of the gallery
    unknown_items: int  # a photo without an item id shows one of its own

    @classmethod
    def of(cls, answers: Sequence[Known]) -> TrueRates:
        """Measure the rates of the answers to photos whose items are known."""
        decides = not any(answer.result.decision == RANKED for answer in answers)
        mated = [answer for answer in answers if answer.in_gallery]
        unknown = [answer for answer in answers if not answer.in_gallery]
        items = [answer.item for answer in mated]
        wrong = [answer.matches and not answer.is_right for answer in mated]
        return cls(
            Rate.of([answer.is_nearest for answer in mated], items),
            Rate.of([answer.is_right for answer in mated], items) if decides else None,
            Rate.of(wrong, items) if decides else None,
            Rate.of([answer.matches for answer in unknown], [a.item for a in unknown]) if decides else None,
            len({answer.truth for answer in mated}),
            len({answer.item for answer in unknown}),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the rates as plain JSON values."""
        return asdict(self)

    def lines(self, target_fpir: float | None) -> list[str]:
        """Return the rates as lines of text; `target_fpir` is that of the threshold."""
        lines = []
        if self.r_at_1 is not None:
            lines.append(f"{photos_of_items(self.r_at_1.photos, self.items)} of the gallery (95 % intervals):")
            named = {
                "the nearest item is theirs (R@1)": self.r_at_1,
                "the first match is their item (TPIR)": self.tpir,
                "the first match is another item (misidentification)": self.misidentification,
            }
            lines += [f"  {name}: {rate}" for name, rate in named.items() if rate is not None]
        if self.fpir is not None:
            target = "" if target_fpir is None else f"; the target is at most {target_fpir:.1%}"
            unknown = counted(self.unknown_items, "unknown item", "unknown items")
            lines.append(f"{counted(self.fpir.photos, 'photo')} of {unknown}:")
            lines.append(f"  return a match (FPIR): {self.fpir}{target}")
        return lines
