"""The outcome of a search with many photos: how many matched, which were refused, and the error rates."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from retrieval.result import MATCH, NO_MATCH, RANKED

from .answers_file import Line
from .rates import TrueRates

KEPT = (
    "photo_id", "truth", "in_gallery", "copy", "decision", "item_id", "matches", "nearest", "threshold",
)  # fmt: skip


@dataclass
class Outcome:
    """Counts of answers, and the answers to photos whose items are known."""

    decisions: Counter[str] = field(default_factory=Counter)
    refused: list[tuple[str, str]] = field(default_factory=list)  # photo_id, reason
    versions: Counter[int] = field(default_factory=Counter)  # of the gallery
    known: list[Line] = field(default_factory=list)  # fields of answers for rates and pages

    def add(self, lines: Iterable[Line]) -> None:
        """Count answers."""
        for line in lines:
            if line.get("error") is not None:
                self.refused.append((line["photo_id"], line["error"]))
                continue
            self.decisions[line["decision"]] += 1
            self.versions[line["gallery_version"]] += 1
            if "truth" in line:
                self.known.append({name: line.get(name) for name in KEPT} | {"matches": line["matches"][:1]})

    @property
    def answered(self) -> int:
        """Return the number of photos that have an answer."""
        return self.decisions.total()

    @property
    def rates(self) -> TrueRates | None:
        """Return the error rates, None if the items of the photos are not known."""
        return TrueRates.of(self.known) if self.known else None

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain JSON values."""
        rates = self.rates
        return {
            "answered": self.answered,
            **{name: self.decisions[name] for name in (MATCH, NO_MATCH, RANKED)},
            "refused": [{"photo_id": photo_id, "reason": reason} for photo_id, reason in self.refused],
            "gallery_versions": sorted(self.versions),
            "rates": None if rates is None else rates.to_dict(),
        }

    def summary(self) -> str:
        """Return the counts as text, leaving out zeros."""
        named = {MATCH: "matches", NO_MATCH: "without a match", RANKED: "ranked"}
        counts = [f"{self.decisions[name]:,} {words}" for name, words in named.items() if self.decisions[name]]
        counts += [f"{len(self.refused):,} refused"] if self.refused else []
        return f"{self.answered:,} photos answered{': ' if counts else ''}{', '.join(counts)}"
