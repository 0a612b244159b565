"""The newest answers, which feedback may be about: each is kept for the key that asked."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, replace
from threading import Lock

from retrieval.result import SearchResult
from serving.http.callers import Caller

REMEMBERED = 4096  # newest answers of a key


@dataclass
class Answered:
    """An answer, and what was last said of it."""

    result: SearchResult  # without matches and metadata: they are not judged
    request_id: str
    asked_by: str
    verdicts: dict[str, str]  # name of the key that judged, to its verdict


class Answers:
    """The newest answers of each key."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._of_key: dict[str, OrderedDict[str, Answered]] = {}

    def note(self, caller: Caller, request_id: str, result: SearchResult) -> None:
        """Keep an answer; an older one of the same key and id is forgotten, as is the oldest of too many."""
        nearest = None if result.nearest is None else replace(result.nearest, metadata={})
        kept = replace(result, matches=(), nearest=nearest, explanation=None)
        with self._guard:
            answers = self._of_key.setdefault(caller.key, OrderedDict())
            answers.pop(request_id, None)
            answers[request_id] = Answered(kept, request_id, caller.key, {})
            if len(answers) > REMEMBERED:
                answers.popitem(last=False)

    def find(self, caller: Caller, request_id: str) -> Answered | None:
        """Return an answer that the caller may judge, None where there is none: its own, or any if it is an admin."""
        with self._guard:
            own = self._of_key.get(caller.key, OrderedDict()).get(request_id)
            if own is not None or not caller.is_admin:
                return own
            return next((found for a in self._of_key.values() if (found := a.get(request_id)) is not None), None)
