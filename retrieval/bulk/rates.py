"""Error rates of answers to photos whose items are known, with 95 % intervals.

Photos of one item are not independent, so an interval is computed for an effective number of independent photos, from
the observed variance over items (design effect). Each photo without an item id counts as an unknown item of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.result import RANKED
from retrieval.threshold.bounds import binomial_bound

from .answers_file import Line

EACH_SIDE = 0.975  # confidence of each end of a 95 % interval


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
    items: int  # of the gallery's items
    unknown_ids: int  # items that the gallery does not have
    copies: int  # photos that are in the gallery; left out of the rates

    @classmethod
    def of(cls, lines: Sequence[Line]) -> TrueRates:
        """Measure the rates of the answers to photos whose items are known."""
        used = [line for line in lines if not line["copy"]]
        mated = [line for line in used if line["in_gallery"]]
        unknown = [line for line in used if not line["in_gallery"]]
        decides = not any(line["decision"] == RANKED for line in used)
        items = [line["truth"] for line in mated]
        unknown_items = [line["truth"] or f" {line['photo_id']}" for line in unknown]
        return cls(
            Rate.of([is_nearest(line) for line in mated], items),
            Rate.of([line.get("item_id") == line["truth"] for line in mated], items) if decides else None,
            Rate.of([is_misidentified(line) for line in mated], items) if decides else None,
            Rate.of([bool(line["matches"]) for line in unknown], unknown_items) if decides else None,
            len(set(items)),
            len({line["truth"] for line in unknown} - {""}),
            len(lines) - len(used),
        )

    def to_dict(self) -> dict[str, Any]:
        """Return the rates as plain JSON values."""
        return asdict(self)

    def lines(self, target_fpir: float | None) -> list[str]:
        """Return the rates as lines of text; `target_fpir` is that of the threshold."""
        lines = []
        if self.r_at_1 is not None:
            lines.append(f"{_photos(self.r_at_1.photos)} of {self.items:,} items of the gallery (95 % intervals):")
            named = {
                "the nearest item is theirs (R@1)": self.r_at_1,
                "the first match is their item (TPIR)": self.tpir,
                "the first match is another item (misidentification)": self.misidentification,
            }
            lines += [f"  {name}: {rate}" for name, rate in named.items() if rate is not None]
        if self.fpir is not None:
            told = "" if not self.unknown_ids else f" ({self.unknown_ids:,} ids that the gallery does not have)"
            target = "" if target_fpir is None else f"; the target is at most {target_fpir:.1%}"
            lines.append(f"{_photos(self.fpir.photos)} of unknown items{told}:")
            lines.append(f"  return a match (FPIR): {self.fpir}{target}")
        if self.copies:
            lines.append(
                f"{_photos(self.copies)} in the gallery, where they find themselves; the rates leave them out."
            )
        return lines


def is_nearest(line: Line) -> bool:
    """Return whether the nearest item of an answer is the one that the photo shows."""
    return bool(line.get("nearest")) and bool(line["nearest"]["item_id"] == line["truth"])


def is_misidentified(line: Line) -> bool:
    """Return whether the first match of an answer is not the item that the photo shows."""
    return line.get("item_id") is not None and bool(line["item_id"] != line["truth"])


def _photos(count: int) -> str:
    return f"{count:,} photo{'s' if count != 1 else ''}"
