"""Peers: requests to the other workers of a server, over Unix sockets in a private folder."""

from __future__ import annotations

import fcntl
import logging
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from retrieval.errors import GalleryLocked, RetrievalError
from serving.errors import NoSuchThing
from serving.http.callers import Caller
from serving.http.limits import TRY_AGAIN, Busy
from serving.ops.drift_monitor import Samples

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("retrieval.serving")
ANSWER_S = 2.0  # time limit of a question
OPENING_S = 120.0  # time limit for opening a bundle and a gallery
STATE_S = 1.0  # age up to which states are reused
POLL_S = 0.02
STATE, FEEDBACK, PREPARE, SWITCH, KEEP = "/state", "/feedback", "/reload/prepare", "/reload/switch", "/reload/keep"
REFUSALS = {kind.__name__: kind for kind in (Busy, NoSuchThing)}  # other errors are logged by the worker
FORWARDED = b"x-retrieval-forwarded"  # header of a request to the page that another worker forwards
COUNTED = {b"x-retrieval-route": "route", b"x-retrieval-status": "status"}  # headers of its answer, for the metrics


@dataclass(frozen=True)
class PeerState:
    """State of a worker, as it reports it to the others."""

    problem: str  # reason why it does not serve searches, or empty
    waiting: int  # searches waiting for a thread
    overdue: int  # threads whose search has exceeded the deadline
    samples: Samples  # of the newest searches
    bundle: str  # path
    bundle_id: str
    gallery: str  # path or address

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> PeerState:
        """Create a PeerState from plain JSON values."""
        return cls(**{**values, "samples": Samples(**values["samples"])})


class Peers:
    """The other workers of a server. A server of one process has none.

    Parameters
    ----------
    folder:
        Private folder of the server, with a socket for each worker.
    number, workers:
        Number of this worker, from 0, and number of all.
    """

    def __init__(self, folder: Path | None = None, number: int = 0, workers: int = 1) -> None:
        self.folder, self.number, self.workers = folder, number, workers
        self._clients: dict[int, httpx.Client] = {}
        self._states: tuple[float, list[PeerState]] = (-1.0, [])
        self._guard = Lock()

    @property
    def is_first(self) -> bool:
        """Return whether this worker serves the page and checks the gallery's files."""
        return self.number == 0

    @property
    def others(self) -> list[int]:
        """Return the numbers of the other workers."""
        return [number for number in range(self.workers) if number != self.number]

    def socket(self, number: int) -> Path:
        """Return the path of a worker's Unix socket."""
        return (self.folder or Path()) / f"worker-{number}"

    def states(self) -> list[PeerState]:
        """Return the states of the other workers that respond, at most a second old."""
        if not self.others:
            return []
        with self._guard:
            asked, states = self._states
            if asked < 0 or time.monotonic() - asked > STATE_S:
                states = [PeerState.of(state) for _, state in self._ask(STATE, {})]
                self._states = time.monotonic(), states
            return states

    def feedback(self, caller: Caller, request_id: str, verdict: str, item_id: str) -> bool:
        """Ask the other workers to record a verdict on an answer; return whether one of them did."""
        body = {"caller": asdict(caller), "request_id": request_id, "verdict": verdict, "item_id": item_id}
        return any(reply["recorded"] for _, reply in self._ask(FEEDBACK, body, checked=True))

    def switch(self, bundle_id: str) -> None:
        """Let all other workers open the bundle and the gallery, then switch to them.

        Raises
        ------
        RetrievalError
            If a worker cannot open or search them, or opened another bundle. All workers then keep what they serve.
        """
        try:
            prepared = self._ask(PREPARE, {"bundle_id": bundle_id}, seconds=OPENING_S, checked=True)
        except RetrievalError:
            self._ask(KEEP, {})
            raise
        for number in sorted({number for number, _ in prepared}):
            self._ask(SWITCH, {}, only=[number])

    @contextmanager
    def writing(self, seconds: float) -> Iterator[None]:
        """Hold the write lock of the workers; raise GalleryLocked if another worker holds it for too long."""
        if self.folder is None:
            yield
            return
        file = os.open(self.folder / "writing", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = time.monotonic() + seconds
            while not _locked(file):
                if time.monotonic() > end:
                    raise GalleryLocked("another request is writing to the gallery", remedy=TRY_AGAIN)
                time.sleep(POLL_S)
            yield
        finally:
            os.close(file)  # releases the lock

    def close(self) -> None:
        """Close the connections to the other workers."""
        for client in self._clients.values():
            client.close()

    def _ask(
        self,
        path: str,
        body: Mapping[str, Any],
        *,
        seconds: float = ANSWER_S,
        only: Sequence[int] | None = None,
        checked: bool = False,
    ) -> list[tuple[int, dict[str, Any]]]:
        """Return the replies of the workers that respond, with their number.

        With `checked`, raise the error with which a worker refused.
        """
        import httpx

        replies = []
        for number in self.others if only is None else only:
            if not self.socket(number).exists():  # it is starting
                continue
            try:
                response = self._client(number).post(path, json=body, timeout=seconds)
            except httpx.TransportError as error:  # it ended, or hangs
                log.debug("worker %d does not answer: %r", number, error)
                continue
            reply: dict[str, Any] = response.json()
            if response.status_code == 200:
                replies.append((number, reply))
            elif checked:
                raise REFUSALS.get(reply["kind"], RetrievalError)(reply["message"], remedy=reply["remedy"])
        return replies

    def _client(self, number: int) -> httpx.Client:
        import httpx

        if number not in self._clients:
            transport = httpx.HTTPTransport(uds=str(self.socket(number)))
            self._clients[number] = httpx.Client(transport=transport, base_url="http://worker")
        return self._clients[number]


def _locked(file: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return True
    return False
