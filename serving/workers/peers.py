"""Peers: requests to the other workers of a server, over Unix sockets in a private folder."""

from __future__ import annotations

import fcntl
import logging
import math
import os
import secrets
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any

from retrieval.errors import GalleryLocked, InvalidParameter, RetrievalError
from retrieval.files import write_file
from retrieval.search.result import BBox
from serving.errors import NoSuchThing
from serving.http.callers import Caller
from serving.http.limits import TRY_AGAIN, Busy
from serving.ops.drift_monitor import Samples

if TYPE_CHECKING:
    import httpx

log = logging.getLogger("retrieval.serving")
ANSWER_S = 2.0  # time limit of a question
ANSWER_STATE_S = 1.0  # health checks wait for it
OPENING_S = 120.0  # time limit for opening a bundle and a gallery
STATE_S = 1.0  # age up to which states are reused
RELOAD_S = 10.0  # time to wait for another reload, or for workers that start
POLL_S = 0.02
STATE, FEEDBACK = "/state", "/feedback"
PREPARE, SWITCH, SETTLE = "/reload/prepare", "/reload/switch", "/reload/settle"
DECIDED = "decided"  # file with the id of the newest reload that every worker was ready for
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
                with ThreadPoolExecutor(len(self.others)) as pool:
                    replies = list(
                        pool.map(lambda number: self._ask_one(number, STATE, {}, ANSWER_STATE_S), self.others)
                    )
                states = [PeerState.of(state) for state in replies if state is not None]
                self._states = time.monotonic(), states
            return states

    def feedback(self, caller: Caller, request_id: str, verdict: str, item_id: str, bbox: BBox | None = None) -> bool:
        """Ask the other workers to record a verdict on an answer; return whether one of them did."""
        about = {"request_id": request_id, "verdict": verdict, "item_id": item_id, "bbox": bbox}
        body = {"caller": asdict(caller), **about}
        return any(reply["recorded"] for _, reply in self._ask(FEEDBACK, body, checked=True))

    def switch(self, bundle_id: str) -> None:
        """Let all other workers open the bundle and the gallery, then switch to them, within `reloading`.

        Once all have opened them, the reload is decided. A worker that is not told to switch or to keep what it serves
        finds out at the end of `reloading`, even if this process ends before.

        Raises
        ------
        RetrievalError
            If a worker cannot open or search them, takes too long, or opened another bundle. All of them keep what
            they serve then.
        """
        if self.folder is None:
            return
        reload_id = secrets.token_hex(8)
        body = {"bundle_id": bundle_id, "reload_id": reload_id}
        prepared = self._ask(PREPARE, body, seconds=OPENING_S, checked=True)
        write_file(self.folder / DECIDED, reload_id)
        for number, _ in prepared:
            reply = self._ask_one(number, SWITCH, {}, ANSWER_S)
            if reply is None or not reply["switched"]:
                log.warning("worker %d did not confirm that it switched to the bundle %s", number, bundle_id)

    def decided(self) -> str:
        """Return the id of the newest reload that was decided, or an empty string."""
        file = (self.folder or Path()) / DECIDED
        return file.read_text() if self.folder is not None and file.exists() else ""

    def settle(self) -> None:
        """Let the other workers finish a reload whose worker ended before telling them to switch, within `starting`."""
        self._ask(SETTLE, {})

    @contextmanager
    def writing(self, seconds: float) -> Iterator[None]:
        """Hold the write lock of the workers; raise GalleryLocked if another worker holds it for too long."""
        taken = GalleryLocked("another request is writing to the gallery", remedy=TRY_AGAIN)
        with self._lock("writing", fcntl.LOCK_EX, seconds, taken):
            yield

    @contextmanager
    def reloading(self) -> Iterator[None]:
        """Let no other worker reload or start; raise Busy if one takes too long."""
        taken = Busy("a reload is under way, or a worker is starting", remedy=TRY_AGAIN)
        with self._lock("reloading", fcntl.LOCK_EX, RELOAD_S, taken):
            yield

    @contextmanager
    def starting(self) -> Iterator[None]:
        """Wait for the end of a reload, and let none begin meanwhile, so that this worker can be asked to take part."""
        with self._lock("reloading", fcntl.LOCK_SH, math.inf, Busy("a reload is under way")):
            yield

    @contextmanager
    def _lock(self, name: str, kind: int, seconds: float, taken: RetrievalError) -> Iterator[None]:
        """Hold a lock of the workers; a server of one process has none. Raise `taken` if it is not free in time."""
        if self.folder is None:
            yield
            return
        file = os.open(self.folder / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            end = time.monotonic() + seconds
            while not _locked(file, kind):
                if time.monotonic() > end:
                    raise taken
                time.sleep(POLL_S)
            yield
        finally:
            os.close(file)  # releases the lock

    def close(self) -> None:
        """Close the connections to the other workers."""
        for client in self._clients.values():
            client.close()

    def _ask(
        self, path: str, body: Mapping[str, Any], *, seconds: float = ANSWER_S, checked: bool = False
    ) -> list[tuple[int, dict[str, Any]]]:
        """Return the replies of the workers that respond, with their number; `checked` is that of `_ask_one`."""
        replies = [(number, self._ask_one(number, path, body, seconds, checked=checked)) for number in self.others]
        return [(number, reply) for number, reply in replies if reply is not None]

    def _ask_one(
        self, number: int, path: str, body: Mapping[str, Any], seconds: float, *, checked: bool = False
    ) -> dict[str, Any] | None:
        """Return the reply of a worker, or None if it does not answer.

        With `checked`, raise the error with which it refused, and Busy if it runs but does not answer in time.
        """
        import httpx

        if not self.socket(number).exists():  # it is starting
            return None
        try:
            response = self._client(number).post(path, json=body, timeout=seconds)
        except httpx.TimeoutException as error:
            if checked:
                raise Busy(f"worker {number} does not answer", remedy=TRY_AGAIN) from error
            return None
        except httpx.TransportError as error:  # it ended
            log.debug("worker %d does not answer: %r", number, error)
            return None
        if response.status_code == 200:
            reply: dict[str, Any] = response.json()
            return reply
        if checked:
            raise _refusal(number, response)
        return None

    def _client(self, number: int) -> httpx.Client:
        import httpx

        if number not in self._clients:
            each_anew = httpx.Limits(max_keepalive_connections=0)  # a kept connection may end as it is used
            transport = httpx.HTTPTransport(uds=str(self.socket(number)), limits=each_anew)
            self._clients[number] = httpx.Client(transport=transport, base_url="http://worker")
        return self._clients[number]


def _refusal(number: int, response: httpx.Response) -> RetrievalError:
    """Return the error with which a worker refused, or that it failed."""
    if response.status_code != 409:
        return RetrievalError(f"worker {number} failed", remedy="Look into the server's log")
    reply = response.json()
    if reply["kind"] == InvalidParameter.__name__:
        return InvalidParameter.of_message(reply["message"], remedy=reply["remedy"])
    return REFUSALS.get(reply["kind"], RetrievalError)(reply["message"], remedy=reply["remedy"])


def _locked(file: int, kind: int) -> bool:
    with suppress(BlockingIOError):
        fcntl.flock(file, kind | fcntl.LOCK_NB)
        return True
    return False
