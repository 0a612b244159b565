"""Which verdicts count, and what they may do to a threshold.

A search is known to be of an unknown item where an answer was called "unknown", or a no-match "right". The largest
threshold under which at most the promised share of those returns something caps the bundle's one. People tell
what struck them, so that feedback is biased: it tightens a threshold, and never certifies or loosens one.

Some may also lie, and a key may be stolen. So a single key that the operator does not trust by name is bounded twice:

- **It moves nothing alone.** The threshold moves as far as the verdicts say whichever one key is left out. Calling
  known items unknown from one key has no effect: the others' verdicts, without it, do not say so.
- **It is at most half of what counts** (`SHARE`), its newest verdicts. Judging any number of easy photos then hides
  no more than half of the others' errors: on their searches the FPIR stays within twice the target.

A smaller share would bound the second harm more, but two keys could then never count in full; and no share alone
bounds the first harm, for which a share of the target (5 %, say) is enough.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.bundle import Bundle
from retrieval.errors import DataError

from .feedback import Feedback

FEWEST_ERRORS = 5  # that the promise would allow among the searches; fewer searches say nothing
SHARE = 0.5  # of the verdicts that count, at most, from one key that is not trusted
OTHER_MODEL = "of another model or distance"
CHANGED = "given again later"
SAME_PHOTO = "of a photo that the key judged again"
NOT_UNKNOWN = "not about an unknown item"
BEYOND_SHARE = "more than those of all other keys"


@dataclass(frozen=True)
class Tally:
    """The verdicts that count, and how many others there are."""

    counted: tuple[Feedback, ...]  # each on a search of an unknown item
    dropped: Counter[tuple[str, str]]  # name of the key and reason, to how many
    trusted: frozenset[str]

    @property
    def keys(self) -> Counter[str]:
        """How many verdicts count, by the name of the key."""
        return Counter(feedback.key for feedback in self.counted)

    def lines(self) -> list[str]:
        """Return what counts and what does not, in words."""
        counted = [
            f"{named(key)}: {count} count{', trusted' if key in self.trusted else ''}"
            for key, count in sorted(self.keys.items())
        ]
        dropped = [f"{named(key)}: {count} dropped, {why}" for (key, why), count in sorted(self.dropped.items())]
        return counted + dropped


def weigh(bundle: Bundle, feedback: Sequence[Feedback], *, trusted: Collection[str] = ()) -> Tally:
    """Return the verdicts that count: the last one on each answer and photo, none of a key beyond its share.

    `trusted` are names of keys without a bound; the empty name is that of a server without keys.
    """
    dropped: Counter[tuple[str, str]] = Counter()

    def keep(those: list[Feedback], which: list[bool], why: str) -> list[Feedback]:
        dropped.update((f.key, why) for f, kept in zip(those, which, strict=True) if not kept)
        return [f for f, kept in zip(those, which, strict=True) if kept]

    own = (bundle.embedding_id, bundle.measure.key)
    found = keep(list(feedback), [(f.embedding_id, f.measure) == own for f in feedback], OTHER_MODEL)
    found = keep(found, _last([_answer(f) for f in found]), CHANGED)
    found = keep(found, _last([(f.key, f.item_id, f.distance) for f in found]), SAME_PHOTO)
    found = keep(found, [f.of_unknown_item for f in found], NOT_UNKNOWN)
    found = keep(found, _within_share(found, trusted), BEYOND_SHARE)
    return Tally(tuple(found), dropped, frozenset(trusted))


def feedback_caps(tally: Tally, target_fpir: float) -> tuple[float, float]:
    """Return the smallest and the largest cap on a threshold that the verdicts give, whichever one key is left out.

    DataError where there are so few without one key that the target would allow less than five errors.
    """
    beyond = [(key, count) for (key, why), count in tally.dropped.items() if why == BEYOND_SHARE]
    if beyond and not tally.counted:
        ((key, count),) = beyond
        raise DataError(
            f"all {count} verdicts on unknown items are by {named(key)}, and one key moves no threshold alone",
            remedy=f"Collect from others too, or trust it: {option(key)}",
        )
    needed = math.ceil(FEWEST_ERRORS / target_fpir)
    keys = np.array([feedback.key for feedback in tally.counted], dtype=object)
    distances = np.array([feedback.distance for feedback in tally.counted], dtype=np.float64)
    caps = []
    for left_out in sorted(set(keys) - tally.trusted) or [None]:
        rest = distances[keys != left_out]
        if len(rest) < needed:
            without = "" if left_out is None else f" without those by {named(left_out)}"
            raise DataError(
                f"{len(rest)} searches of unknown items by this model and distance were judged{without}; an FPIR of "
                f"{target_fpir:g} takes {needed}",
                remedy="Collect more, right no-matches too, or ask for a larger --target-fpir"
                + ("" if left_out is None else f"; or trust the key: {option(left_out)}"),
            )
        caps.append(_cap(rest, target_fpir))
    return min(caps), max(caps)


def named(key: str) -> str:
    """Return what a key is called in a sentence."""
    return f"key {key!r}" if key else "whoever asked without a key"


def option(key: str) -> str:
    """Return the option that trusts a key, quoted for a shell."""
    return "--trust-key " + "'" + key.replace("'", "'\\''") + "'"


def _cap(distances: NDArray[np.float64], target_fpir: float) -> float:
    """Return the largest threshold within which at most the target's share of the distances (n,) lies."""
    return float(np.nextafter(np.sort(distances)[int(target_fpir * len(distances) + 1e-9)], -np.inf))


def _answer(feedback: Feedback) -> tuple[str, str, str, float]:
    """Return what names the answer that a verdict is about; older files name the photo alone."""
    if feedback.request_id:
        return feedback.request_id, feedback.asked_by, "", 0.0
    return "", feedback.key, feedback.item_id, feedback.distance


def _last(names: Sequence[object]) -> list[bool]:
    """Return for each name whether it is the last of its kind."""
    last = {name: number for number, name in enumerate(names)}
    return [last[name] == number for number, name in enumerate(names)]


def _within_share(feedback: Sequence[Feedback], trusted: Collection[str]) -> list[bool]:
    """Return for each verdict whether it is within its key's share, the newest first."""
    counts = Counter(f.key for f in feedback)
    left = {key: int(SHARE / (1 - SHARE) * (counts.total() - count)) for key, count in counts.items()}
    kept = []
    for f in reversed(feedback):
        left[f.key] -= 1
        kept.append(f.key in trusted or left[f.key] >= 0)
    return kept[::-1]
