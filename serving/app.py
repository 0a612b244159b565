"""ASGI application of endpoint and page, for a server of one process or for a worker."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp

from retrieval.process import no_collection
from retrieval.retriever import Retriever
from serving.api.routes import create_api
from serving.http.guard import Guard
from serving.http.keys import KeyRing
from serving.http.limits import BodyLimit
from serving.http.rates import Rates
from serving.workers.internal import WorkerApp
from serving.workers.peers import Peers

from .config import ServeSettings
from .dispatcher import Dispatcher
from .service import Service


def create_app(
    retriever: Retriever,
    *,
    settings: ServeSettings | None = None,
    page: bool = True,
    examples: Sequence[Path] = (),
    reopen: Callable[[], Retriever] | None = None,
    peers: Peers | None = None,
) -> ASGIApp:
    """Return the ASGI application of one bundle and one gallery, with the page at / unless `page` is false.

    `reopen` opens both for a reload; the default opens the same paths. `peers` are the other workers of the server.
    """
    settings, peers = settings or ServeSettings(), peers or Peers()
    service = Service(retriever, settings, reopen=reopen, peers=peers)
    keys = None if settings.keys is None else KeyRing(settings.keys)
    rates = Rates.of(settings.rate, peers.folder)

    def load_page() -> Any:
        if not peers.is_first:
            from serving.workers.page_proxy import page_proxy

            return page_proxy(peers.socket(0))
        with no_collection():
            from serving.ui.page import load_page

            return load_page(service, examples, rates=rates)

    dispatcher = Dispatcher(service, create_api(service), load_page if page else None)
    limited = BodyLimit(
        dispatcher, max_bytes=settings.max_bytes, max_batch_bytes=settings.max_batch_bytes, seconds=settings.body_s
    )
    app = Guard(limited, telemetry=service.telemetry, keys=keys, rates=rates, local=settings.local)
    return app if peers.folder is None else WorkerApp(app, dispatcher, service)
