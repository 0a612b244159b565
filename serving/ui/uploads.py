"""Store of photos uploaded to the page: files in a private folder of the process, named by random tokens.

Tokens from clients are looked up and never used as paths. A photo can be used only by the client that uploaded it,
and only in the session that used it first. A session has one query: a photo, and up to 7 more of the same item.
"""

from __future__ import annotations

import atexit
import fcntl
import logging
import os
import secrets
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from threading import Lock

from retrieval.errors import ImageUnreadable
from retrieval.images import read_file
from serving.errors import NoSuchThing
from serving.http.limits import TRY_AGAIN, Busy

log = logging.getLogger("retrieval.serving")
KEPT_S = 900.0  # lifetime of a photo after its last use, in seconds
LEAST = 64 * 1024  # minimum size that a photo counts, which bounds the number of files
PREFIX = "retrieval-uploads-"


@dataclass
class Upload:
    """A stored photo."""

    path: Path
    client: str | None  # who uploaded it; None: an example, visible to all
    size: int  # bytes counted against the limits
    used: float
    session: str | None = None


class Uploads:
    """Stored photos of one page, with byte limits per client and in total."""

    def __init__(
        self,
        *,
        client_bytes: int,
        total_bytes: int,
        kept_s: float = KEPT_S,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._lock: int | None
        self.folder, self._lock = _locked_folder()
        atexit.register(self.close)
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

    def store(self, client: str | None, data: bytes, preview: bytes | None = None) -> str:
        """Store a photo and return its token. A photo without a client is an example and never expires.

        `preview` is the picture to show, if a browser cannot show the photo itself.
        """
        token = secrets.token_hex(16)
        path = self.folder / token
        files = {path: data, **({} if preview is None else {_preview(path): preview})}
        try:
            for place, content in files.items():
                with os.fdopen(
                    os.open(place, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600), "wb"
                ) as file:
                    file.write(content)
        except OSError as error:
            log.error("an upload could not be stored", exc_info=error)
            for place in files:
                place.unlink(missing_ok=True)
            raise Busy("there is no room for uploads", remedy=TRY_AGAIN) from error
        with self._guard:
            self._held[token] = Upload(path, client, max(sum(map(len, files.values())), LEAST), self._clock())
            if client is not None:
                self._make_room(client)
        return token

    def claim(self, token: str, client: str, session: str) -> None:
        """Assign the photo of a query to a session; one that is new to the session replaces all its photos.

        Raises
        ------
        NoSuchThing
            If no photo is stored under the token for this client and session.
        """
        with self._guard:
            upload = self._of(token, client, session)
            if upload.client is not None:
                if upload.session is None:
                    self._drop_session(client, session, keep=token)
                upload.session = session
            self._touch(client, session)

    def begin(self, token: str, client: str, session: str) -> None:
        """Delete the photos of a session if its query begins with an example; a photo of its own has done so."""
        with self._guard:
            held = self._held.get(token)
            if held is not None and held.client is None:
                self._drop_session(client, session)

    def clear(self, client: str, session: str) -> None:
        """Delete the photo of a session's query."""
        with self._guard:
            self._drop_session(client, session)

    def read(self, token: str, client: str, *, preview: bool = False) -> bytes:
        """Return the bytes of a photo or of its preview; raise NoSuchThing if none is stored for this client."""
        with self._guard:
            path = self._of(token, client).path
        path = _preview(path) if preview and _preview(path).exists() else path
        try:
            return read_file(path, follow_links=False)
        except ImageUnreadable as error:  # deleted meanwhile; the path stays hidden from the client
            raise _missing() from error

    def sweep(self) -> None:
        """Delete expired photos."""
        with self._guard:
            oldest = self._clock() - self._kept_s
            for token in [
                token for token, held in self._held.items() if held.client is not None and held.used < oldest
            ]:
                self._drop(token)

    def close(self) -> None:
        """Delete all photos and the folder."""
        with self._guard:
            self._held.clear()
            shutil.rmtree(self.folder, ignore_errors=True)
            if self._lock is not None:
                os.close(self._lock)
                self._lock = None

    def _of(self, token: str, client: str, session: str | None = None) -> Upload:
        """Return a photo of a client; with `session` one that no other session has."""
        upload = self._held.get(token)
        if upload is None or upload.client not in (None, client):
            raise _missing()
        if session is not None and upload.session not in (None, session):
            raise _missing()
        return upload

    def _of_session(self, client: str, session: str) -> list[str]:
        return [token for token, held in self._held.items() if (held.client, held.session) == (client, session)]

    def _touch(self, client: str, session: str) -> None:
        """Note the use of a session's photos; their order stays."""
        for token in self._of_session(client, session):
            held = self._held[token] = self._held.pop(token)
            held.used = self._clock()

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
            self._drop(token)

    def _drop_session(self, client: str, session: str, *, keep: str = "") -> None:
        for token in self._of_session(client, session):
            if token != keep:
                self._drop(token)

    def _drop(self, token: str) -> None:
        path = self._held.pop(token).path
        path.unlink(missing_ok=True)
        _preview(path).unlink(missing_ok=True)


def _preview(path: Path) -> Path:
    """Return the path of the preview of a photo."""
    return path.with_name(f"{path.name}.preview")


def _locked_folder() -> tuple[Path, int]:
    """Return a new private folder and its lock; remove the folders of killed processes."""
    for left in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        with suppress(OSError):  # owned by another user, or in use
            lock = _lock(left)
            shutil.rmtree(left, ignore_errors=True)
            os.close(lock)
    folder = Path(tempfile.mkdtemp(prefix=PREFIX))
    return folder, _lock(folder)


def _lock(folder: Path) -> int:
    """Lock a folder and return the descriptor; raise OSError if another process holds the lock."""
    lock = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    try:
        if os.fstat(lock).st_uid != os.geteuid():
            raise PermissionError(f"{folder} is not owned by this user")
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        os.close(lock)
        raise
    return lock


def _missing() -> NoSuchThing:
    return NoSuchThing("this photo is no longer stored", remedy="Upload it again")
