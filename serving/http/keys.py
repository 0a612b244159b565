"""API keys: a file of hashes that is read again when it changes, so that a key is added or withdrawn without a restart.

A key is 256 random bits, so that its plain SHA-256 tells nothing of it. Scopes: `search` asks and reads, `admin`
changes the gallery and reloads, too.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import secrets
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from index.checks import check_actor
from index.shell import command
from retrieval.errors import InvalidParameter, RetrievalError
from retrieval.files import write_file

CLIENTS = 4096  # whose requests are counted; beyond, those who may ask again at once are forgotten
SEARCH, ADMIN = SCOPES = ("search", "admin")
PREFIX = "rk_"  # so that a key is known for one where it leaks


class KeyFileError(RetrievalError):
    """The file of keys is missing or damaged."""


@dataclass(frozen=True)
class Key:
    """Who may ask for what."""

    name: str
    scope: str
    sha256: str
    created: str

    def may(self, scope: str) -> bool:
        """Return whether it covers a scope."""
        return self.scope in (scope, ADMIN)


class KeyRing:
    """The keys in force."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._guard = Lock()
        self._stamp: tuple[int, int] | None = None
        self._keys: list[Key] = []
        self._current()

    def __len__(self) -> int:
        return len(self._current())

    def find(self, secret: str) -> Key | None:
        """Return the key that a secret belongs to; the time it takes says nothing of how close it came."""
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
                        f"{self.path} holds no keys",
                        remedy=command("keys", "add", self.path, "NAME", "--scope", SEARCH),
                    ) from None
                # a file that is being replaced: the keys that were read hold on
            return self._keys


class Rate:
    """Requests a second that each key may make, in bursts of twice as many."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._guard = Lock()
        self._left: dict[str, tuple[float, float]] = {}

    def wait(self, name: str) -> float:
        """Count a request; return the seconds to wait until the next one is allowed, 0 where this one is."""
        if self._rate == float("inf"):
            return 0.0
        now, most = time.monotonic(), max(1.0, 2 * self._rate)
        with self._guard:
            left, last = self._left.get(name, (most, now))
            left = min(most, left + (now - last) * self._rate)
            allowed = left >= 1
            self._left[name] = (left - allowed, now)
            if len(self._left) > CLIENTS:
                self._left = {
                    client: (left, last)
                    for client, (left, last) in self._left.items()
                    if left + (now - last) * self._rate < most
                }
        return 0.0 if allowed else (1 - left) / self._rate


def add_key(path: Path, name: str, scope: str) -> str:
    """Write a new key and return its secret, which nothing keeps; several keys may have one name, to be rotated."""
    if scope not in SCOPES:
        raise InvalidParameter("scope", f"be one of {', '.join(SCOPES)}", scope)
    check_actor(name, parameter="name")  # the log of changes names it
    secret = PREFIX + secrets.token_urlsafe(32)
    created = datetime.now(UTC).isoformat(timespec="seconds")
    _write(path, [*(read_keys(path) if path.exists() else []), Key(name, scope, _digest(secret), created)])
    return secret


def remove_keys(path: Path, name: str, *, keep_newest: bool = False) -> int:
    """Withdraw the keys of a name, or all but the newest of them; return how many."""
    keys = read_keys(path)
    mine = [key for key in keys if key.name == name]
    gone = mine[:-1] if keep_newest else mine
    if gone:
        _write(path, [key for key in keys if key not in gone])
    return len(gone)


def read_keys(path: Path) -> list[Key]:
    """Return the keys of a file; KeyFileError where it is none."""
    try:
        keys = [Key(**entry) for entry in json.loads(path.read_text(encoding="utf-8"))["keys"]]
        if any(key.scope not in SCOPES or len(key.sha256) != 64 for key in keys):
            raise ValueError("an entry has no scope or no hash")
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise KeyFileError(
            f"{path} is no file of keys: {error}", remedy=f"`{command('keys', 'add', 'FILE', 'NAME')}` makes one"
        ) from error
    return keys


def _write(path: Path, keys: Sequence[Key]) -> None:
    write_file(path, json.dumps({"keys": [asdict(key) for key in keys]}, indent=2) + "\n", mode=0o600)


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode("utf-8", "surrogatepass")).hexdigest()
