"""Recent answers by API key, kept for feedback."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import Lock

from retrieval.result import SearchResult
from serving.http.callers import Caller

KEPT_PER_KEY = 4096  # newest answers kept per key


@dataclass
class RecentAnswer:
    """An answer and the last verdict of each key on it."""

    result: SearchResult  # without matches and metadata, which feedback does not need
    request_id: str
    asked_by: str
    verdicts: dict[str, tuple[str, str]]  # verdict and item that is right, by name of the judging key


class RecentAnswers:
    """The newest answers of each key."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._of_key: dict[str, OrderedDict[str, RecentAnswer]] = {}

    def add(self, caller: Caller, request_id: str, result: SearchResult) -> None:
        """Keep an answer. It replaces one of the same key and id; beyond KEPT_PER_KEY the oldest is dropped."""
        nearest = None if result.nearest is None else replace(result.nearest, metadata={})
        kept = replace(result, matches=(), ranked=(), review=(), nearest=nearest, explanation=None)
        with self._lock:
            answers = self._of_key.setdefault(caller.key, OrderedDict())
            answers.pop(request_id, None)
            answers[request_id] = RecentAnswer(kept, request_id, caller.key, {})
            if len(answers) > KEPT_PER_KEY:
                answers.popitem(last=False)

    def find(self, caller: Caller, request_id: str) -> RecentAnswer | None:
        """Return an answer that the caller may judge, or None. Admins may judge the answers of every key."""
        with self._lock:
            own = self._of_key.get(caller.key, OrderedDict()).get(request_id)
            if own is not None or not caller.is_admin:
                return own
            return next(
                (answer for answers in self._of_key.values() if (answer := answers.get(request_id)) is not None), None
            )
