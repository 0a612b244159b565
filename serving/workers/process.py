"""Entry point of a worker process."""

from __future__ import annotations

import signal
import socket
import sys
from pathlib import Path

from retrieval.errors import RetrievalError
from serving.launch import ServePlan

from .folder import hold_folder

REFUSED = 4  # exit status of a worker that cannot serve; the reason is printed


def run_worker(plan: ServePlan, peers: tuple[Path, int, int], channel: socket.socket) -> None:
    """Serve as one of the workers until the main process ends or tells this one to stop.

    Parameters
    ----------
    peers:
        Folder of the workers' sockets, number of this worker, and number of all.
    """
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # a terminal signals the main process too, which ends its workers
    from prometheus_client import values

    from .peers import Peers
    from .worker import serve_passed  # the main process does not need what these import

    folder, number, _ = peers
    # counts are in files by worker number, so a worker continues the counts of the one that it replaces
    name = f"worker{number}"  # made once: every count asks for it
    values.ValueClass = values.MultiProcessValue(lambda: name)  # type: ignore[no-untyped-call]
    try:
        hold_folder(folder)
        serve_passed(plan, Peers(*peers), channel)
    except (RetrievalError, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        sys.exit(REFUSED)
