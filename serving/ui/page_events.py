"""Input checks of page events: each request to Gradio is rebuilt from checked values only.

Gradio trusts client values: it opens paths and fetches URLs. Each kind of input component therefore has a check here;
a page with an event of another kind fails to load.
"""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from retrieval.errors import InvalidParameter

from .uploads import Uploads

if TYPE_CHECKING:
    import gradio

COUNTED = ("search", "verdict")  # events that count against the rate, like /v1/search and /v1/feedback
RELOAD = "Reload the page"


@dataclass
class EventContext:
    """Client, session and outcome of a running event."""

    client: str
    session: str
    request_id: str
    status: int = 200


EVENT: ContextVar[EventContext] = ContextVar("event")  # of the current event
Check = Callable[[Any, EventContext], Any]


@dataclass(frozen=True)
class SessionAnswer:
    """The parts of an answer that feedback needs."""

    request_id: str
    items: tuple[str, ...] = ()  # item ids in the order of their cards
    matched: str = ""  # item id of the best match, empty for a no-match

    def item(self, number: int) -> str:
        """Return the item of a card; raise InvalidParameter if there is no such card."""
        if not 0 <= number < len(self.items):
            raise InvalidParameter("number", f"be that of one of the {len(self.items)} cards", number, remedy=RELOAD)
        return self.items[number]


class SessionAnswers:
    """The newest answer of each session, for feedback."""

    def __init__(self, most: int = 4096) -> None:
        self._answers: OrderedDict[tuple[str, str], SessionAnswer] = OrderedDict()
        self._most = most

    def record(self, event: EventContext, answer: SessionAnswer | None) -> None:
        """Keep a session's answer; None removes it."""
        self._answers.pop((event.client, event.session), None)
        if answer is not None:
            self._answers[event.client, event.session] = answer
        while len(self._answers) > self._most:
            self._answers.popitem(last=False)

    def of(self, event: EventContext) -> SessionAnswer | None:
        """Return a session's newest answer that was not judged yet, or None."""
        return self._answers.get((event.client, event.session))


@dataclass(frozen=True)
class Event:
    """A page event: its name in the log and a check for each input."""

    name: str
    checks: tuple[Check, ...]

    @property
    def is_counted(self) -> bool:
        """Return whether the event counts against the client's rate."""
        return self.name in COUNTED

    def payload(self, number: int, data: list[Any], event: EventContext) -> bytes:
        """Return the request body for Gradio, made of checked values only."""
        if len(data) != len(self.checks):
            raise InvalidParameter("data", f"have {len(self.checks)} values", len(data), remedy=RELOAD)
        checked = [check(value, event) for check, value in zip(self.checks, data, strict=True)]
        return json.dumps({"data": checked, "fn_index": number, "session_hash": None}).encode()


class EventRequest(BaseModel):
    """Event request of the page's script; other fields are dropped."""

    model_config = ConfigDict(strict=True)

    fn_index: int
    session_hash: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$")
    data: list[Any]

    @classmethod
    def parse(cls, body: bytes) -> EventRequest:
        """Parse a request body; raise InvalidParameter for the first invalid field."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            name = ".".join(str(part) for part in first["loc"]) or "body"
            raise InvalidParameter(name, "be as the page sends it", first["msg"], remedy=RELOAD) from None


def events_of(page: gradio.Blocks, uploads: Uploads) -> Mapping[int, Event]:
    """Return the events of a page by number; raise TypeError if an input has no check."""
    return {
        number: Event(str(function.api_name).partition("_")[0], tuple(_check_of(i, uploads) for i in function.inputs))
        for number, function in page.fns.items()
    }


def _check_of(component: Any, uploads: Uploads) -> Check:
    kind = component.get_block_name()
    if kind == "image":
        return photo_check(uploads)
    if kind == "slider":
        return _number_check(float(component.minimum), float(component.maximum))
    if kind == "dataset":
        return _index_check(len(component.samples))
    raise TypeError(f"the page has no check for inputs of kind {kind!r}")


def photo_check(uploads: Uploads) -> Check:
    """Return the check of a photo input: a token stored for this client, which the session claims."""

    def check(value: Any, event: EventContext) -> dict[str, str] | None:
        if value is None:
            return None
        token = value.get("path") if isinstance(value, dict) else None
        if not isinstance(token, str):
            raise InvalidParameter("photo", "be an upload", type(value).__name__, remedy=RELOAD)
        uploads.claim(token, event.client, event.session)
        return {"path": token}

    return check


def _number_check(least: float, most: float) -> Check:
    def check(value: Any, _: EventContext) -> float:
        if type(value) not in (int, float) or not least <= value <= most:  # NaN fails too
            raise InvalidParameter("number", f"lie between {least:g} and {most:g}", _describe(value), remedy=RELOAD)
        return float(value)

    return check


def _index_check(count: int) -> Check:
    def check(value: Any, _: EventContext) -> int:
        if type(value) is not int or not 0 <= value < count:
            raise InvalidParameter("example", f"be one of the {count} shown", _describe(value), remedy=RELOAD)
        return value

    return check


def _describe(value: Any) -> str:
    """Return a number as text, or the type name of another value."""
    return f"{value}"[:40] if type(value) in (int, float) else type(value).__name__
