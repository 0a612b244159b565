"""Internal application of a worker: answers requests of the other workers over its Unix socket."""

from __future__ import annotations

import json
import logging
from collections.abc import Awaitable, Callable
from dataclasses import asdict
from typing import Any

from anyio import to_thread
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from retrieval.errors import RetrievalError
from retrieval.search.boxes import check_bbox
from serving.dispatcher import Dispatcher
from serving.http.callers import CALLER, Caller
from serving.service import Service

from .peers import COUNTED, FEEDBACK, FORWARDED, PREPARE, SETTLE, STATE, SWITCH, PeerState

log = logging.getLogger("retrieval.serving")


class WorkerApp:
    """ASGI application of a worker: the public one, and the internal one for requests over the Unix socket."""

    def __init__(self, public: ASGIApp, dispatcher: Dispatcher, service: Service) -> None:
        self._public, self._dispatcher = public, dispatcher
        self._internal = internal_app(service)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Dispatch a request by the kind of its socket; a Unix socket has no port."""
        if scope["type"] != "http" or (scope["server"] or ("", None))[1] is not None:
            await self._public(scope, receive, send)
        elif dict(scope["headers"]).get(FORWARDED) is not None:
            await forwarded(self._dispatcher, scope, receive, send)
        else:
            await self._internal(scope, receive, send)


def internal_app(service: Service) -> Starlette:
    """Return the application for the requests of the other workers."""

    async def state(_: Request) -> Response:
        return JSONResponse(asdict(await own_state(service)))

    def feedback(values: dict[str, Any]) -> dict[str, bool]:
        caller = Caller(**values["caller"])
        verdict = values["request_id"], values["verdict"], values["item_id"]
        bbox = None if values["bbox"] is None else check_bbox(values["bbox"])
        return {"recorded": service.judged.record(service.retriever, caller, *verdict, bbox)}

    def prepare(values: dict[str, Any]) -> dict[str, bool]:
        service.reloads.prepare(values["bundle_id"], values["reload_id"])
        return {"prepared": True}

    def switch(_: dict[str, Any]) -> dict[str, bool]:
        return {"switched": service.reloads.switch()}

    def settle(_: dict[str, Any]) -> dict[str, bool]:
        service.reloads.settle()
        return {"settled": True}

    answers = {FEEDBACK: feedback, PREPARE: prepare, SWITCH: switch, SETTLE: settle}
    routes = [Route(path, _endpoint(answer), methods=["POST"]) for path, answer in answers.items()]
    return Starlette(routes=[Route(STATE, state, methods=["POST"]), *routes])


async def own_state(service: Service) -> PeerState:
    """Return the state of this worker."""
    retriever, pool = service.retriever, service.pool
    return PeerState(
        await service.readiness.own_problem(),
        pool.waiting,
        pool.overdue,
        service.monitor.samples(),
        str(retriever.bundle.path),
        retriever.bundle.bundle_id,
        str(retriever.gallery.path),
    )


def _endpoint(answer: Callable[[dict[str, Any]], dict[str, bool]]) -> Callable[[Request], Awaitable[Response]]:
    """Return an endpoint that runs a function of the JSON body on a thread and returns its errors as JSON."""

    async def endpoint(request: Request) -> Response:
        values = await request.json()
        try:
            return JSONResponse(await to_thread.run_sync(answer, values))
        except RetrievalError as error:
            log.warning("the request of another worker was refused", exc_info=error)
            return JSONResponse({"kind": type(error).__name__, "message": error.message, "remedy": error.remedy}, 409)

    return endpoint


async def forwarded(dispatcher: Dispatcher, scope: Scope, receive: Receive, send: Send) -> None:
    """Answer a page request from another worker; headers of the answer name the route for the metrics."""
    facts = json.loads(dict(scope["headers"])[FORWARDED])
    state = {"client": facts["client"], "request_id": facts["request_id"]}
    CALLER.set(Caller(**facts["caller"]))

    async def send_with_route(message: Any) -> None:
        if message["type"] == "http.response.start":
            known = [(name, str(state[key]).encode()) for name, key in COUNTED.items() if key in state]
            message = {**message, "headers": [*message.get("headers", ()), *known]}
        await send(message)

    await dispatcher.answer_page({**scope, "state": state}, receive, send_with_route)
