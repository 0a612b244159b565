"""What each event of the page takes: a request is rebuilt from values that were checked, and nothing else gets through.

Gradio trusts what a client sends for a component: a path is opened, an address is fetched. So each kind of component
that is an event's input has a check here, and an event with another kind does not load.
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

COUNTED = ("search", "verdict")  # events that count as requests, as /v1/search and /v1/feedback do
RELOAD = "Reload the page"


@dataclass
class Asked:
    """Who runs an event, and what became of it."""

    client: str
    session: str
    request_id: str
    status: int = 200


ASKED: ContextVar[Asked] = ContextVar("asked")  # of the event that runs
Check = Callable[[Any, Asked], Any]


class Answered:
    """The newest answer of each session, which its verdicts are about."""

    def __init__(self, most: int = 4096) -> None:
        self._ids: OrderedDict[tuple[str, str], str] = OrderedDict()
        self._most = most

    def note(self, asked: Asked, request_id: str) -> None:
        """Keep the request id of an answer; an empty one where there is nothing to judge."""
        self._ids.pop((asked.client, asked.session), None)
        if request_id:
            self._ids[asked.client, asked.session] = request_id
        while len(self._ids) > self._most:
            self._ids.popitem(last=False)

    def of(self, asked: Asked) -> str:
        """Return the request id of a session's newest answer, or an empty one."""
        return self._ids.get((asked.client, asked.session), "")


@dataclass(frozen=True)
class Event:
    """An event of the page: its name in the log, and a check for each of its inputs."""

    name: str
    checks: tuple[Check, ...]

    @property
    def is_counted(self) -> bool:
        """Return whether the event counts against the client's rate."""
        return self.name in COUNTED

    def payload(self, number: int, data: list[Any], asked: Asked) -> bytes:
        """Return the request for Gradio, of checked values alone."""
        if len(data) != len(self.checks):
            raise InvalidParameter("data", f"have {len(self.checks)} values", len(data), remedy=RELOAD)
        checked = [check(value, asked) for check, value in zip(self.checks, data, strict=True)]
        return json.dumps({"data": checked, "fn_index": number, "session_hash": None}).encode()


class Sent(BaseModel):
    """What the page's script sends to run an event; whatever else it holds is dropped."""

    model_config = ConfigDict(strict=True)

    fn_index: int
    session_hash: str = Field(pattern="^[A-Za-z0-9_-]{1,64}$")
    data: list[Any]

    @classmethod
    def parse(cls, body: bytes) -> Sent:
        """Return the content of a body; InvalidParameter names what is wrong with it."""
        try:
            return cls.model_validate_json(body)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False, include_context=False)[0]
            name = ".".join(str(part) for part in first["loc"]) or "body"
            raise InvalidParameter(name, "be as the page sends it", first["msg"], remedy=RELOAD) from None


def events_of(page: gradio.Blocks, uploads: Uploads) -> Mapping[int, Event]:
    """Return the events of a page by number; TypeError where there is no check for an input."""
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
    """Return the check of a photo: a token that is held for the client, which the session takes."""

    def check(value: Any, asked: Asked) -> dict[str, str] | None:
        if value is None:
            return None
        token = value.get("path") if isinstance(value, dict) else None
        if not isinstance(token, str):
            raise InvalidParameter("photo", "be an upload", type(value).__name__, remedy=RELOAD)
        uploads.claim(token, asked.client, asked.session)
        return {"path": token}

    return check


def _number_check(least: float, most: float) -> Check:
    def check(value: Any, _: Asked) -> float:
        if type(value) not in (int, float) or not least <= value <= most:  # NaN is not
            raise InvalidParameter("number", f"lie between {least:g} and {most:g}", _told(value), remedy=RELOAD)
        return float(value)

    return check


def _index_check(count: int) -> Check:
    def check(value: Any, _: Asked) -> int:
        if type(value) is not int or not 0 <= value < count:
            raise InvalidParameter("example", f"be one of the {count} shown", _told(value), remedy=RELOAD)
        return value

    return check


def _told(value: Any) -> str:
    """Return a number, or the type of what is none."""
    return f"{value}"[:40] if type(value) in (int, float) else type(value).__name__
