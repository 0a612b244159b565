"""Photos uploaded to the page, kept in memory under random tokens.

Tokens from clients are looked up and never used as paths. A photo can be used only by the client that uploaded it, and
only in the session that used it first; a new photo of a session replaces the earlier one.
"""

from __future__ import annotations

import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock

from serving.errors import TRY_AGAIN, Busy, NotFound

KEPT_S = 900.0  # lifetime of a photo after its last use, in seconds
LEAST = 64 * 1024  # minimum size that a photo counts, which bounds the number of photos


@dataclass
class Upload:
    """A stored photo."""

    data: bytes
    client: str | None  # who uploaded it; None: an example, visible to all
    used: float
    session: str | None = None

    @property
    def size(self) -> int:
        """Bytes counted against the limits."""
        return max(len(self.data), LEAST)


class Uploads:
    """Stored photos of one page, with byte limits per client and in total. Thread-safe."""

    def __init__(
        self,
        *,
        client_bytes: int,
        total_bytes: int,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._client_bytes, self._total_bytes, self._kept_s, self._clock = client_bytes, total_bytes, kept_s, clock
        self._held: dict[str, Upload] = {}  # least recently used first
        self._arriving: Counter[str] = Counter()
        self._guard = Lock()

    def __len__(self) -> int:
        return len(self._held)

    @contextmanager
    def arriving(self, client: str, size: int) -> Iterator[None]:
        """Reserve room for an arriving upload; drop the client's oldest photos first, then those of others.

        Raises
        ------
        Busy
            If the uploads that are arriving already take all room.
        """
        size = max(size, LEAST)
        with self._guard:
            if self._arriving[client] + size > self._client_bytes or self._arriving.total() + size > self._total_bytes:
                raise Busy("too many uploads arrive at once", remedy=TRY_AGAIN)
            self._arriving[client] += size
            self._make_room(client)
        try:
            yield
        finally:
            with self._guard:
                self._arriving[client] -= size
                self._arriving += Counter()  # drops zero counts

    def store(self, client: str | None, data: bytes) -> str:
        """Store a photo and return its token. A photo without a client is an example and never expires."""
        token = secrets.token_hex(16)
        with self._guard:
            self._held[token] = Upload(data, client, self._clock())
            if client is not None:
                self._make_room(client)
        return token

    def claim(self, token: str, client: str, session: str) -> None:
        """Assign a photo to a session, whose earlier photo is deleted.

        Raises
        ------
        NotFound
            If no photo is stored under the token for this client and session.
        """
        with self._guard:
            upload = self._of(token, client)
            if upload.session not in (None, session):
                raise _missing()
            if upload.client is not None:
                if upload.session is None:
                    self._drop_session(client, session)
                upload.session, upload.used = session, self._clock()
                self._held[token] = self._held.pop(token)

    def clear(self, client: str, session: str) -> None:
        """Delete the photo of a session."""
        with self._guard:
            self._drop_session(client, session)

    def read(self, token: str, client: str) -> bytes:
        """Return the bytes of a photo; raise NotFound if none is stored for this client."""
        with self._guard:
            return self._of(token, client).data

    def sweep(self) -> None:
        """Delete expired photos."""
        with self._guard:
            oldest = self._clock() - self._kept_s
            self._held = {
                token: held for token, held in self._held.items() if held.client is None or held.used >= oldest
            }

    def _of(self, token: str, client: str) -> Upload:
        upload = self._held.get(token)
        if upload is None or upload.client not in (None, client):
            raise _missing()
        return upload

    def _make_room(self, client: str) -> None:
        """Drop the client's oldest photos beyond its limit, then the oldest of all beyond the total limit."""
        own = {token: held.size for token, held in self._held.items() if held.client == client}
        self._drop_oldest(own, self._client_bytes - self._arriving[client])
        everything = {token: held.size for token, held in self._held.items() if held.client is not None}
        self._drop_oldest(everything, self._total_bytes - self._arriving.total())

    def _drop_oldest(self, sizes: dict[str, int], limit: int) -> None:
        taken = sum(sizes.values())
        for token, size in sizes.items():
            if taken <= limit:
                return
            taken -= size
            del self._held[token]

    def _drop_session(self, client: str, session: str) -> None:
        own = [token for token, held in self._held.items() if (held.client, held.session) == (client, session)]
        for token in own:
            del self._held[token]


def _missing() -> NotFound:
    return NotFound("this photo is no longer stored", remedy="Upload it again")
