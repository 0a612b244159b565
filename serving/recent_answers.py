"""Recent answers by API key, kept for feedback."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field
from threading import Lock

from retrieval.images import Source
from retrieval.search.result import BBox
from retrieval.threshold.judged import Parts
from serving.http.callers import Caller

from .kept_photos import size_of

KEPT_PER_KEY = 4096  # newest answers kept per key
PHOTO_BYTES_PER_KEY = 64 * 2**20  # memory for the photos of its newest answers


@dataclass
class RecentAnswer:
    """An answer and the last verdict of each key on each part of it."""

    parts: Parts
    request_id: str
    asked_by: str
    # verdict and item that is right, by name of the judging key and bounding box
    verdicts: dict[tuple[str, BBox | None], tuple[str, str]]
    photos: tuple[Source, ...] = field(default=(), repr=False)  # of the query; none if they are not kept

    @property
    def photo_bytes(self) -> int:
        """Return the memory that the photos take, in bytes."""
        return sum(map(size_of, self.photos))


class RecentAnswers:
    """The newest answers of each key."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._of_key: dict[str, OrderedDict[str, RecentAnswer]] = {}

    def add(self, caller: Caller, request_id: str, parts: Parts, photos: Sequence[Source] = ()) -> None:
        """Keep an answer and its photos, replacing an answer of the same key and id.

        The oldest answer is dropped beyond KEPT_PER_KEY, the photos of the oldest answers beyond PHOTO_BYTES_PER_KEY.
        """
        with self._lock:
            answers = self._of_key.setdefault(caller.key, OrderedDict())
            answers.pop(request_id, None)
            answers[request_id] = RecentAnswer(parts, request_id, caller.key, {}, tuple(photos))
            if len(answers) > KEPT_PER_KEY:
                answers.popitem(last=False)
            if photos:
                _drop_photos(answers)

    def find(self, caller: Caller, request_id: str) -> RecentAnswer | None:
        """Return an answer that the caller may judge, or None. Admins may judge the answers of every key."""
        with self._lock:
            own = self._of_key.get(caller.key, OrderedDict()).get(request_id)
            if own is not None or not caller.is_admin:
                return own
            return next(
                (answer for answers in self._of_key.values() if (answer := answers.get(request_id)) is not None), None
            )


def _drop_photos(answers: OrderedDict[str, RecentAnswer]) -> None:
    """Drop the photos of the oldest answers beyond PHOTO_BYTES_PER_KEY."""
    room = PHOTO_BYTES_PER_KEY
    for answer in reversed(answers.values()):
        if not answer.photos:
            continue
        room -= answer.photo_bytes
        if room < 0:
            answer.photos = ()
