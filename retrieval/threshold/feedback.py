"""What people say of answers: a file of JSON lines that grows while a bundle serves, and what it may do to a threshold.

A search is known to be of an unknown item where an answer was called "unknown", or a no-match "right". The largest
threshold under which at most the promised share of those returns something caps the bundle's one. People tell
what struck them, so that feedback is biased: it tightens a threshold, and never certifies or loosens one.
"""

from __future__ import annotations

import json
import math
import os
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path

import numpy as np

from retrieval.bundle.bundle import Bundle
from retrieval.errors import DataError, InvalidParameter
from retrieval.result import NO_MATCH, SearchResult

RIGHT, WRONG, UNKNOWN = "right", "wrong", "unknown"
VERDICTS = (RIGHT, WRONG, UNKNOWN)
FEWEST_ERRORS = 5  # that the promise would allow among the searches; fewer searches say nothing


@dataclass(frozen=True)
class Feedback:
    """One verdict on one answer."""

    verdict: str  # "right", "wrong" (another item is right), "unknown" (the item is not in the catalogue)
    decision: str  # what was answered: "match" or "no_match"
    item_id: str  # nearest item, match or not
    distance: float  # to it
    gallery_items: int
    embedding_id: str  # of the model, and `measure` of the distance: distances of others do not compare
    measure: str
    bundle_id: str
    time: str = ""  # ISO 8601, UTC

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InvalidParameter("verdict", f"be one of {', '.join(VERDICTS)}", self.verdict)

    @property
    def of_unknown_item(self) -> bool:
        """Whether the photo is known to show nothing of the catalogue."""
        return self.verdict == UNKNOWN or (self.verdict == RIGHT and self.decision == NO_MATCH)


def feedback_on(result: SearchResult, verdict: str, bundle: Bundle, *, gallery_items: int) -> Feedback:
    """Return a verdict on an answer, dated now."""
    if result.nearest is None:
        raise InvalidParameter("feedback", "be about an answer that had a nearest item", None)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    return Feedback(
        verdict=verdict,
        decision=result.decision,
        item_id=result.nearest.item_id,
        distance=result.nearest.distance,
        gallery_items=gallery_items,
        embedding_id=bundle.embedding_id,
        measure=bundle.measure.key,
        bundle_id=bundle.bundle_id,
        time=now,
    )


def append_feedback(path: Path, feedback: Feedback) -> None:
    """Add a line, in one write and synced: two processes never mix their lines, and a kill loses none."""
    line = json.dumps(vars(feedback)) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    try:
        os.write(file, line.encode())
        os.fsync(file)
    finally:
        os.close(file)


def read_feedback(path: Path) -> list[Feedback]:
    """Read a file of feedback; DataError names the line that is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    known = {field.name for field in fields(Feedback)}
    found = []
    for number, line in enumerate(lines, 1):
        try:
            values = json.loads(line)
            found.append(Feedback(**{name: values[name] for name in known}))
        except (ValueError, KeyError, TypeError, InvalidParameter) as error:
            raise DataError(
                f"{path}, line {number} is no feedback: {error}", remedy="Mend the line or take it out"
            ) from error
    return found


def feedback_cap(bundle: Bundle, feedback: Sequence[Feedback], target_fpir: float) -> float:
    """Return the largest threshold that keeps the target on searches known to be of unknown items.

    DataError where there are so few that the target would allow less than five errors.
    """
    mine = [f for f in feedback if (f.embedding_id, f.measure) == (bundle.embedding_id, bundle.measure.key)]
    distances = np.sort([f.distance for f in mine if f.of_unknown_item])
    needed = math.ceil(FEWEST_ERRORS / target_fpir)
    if len(distances) < needed:
        raise DataError(
            f"{len(feedback)} verdicts hold {len(distances)} searches of unknown items by this model and distance; an "
            f"FPIR of {target_fpir:g} takes {needed}",
            remedy="Collect more, right no-matches too, or ask for a larger --target-fpir",
        )
    return float(np.nextafter(distances[int(target_fpir * len(distances) + 1e-9)], -np.inf))
