"""Compare the answers to stored searches (of a gallery, its bundle and its feedback file) at two thresholds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from index.search.distance import accepts
from index.search.leave_one_out import Draws, KeptDraws
from retrieval.bundle.bundle import Bundle

from .drawn_distances import LABELLED, PROBE, UNKNOWN
from .feedback import Feedback
from .verdicts import judged_answers

CALIBRATION, QUERIES, JUDGED = "calibration search", "labelled query", "judged answer"
NOTHING = "no match"


@dataclass(frozen=True)
class StoredSearch:
    """A search with its nearest item."""

    kind: str  # CALIBRATION, QUERIES or JUDGED
    name: str  # photo id of the query, or request id of a judged answer
    item_id: str  # nearest item
    distance: float

    def answer(self, threshold: float) -> str:
        """Return the item that the search returns first at a threshold, or NOTHING."""
        return self.item_id if accepts(self.distance, threshold) else NOTHING


@dataclass(frozen=True)
class ChangedAnswers:
    """The stored searches whose answer differs between two thresholds."""

    before: float
    after: float
    searched: Mapping[str, int]  # number of stored searches by kind
    changed: Sequence[StoredSearch]  # in order of their distance

    @classmethod
    def of(cls, searches: Sequence[StoredSearch], before: float, after: float) -> ChangedAnswers:
        """Compare the answers to searches at two thresholds."""
        changed = [search for search in searches if search.answer(before) != search.answer(after)]
        counts = Counter(search.kind for search in searches)
        return cls(before, after, counts, sorted(changed, key=lambda search: search.distance))

    def summary(self) -> str:
        """Return a sentence with the number of changed answers by kind, empty if no searches are stored."""
        counts = Counter(search.kind for search in self.changed)
        parts = [f"{counts[kind]} of {total} {_plural(kind)}" for kind, total in self.searched.items()]
        return f"Answers that change: {', '.join(parts)}." if parts else ""

    def lines(self) -> list[str]:
        """Return one line per changed answer."""
        return [
            f"{search.kind} {search.name}: {search.answer(self.before)} -> {search.answer(self.after)}, "
            f"at distance {search.distance:.4f}"
            for search in self.changed
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        changed = [
            {**vars(search), "before": search.answer(self.before), "after": search.answer(self.after)}
            for search in self.changed
        ]
        return {"searched": dict(self.searched), "changed": changed}


def stored_searches(bundle: Bundle, draws: KeptDraws, feedback: Sequence[Feedback] = ()) -> list[StoredSearch]:
    """Return the bundle's calibration searches, the labelled queries and the judged answers, in this gallery.

    Calibration searches that are too uncertain for an answer are left out: they never return a match.
    """
    calibration, least = bundle.calibration, bundle.operating_point.min_certainty
    sure = set()
    if calibration is not None:
        sure = set(calibration.photo_ids[calibration.certainties >= least].tolist())
    found = []
    for source, kind in ((PROBE, CALIBRATION), (LABELLED, QUERIES), (UNKNOWN, QUERIES)):
        searches = [] if source not in draws.sources else _of_draws(kind, draws.sources[source])
        found += [search for search in searches if kind != CALIBRATION or search.name in sure]
    judged = judged_answers(bundle, feedback)
    return found + [StoredSearch(JUDGED, f.request_id or f.item_id, f.item_id, f.distance) for f in judged]


def _of_draws(kind: str, draws: Draws) -> list[StoredSearch]:
    """Return draws as searches, with the nearest item: their own or another."""
    return [
        StoredSearch(kind, name, item if own <= other else rival, min(own, other))
        for name, item, own, rival, other in zip(
            draws.ids.tolist(),
            draws.items.tolist(),
            draws.own.tolist(),
            draws.nearest_items.tolist(),
            draws.distances.tolist(),
            strict=True,
        )
    ]


def _plural(kind: str) -> str:
    return {CALIBRATION: "calibration searches", QUERIES: "labelled queries", JUDGED: "judged answers"}[kind]
