"""Rules for the feedback that may change a threshold.

A search counts as one of an unknown item if its answer was judged "unknown", or if a no-match was judged "right".
Feedback caps the threshold at the largest value that returns something for at most the target share of these searches.
Feedback is biased, because people report what they notice: it can tighten a threshold, but never certifies or loosens
one. The gallery's operating point keeps each cap, which applies to later calibrations for the same or a lower target.

Verdicts may also be false, and a key may be stolen. The influence of each key that the operator does not trust by name
is therefore limited in two ways:

- **One key alone cannot move the threshold.** The threshold moves only as far as the verdicts support with any one key
  left out. Calling known items unknown from a single key has no effect, because the other verdicts do not agree.
- **One key supplies at most half of the counted verdicts** (`SHARE`); its newest ones are kept. Judging many easy
  photos then hides at most half of the other keys' errors: the FPIR on their searches stays within twice the target.

A smaller share would limit the second attack further, but then the verdicts of two keys could never all count. No share
prevents the first attack on its own: false verdicts amounting to the target FPIR (such as 5 %) suffice.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence
from dataclasses import asdict, dataclass, replace

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.errors import DataError

from .feedback import Feedback

FEWEST_ERRORS = 5  # minimum number of errors that the target must allow among the searches
SHARE = 0.5  # maximum share of the counted verdicts from one untrusted key
OTHER_MODEL = "of another model or distance"
CHANGED = "given again later"
SAME_PHOTO = "of a photo that the key judged again"
NOT_UNKNOWN = "not about an unknown item"
BEYOND_SHARE = "more than those of all other keys"
CAPS = "feedback_caps"  # key in the evidence of an operating point


@dataclass(frozen=True)
class Tally:
    """The verdicts that count, and the number of dropped ones."""

    counted: tuple[Feedback, ...]  # each on a search of an unknown item
    dropped: Counter[tuple[str, str]]  # count by key name and reason
    trusted: frozenset[str]

    @property
    def keys(self) -> Counter[str]:
        """The number of counted verdicts by key name."""
        return Counter(feedback.key for feedback in self.counted)

    def lines(self) -> list[str]:
        """Return lines of text that list the counted and dropped verdicts per key."""
        counted = [
            f"{named(key)}: {count} count{', trusted' if key in self.trusted else ''}"
            for key, count in sorted(self.keys.items())
        ]
        dropped = [f"{named(key)}: {count} dropped, {why}" for (key, why), count in sorted(self.dropped.items())]
        return counted + dropped


@dataclass(frozen=True)
class FeedbackCap:
    """The largest threshold that verdicts allow, for a target FPIR and stricter ones."""

    threshold: float
    target_fpir: float


@dataclass(frozen=True)
class FeedbackCaps:
    """The caps that an operating point keeps, each for another target FPIR."""

    caps: tuple[FeedbackCap, ...] = ()

    @classmethod
    def of(cls, point: OperatingPoint) -> FeedbackCaps:
        """Return the caps that an operating point keeps."""
        return cls(tuple(FeedbackCap(**values) for values in point.evidence.get(CAPS, ())))

    def with_verdicts(self, tally: Tally, target_fpir: float) -> FeedbackCaps:
        """Return the caps together with that of new verdicts; caps that another one makes redundant are left out."""
        caps = dict.fromkeys((*self.caps, FeedbackCap(feedback_cap(tally, target_fpir), target_fpir)))
        limit = FeedbackCaps(tuple(caps)).limit
        return FeedbackCaps(tuple(cap for cap in caps if cap.threshold == limit(cap.target_fpir)))

    def limit(self, target_fpir: float) -> float:
        """Return the largest threshold that is allowed for a target FPIR, inf if there is no limit."""
        return min((cap.threshold for cap in self.caps if target_fpir <= cap.target_fpir), default=math.inf)

    def kept_with(self, point: OperatingPoint) -> OperatingPoint:
        """Return an operating point that keeps the caps."""
        if not self.caps:
            return point
        return replace(point, evidence={**point.evidence, CAPS: [asdict(cap) for cap in self.caps]})


def weigh(bundle: Bundle, feedback: Sequence[Feedback], *, trusted: Collection[str] = ()) -> Tally:
    """Select the verdicts that count: the last one per answer and photo, within each key's share.

    `trusted` lists the names of keys without a limit; the empty name stands for a server without keys.
    """
    dropped: Counter[tuple[str, str]] = Counter()

    def keep(those: list[Feedback], which: list[bool], why: str) -> list[Feedback]:
        dropped.update((f.key, why) for f, kept in zip(those, which, strict=True) if not kept)
        return [f for f, kept in zip(those, which, strict=True) if kept]

    found = keep(list(feedback), [_of_model(f, bundle) for f in feedback], OTHER_MODEL)
    found = keep(found, _last([_answer(f) for f in found]), CHANGED)
    found = keep(found, _last([(f.key, f.item_id, f.distance) for f in found]), SAME_PHOTO)
    found = keep(found, [f.of_unknown_item for f in found], NOT_UNKNOWN)
    found = keep(found, _within_share(found, trusted), BEYOND_SHARE)
    return Tally(tuple(found), dropped, frozenset(trusted))


def feedback_cap(tally: Tally, target_fpir: float) -> float:
    """Return the largest cap on the threshold, over leaving out each untrusted key in turn.

    Raises DataError if, without one key, so few verdicts remain that the target would allow fewer than five errors.
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
    return max(caps)


def judged_answers(bundle: Bundle, feedback: Sequence[Feedback]) -> list[Feedback]:
    """Return the last verdict on each answer that was given with a bundle's model and distance form."""
    return list({_answer(f): f for f in feedback if _of_model(f, bundle)}.values())


def named(key: str) -> str:
    """Return the name of a key for use in a sentence."""
    return f"key {key!r}" if key else "whoever asked without a key"


def option(key: str) -> str:
    """Return the command-line option that trusts a key, quoted for a shell."""
    return "--trust-key " + "'" + key.replace("'", "'\\''") + "'"


def _cap(distances: NDArray[np.float64], target_fpir: float) -> float:
    """Return the largest threshold that accepts at most the target share of the distances (n,)."""
    return float(np.nextafter(np.sort(distances)[int(target_fpir * len(distances) + 1e-9)], -np.inf))


def _of_model(feedback: Feedback, bundle: Bundle) -> bool:
    return (feedback.embedding_id, feedback.distance_form) == (bundle.embedding_id, bundle.distance_form.key)


def _answer(feedback: Feedback) -> tuple[object, ...]:
    """Return an identifier of the judged answer, or of its region; older files identify only the photo."""
    if feedback.request_id:
        return feedback.request_id, feedback.asked_by, feedback.bbox
    return "", feedback.key, feedback.item_id, feedback.distance


def _last(names: Sequence[object]) -> list[bool]:
    """Return for each name whether it is its last occurrence."""
    last = {name: number for number, name in enumerate(names)}
    return [last[name] == number for number, name in enumerate(names)]


def _within_share(feedback: Sequence[Feedback], trusted: Collection[str]) -> list[bool]:
    """Return for each verdict whether it is within its key's share, counting the newest first."""
    counts = Counter(f.key for f in feedback)
    left = {key: int(SHARE / (1 - SHARE) * (counts.total() - count)) for key, count in counts.items()}
    kept = []
    for f in reversed(feedback):
        left[f.key] -= 1
        kept.append(f.key in trusted or left[f.key] >= 0)
    return kept[::-1]
