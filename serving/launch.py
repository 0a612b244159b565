"""Start of a server: open the bundle and the gallery, print the threshold, and run one or several processes."""

from __future__ import annotations

import faulthandler
import logging
import multiprocessing
import os
import resource
import signal
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from index.files import working_folder
from retrieval.errors import DEMO, RetrievalError, importing, photos_of_items
from retrieval.process import bind, no_collection, port_of, without_proxies

from .ops.logs import log_to_stderr
from .settings import ServeSettings

if TYPE_CHECKING:
    import socket

    import uvicorn
    from starlette.types import ASGIApp

    from retrieval.retriever import Retriever

    from .reloads import Places

GRADIO_HOST, GRADIO_PORT = "GRADIO_SERVER_NAME", "--gradio-port"  # Gradio's own variable, as in containers; an option
PLAN = "RETRIEVAL_SERVE_PLAN"  # variable with the plan of a server, for its worker processes
METRICS_FOLDER = "PROMETHEUS_MULTIPROC_DIR"  # variable of prometheus_client
MEMORY = Path("/dev/shm")  # noqa: S108 - for metrics: processes that map files of a disk are killed when it is full
BACKLOG = 512
HEAD_BYTES = 128 * 1024  # of a request: 64 `fields` and a filter of the most characters, percent-encoded
GRACE_S = 16  # time for running requests after SIGTERM: a body may take 15 s to arrive
EXIT_S = 20  # then the process exits even if threads hang
HANGS_S = 20  # a worker process whose threads do not run for so long is killed and started again
ORPHAN_S = 1.0  # between looks whether the main process lives
OPEN_FILES = 8192
DEMO_WAIT_S = 0.2  # between looks whether the server is ready
DEMO_GRACE_S = 1  # open pages keep a connection of the demo for as long as they are open
STARTUP_FAILURE = 3  # same exit status as uvicorn's command


@dataclass(frozen=True)
class ServePlan:
    """Bundle, gallery and settings of a server."""

    bundle: Path
    gallery: Path | str
    settings: ServeSettings
    page: bool
    examples: tuple[Path, ...] = ()
    json_log: bool = True

    def places(self) -> Places:
        """Return the paths of the bundle and the gallery."""
        from .reloads import Places

        return Places(self.bundle, self.gallery)

    def app(self, retriever: Retriever) -> ASGIApp:
        """Return the ASGI application."""
        from .app import create_app

        return create_app(
            retriever,
            settings=self.settings,
            page=self.page,
            examples=self.examples,
            places=self.places(),
            on_start=watch_shutdown,
        )

    def announce(self, retriever: Retriever) -> None:
        """Print the size of the gallery, the threshold with its error rate, and warnings."""
        click.echo(f"{photos_of_items(len(retriever.gallery), retriever.gallery.items)}; {_rule(retriever)}")
        if warning := retriever.gallery_point.warning(bundle=self.bundle, gallery=self.gallery):
            click.echo(f"Warning: {warning}.")


def serve(plan: ServePlan, host: str, port: int, demo: int | None = None) -> None:
    """Serve until signalled to stop: in this process, or in several that uvicorn supervises.

    A demo in Gradio is served on the port `demo` by a process of its own, which ends with this one.
    """
    _more_open_files()
    if plan.settings.workers > 1:
        _serve_by_workers(plan, host, port, demo)
        return
    os.environ.pop(METRICS_FOLDER, None)  # counts of other programs do not belong to this server
    with no_collection():
        from .reloads import warm_up_in_background

        retriever = plan.places().open()
        warm_up_in_background(retriever)  # while the web framework is imported
        app = plan.app(retriever)
    plan.announce(retriever)
    listeners = bind(host, port)
    if demo is not None:
        _start_demo(plan, host, listeners, demo)
    _announce_address(plan, host, listeners)
    log_to_stderr(as_json=plan.json_log)
    import uvicorn

    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # uvicorn raises the signal again after shutdown
    server = uvicorn.Server(server_config(app))
    with suppress(KeyboardInterrupt):
        server.run(sockets=listeners)
    if not server.started:
        sys.exit(STARTUP_FAILURE)


def _more_open_files() -> None:
    """Allow this process and its children OPEN_FILES open files, if they may have so many: every connection is one."""
    least, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = OPEN_FILES if most == resource.RLIM_INFINITY else min(OPEN_FILES, most)
    if least != resource.RLIM_INFINITY and least < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, most))


def _serve_by_workers(plan: ServePlan, host: str, port: int, demo: int | None) -> None:
    """Serve by processes that accept connections of the same sockets; one that ends is started again."""
    from pydantic import TypeAdapter
    from uvicorn.supervisors import Multiprocess

    with plan.places().open() as retriever:  # what cannot be served is refused here
        plan.announce(retriever)
    listeners = bind(host, port)
    os.environ[PLAN] = TypeAdapter(ServePlan).dump_json(plan).decode()
    with working_folder(MEMORY / "retrieval" if os.access(MEMORY, os.W_OK) else None) as folder:
        os.environ[METRICS_FOLDER] = str(folder)
        if demo is not None:
            _start_demo(plan, host, listeners, demo)
        _announce_address(plan, host, listeners)
        log_to_stderr(as_json=plan.json_log)
        config: uvicorn.Config = server_config("serving.launch:worker_app", workers=plan.settings.workers, factory=True)
        logging.getLogger("uvicorn.error").setLevel(logging.INFO)  # ends and starts of processes
        Multiprocess(config, sockets=listeners).run()


def worker_app() -> ASGIApp:
    """Return the application of a worker process."""
    from pydantic import TypeAdapter

    plan = TypeAdapter(ServePlan).validate_json(os.environ[PLAN])
    log_to_stderr(as_json=plan.json_log)
    threading.Thread(target=_end_with_main_process, name="main-process", daemon=True).start()
    with no_collection():
        return plan.app(plan.places().open())


def server_config(app: ASGIApp | str, **options: Any) -> uvicorn.Config:
    """Return the configuration of uvicorn for an application, or for the name of one."""
    import uvicorn

    return uvicorn.Config(
        app,
        http="h11",  # the protocol of uvicorn that limits heads, and reads no further request before it has answered
        h11_max_incomplete_event_size=HEAD_BYTES,
        ws="none",
        backlog=BACKLOG,
        log_config=None,
        access_log=False,
        log_level="warning",
        timeout_graceful_shutdown=GRACE_S,
        timeout_worker_healthcheck=HANGS_S,
        server_header=False,
        proxy_headers=False,
        **options,
    )


def watch_shutdown() -> None:
    """Let the process exit EXIT_S after SIGTERM or SIGINT, even if a thread, a connection or the event loop hangs.

    The watchdog needs no Python thread, and prints the traceback of each thread. Called by the running server.
    """
    if threading.current_thread() is not threading.main_thread():  # such as in tests: no signals arrive
        return
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    stopping: list[int] = []

    def stop(number: int, frame: FrameType | None) -> None:
        if not stopping:  # a second signal does not extend the time
            faulthandler.dump_traceback_later(EXIT_S, exit=True)
        stopping.append(number)
        handler = handlers[signal.Signals(number)]
        if callable(handler):
            handler(number, frame)

    for number in handlers:
        signal.signal(number, stop)


def _end_with_main_process() -> None:
    """Stop this process when the main process has ended without telling it."""
    parent = multiprocessing.parent_process()
    while parent is not None and parent.is_alive():
        time.sleep(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGTERM)


def demo_host() -> str:
    """Return the address that the demo listens on: this machine only, or what Gradio's own variable says."""
    return os.environ.get(GRADIO_HOST) or "127.0.0.1"


def _start_demo(plan: ServePlan, host: str, listeners: Sequence[socket.socket], port: int) -> None:
    """Start the process of the demo, which searches at the address of the server, and print the demo's address."""
    own = bind(demo_host(), port, GRADIO_PORT)
    for listener in own:
        listener.listen(BACKLOG)  # a browser that comes early waits
    anywhere = host in ("", "0.0.0.0", "::")  # noqa: S104
    address = _address("127.0.0.1" if anywhere else host, listeners)
    told = _address("127.0.0.1" if demo_host() == "0.0.0.0" else demo_host(), own)  # noqa: S104
    click.echo(f"Demo at {told}")
    arguments = (address, own, plan.examples, plan.json_log)
    multiprocessing.get_context("spawn").Process(target=serve_demo, args=arguments, name="demo", daemon=True).start()
    for listener in own:
        listener.close()  # the process has its own copies


def serve_demo(address: str, listeners: list[socket.socket], examples: Sequence[Path], json_log: bool) -> None:
    """Serve the demo over the server at an address, once that is ready; the process ends with the main one."""
    log_to_stderr(as_json=json_log)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    threading.Thread(target=_end_with_main_process, name="main-process", daemon=True).start()
    from retrieval.client import RetrievalClient

    with suppress(KeyboardInterrupt), working_folder() as folder, RetrievalClient(address) as client:
        os.environ |= {"GRADIO_TEMP_DIR": str(folder), "GRADIO_ANALYTICS_ENABLED": "False"}  # read at import
        try:
            with importing("gradio", DEMO), without_proxies():
                from .gradio_demo import application, build
            while not client.ready():
                time.sleep(DEMO_WAIT_S)
            app = application(build(client, examples))
        except RetrievalError as error:
            logging.getLogger("retrieval.serving").error("the demo could not be loaded: %s", error)
            return
        import uvicorn

        config = server_config(app)
        config.timeout_graceful_shutdown = DEMO_GRACE_S
        uvicorn.Server(config).run(sockets=listeners)


def _address(host: str, listeners: Sequence[socket.socket]) -> str:
    return f"http://{f'[{host}]' if ':' in host else host}:{port_of(list(listeners))}"


def _announce_address(plan: ServePlan, host: str, listeners: Sequence[socket.socket]) -> None:
    """Print the addresses of the endpoint and of the page."""
    address = _address(host, listeners)
    pages = f", page at {address}, catalogue at {address}/manage" if plan.page else ""
    click.echo(f"Search at {address}/v1/search{pages}")


def _rule(retriever: Retriever) -> str:
    """Return the threshold with its target and status, or that there is none."""
    point = retriever.point
    if not point.decides:
        return "no threshold yet, so answers only rank items."
    place = ", set in this gallery" if point.is_anchored else ""
    return f"threshold {point.threshold:.4f}, FPIR {point.target_fpir:g} {point.status}{place}."
