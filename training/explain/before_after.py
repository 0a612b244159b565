"""Compare the misses of two explanations of the same queries: fixed ones, new ones, and those that remain."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import DataError

REMEDY = "Save what explain prints with --json, and name that file"


@dataclass(frozen=True)
class Before:
    """The misses of another explanation: cause by photo_id, and the photos that it searched for."""

    name: str
    searched: frozenset[str]
    causes: Mapping[str, str]

    @classmethod
    def read(cls, path: Path) -> Before:
        """Read the JSON that `retrieval explain --json` prints; raise DataError if it is something else."""
        try:
            told = json.loads(path.read_text())
            misses = {miss["photo_id"]: miss["cause"] for miss in told["misses"]}
            return cls(str(told["run"]), frozenset(told["searched"]), misses)
        except (OSError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{path} is not an explanation: {error!r}", remedy=REMEDY) from error


@dataclass(frozen=True)
class Comparison:
    """Photo ids with their causes; only photos that both explanations searched for."""

    name: str  # of the other run
    both: int  # photos that both searched for
    fixed: Mapping[str, str]  # missed before only, with the cause then
    new: Mapping[str, str]  # missed now only, with the cause now
    remaining: Mapping[str, str]  # missed both times, with the cause now

    @classmethod
    def of(cls, before: Before, searched: Sequence[str], causes: Mapping[str, str]) -> Comparison:
        """Compare earlier misses with present ones; raise DataError if no photo was searched for both times."""
        both = before.searched & set(searched)
        if not both:
            raise DataError(
                f"the explanation of {before.name} has none of these queries", remedy="Compare runs on one split"
            )
        return cls(
            before.name,
            len(both),
            {photo: cause for photo, cause in before.causes.items() if photo in both and photo not in causes},
            {photo: cause for photo, cause in causes.items() if photo in both and photo not in before.causes},
            {photo: cause for photo, cause in causes.items() if photo in both and photo in before.causes},
        )

    def lines(self) -> list[str]:
        """Return one line on fixed, new and remaining misses each."""
        kinds = (("fixed", self.fixed), ("new", self.new), ("remaining", self.remaining))
        return [
            f"Compared with {self.name} on {self.both} queries:",
            *(f"  {len(found)} {kind}{_by_cause(found)}" for kind, found in kinds),
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        found = {name: dict(getattr(self, name)) for name in ("fixed", "new", "remaining")}
        return {"run": self.name, "queries": self.both, **found}


def _by_cause(found: Mapping[str, str]) -> str:
    counts = Counter(found.values()).most_common()
    return f": {', '.join(f'{count} {cause}' for cause, count in counts)}" if counts else ""
