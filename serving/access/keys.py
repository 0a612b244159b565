"""API keys, and the callers who hold them.

The key file holds hashes and is read again when it changes: keys are added and removed without a restart. A key is 256
random bits, so an unsalted SHA-256 hash is enough. The scope `search` allows searching and reading; `admin` also
allows gallery changes and reloads.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import json
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from index.checks import check_actor
from retrieval.errors import InvalidParameter, command
from retrieval.files import write_file
from serving.errors import KeyFileError

SEARCH, ADMIN = SCOPES = ("search", "admin")
PREFIX = "rk_"  # makes leaked keys recognizable


@dataclass(frozen=True)
class Key:
    """An API key, stored as a hash, with its scope."""

    name: str
    scope: str
    sha256: str
    created: str

    def may(self, scope: str) -> bool:
        """Return whether the key covers a scope; `admin` covers all."""
        return self.scope in (scope, ADMIN)


@dataclass(frozen=True)
class Caller:
    """Holder of an API key, or an anonymous client of a server without keys."""

    key: str = ""  # name of the key
    is_admin: bool = False

    @property
    def actor(self) -> str:
        """Name for the gallery's change log."""
        return self.key or "http"


# of the current request, in the threads of the pool and the page too
CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 (it is frozen)


class KeyRing:
    """The current keys of a key file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = Lock()
        self._stamp: tuple[int, int] | None = None
        self._keys: list[Key] = []
        self._current()

    def __len__(self) -> int:
        return len(self._current())

    def find(self, secret: str) -> Key | None:
        """Return the key of a secret, or None. Hashes are compared in constant time."""
        digest, found = _digest(secret), None
        for key in self._current():
            if hmac.compare_digest(digest, key.sha256):
                found = key
        return found

    def _current(self) -> list[Key]:
        with self._guard:
            try:
                status = self.path.stat()
                stamp = (status.st_mtime_ns, status.st_ino)
                if stamp != self._stamp:
                    self._keys, self._stamp = read_keys(self.path), stamp
            except (OSError, KeyFileError):
                if self._stamp is None:
                    raise KeyFileError(
                        f"{self.path} contains no keys",
                        remedy=command("keys", "add", self.path, "NAME", "--scope", SEARCH),
                    ) from None
                # the file is being replaced: keep the keys read before
            return self._keys


def add_key(path: Path, name: str, scope: str) -> str:
    """Add a key and return its secret, which is not stored. Keys may share a name for rotation."""
    if scope not in SCOPES:
        raise InvalidParameter("scope", f"be one of {', '.join(SCOPES)}", scope)
    check_actor(name, parameter="name")  # the name goes into the change log
    secret = PREFIX + secrets.token_urlsafe(32)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    with _alone(path):
        _write(path, [*(read_keys(path) if path.exists() else []), Key(name, scope, _digest(secret), created)])
    return secret


def remove_keys(path: Path, name: str, *, keep_newest: bool = False) -> int:
    """Remove the keys of a name, or all but the newest; return the number removed."""
    with _alone(path):
        keys = read_keys(path)
        same_name = [key for key in keys if key.name == name]
        removed = same_name[:-1] if keep_newest else same_name
        if removed:
            _write(path, [key for key in keys if key not in removed])
    return len(removed)


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Wait until no other process changes the keys of this folder."""
    folder = os.open(path.absolute().parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def read_keys(path: Path) -> list[Key]:
    """Return the keys of a file; raise KeyFileError if it is missing or damaged."""
    try:
        keys = [Key(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))["keys"]]
        if any(key.scope not in SCOPES or len(key.sha256) != 64 for key in keys):
            raise ValueError("an entry has no valid scope or hash")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeyFileError(
            f"{path} is not a valid key file: {error}",
            remedy=f"Create one with `{command('keys', 'add', 'FILE', 'NAME')}`",
        ) from error
    return keys


def _write(path: Path, keys: Sequence[Key]) -> None:
    write_file(path, json.dumps({"keys": [asdict(key) for key in keys]}, indent=2) + "\n", mode=0o600)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
