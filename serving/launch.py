"""Start of a server: open the bundle and the gallery, print the threshold, and run."""

from __future__ import annotations

import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import click

from retrieval.process import bind, no_collection, port_of

from .config import ServeSettings
from .warm_up import warm_up_in_background

if TYPE_CHECKING:
    import uvicorn
    from starlette.types import ASGIApp

    from retrieval.retriever import Retriever

BACKLOG = 512
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # variable of prometheus_client
NOISY = ("httpx", "httpcore", "gradio", "asyncio", "faiss")  # loggers


@dataclass(frozen=True)
class ServePlan:
    """Bundle, gallery and settings of a server."""

    bundle: Path
    gallery: Path | str
    settings: ServeSettings
    page: bool
    examples: tuple[Path, ...]

    def open(self) -> Retriever:
        """Open the bundle and the gallery; symbolic links are resolved each time."""
        from retrieval.retriever import Retriever

        return Retriever.open(self.bundle, self.gallery, detector=self.settings.detector)

    def announce(self, retriever: Retriever) -> None:
        """Print the size of the gallery, the threshold with its error rate, and warnings."""
        from retrieval.threshold.error_rates import unmeasured_warning

        point, rates = retriever.point, retriever.rates()
        click.echo(f"{len(retriever.gallery)} photos of {retriever.gallery.items} items; {_rule(retriever)}")
        if rates is not None and rates.broken(point):
            click.echo(f"Warning: {rates.warning(point, self.bundle, self.gallery)}.")
        if retriever.unmeasured:
            click.echo(f"Warning: {unmeasured_warning(self.gallery, self.bundle)}.")
        if outgrown := retriever.outgrown():
            click.echo(f"Warning: {outgrown}.")

    def announce_address(self, host: str, listeners: Sequence[socket.socket]) -> None:
        """Print the addresses of the endpoint and of the page."""
        address = f"http://{f'[{host}]' if ':' in host else host}:{port_of(list(listeners))}"
        click.echo(f"Search at {address}/v1/search" + (f", page at {address}" if self.page else ""))


def serve_here(plan: ServePlan, host: str, port: int) -> None:
    """Serve in this process until it is signalled to stop."""
    os.environ.pop(METRICS_FOLDER, None)  # counts of other programs do not belong to this server
    with no_collection():
        retriever = plan.open()
        warm_up_in_background(retriever)  # while the web framework is imported
        from serving.http.server import run

        from .app import create_app

        app = create_app(retriever, settings=plan.settings, page=plan.page, examples=plan.examples, reopen=plan.open)
    plan.announce(retriever)
    listeners = bind(host, port)
    plan.announce_address(host, listeners)
    log_to_stderr()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again after shutdown
    run(server_config(app), listeners)


def server_config(app: ASGIApp) -> uvicorn.Config:
    """Return the configuration of uvicorn for an application."""
    import uvicorn

    from serving.http.head_limits import HeadLimitProtocol
    from serving.http.server import GRACE_S

    return uvicorn.Config(
        app,
        http=HeadLimitProtocol,
        ws="none",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_S,
        server_header=False,
        proxy_headers=False,
    )


def log_to_stderr() -> None:
    """Write log records to stderr as JSON lines."""
    from serving.ops.logs import BatchedHandler

    logging.basicConfig(level=logging.INFO, handlers=[BatchedHandler()], force=True)
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)


def _rule(retriever: Retriever) -> str:
    """Return the threshold with its target and status, or that there is none."""
    point = retriever.point
    if not point.decides:
        return "no threshold yet, so answers only rank items."
    place = "" if point is retriever.bundle.operating_point else ", set in this gallery"
    return f"threshold {point.threshold:.4f}, FPIR {point.target_fpir:g} {point.status}{place}."
