"""Token-bucket limits on the request rates of clients."""

from __future__ import annotations

import math
import sqlite3
import time
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Protocol

CLIENTS = 4096  # clients tracked per limit; beyond, those with a full allowance are dropped
THUMBNAILS = 12  # per search on the page
BUSY_S = 5.0  # time to wait for the other processes


class Limit(Protocol):
    """Limit on the requests per second of each client, with bursts of twice the rate."""

    def wait(self, name: str, /) -> float:
        """Count a request; return 0 if it is allowed, else the seconds until the next one is."""


class NoLimit:
    """Limit that allows everything."""

    def wait(self, _: str) -> float:
        """Return 0."""
        return 0.0


@dataclass(frozen=True)
class Bucket:
    """Allowance of a client: the requests left at a time."""

    left: float
    last: float

    def taken(self, rate: float, now: float) -> tuple[Bucket, float]:
        """Return the bucket after a request, and the seconds to wait (0 if the request is allowed)."""
        left = min(burst(rate), self.left + (now - self.last) * rate)
        return (Bucket(left - 1, now), 0.0) if left >= 1 else (Bucket(left, now), (1 - left) / rate)


def burst(rate: float) -> float:
    """Return the maximum number of requests at once."""
    return max(1.0, 2 * rate)


class Rate:
    """Limit of one process."""

    def __init__(self, rate: float) -> None:
        self._rate = rate
        self._guard = Lock()
        self._buckets: dict[str, Bucket] = {}

    def wait(self, name: str) -> float:
        """Count a request; return 0 if it is allowed, else the seconds until the next one is."""
        now, full = time.monotonic(), burst(self._rate)
        with self._guard:
            self._buckets[name], seconds = self._buckets.get(name, Bucket(full, now)).taken(self._rate, now)
            if len(self._buckets) > CLIENTS:
                kept = self._buckets.items()
                self._buckets = {
                    client: each for client, each in kept if each.left + (now - each.last) * self._rate < full
                }
        return seconds


class SharedRate:
    """Limit of several processes on one machine, counted in a database."""

    def __init__(self, path: Path, rate: float) -> None:
        self._rate = rate
        self._guard = Lock()
        self._database = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
        self._database.execute("PRAGMA synchronous = OFF")  # nothing is worth keeping
        self._database.execute("PRAGMA journal_mode = WAL")  # a killed process leaves it whole
        self._database.execute("CREATE TABLE IF NOT EXISTS buckets (name TEXT PRIMARY KEY, left REAL, last REAL)")

    def wait(self, name: str) -> float:
        """Count a request; return 0 if it is allowed, else the seconds until the next one is."""
        with self._guard:
            self._database.execute("BEGIN IMMEDIATE")
            now, full = time.monotonic(), burst(self._rate)  # the clock of all processes
            row = self._database.execute("SELECT left, last FROM buckets WHERE name = ?", (name,)).fetchone()
            bucket, seconds = (Bucket(full, now) if row is None else Bucket(*row)).taken(self._rate, now)
            self._database.execute("REPLACE INTO buckets VALUES (?, ?, ?)", (name, bucket.left, bucket.last))
            if row is None and self._database.execute("SELECT count(*) FROM buckets").fetchone()[0] > CLIENTS:
                self._database.execute("DELETE FROM buckets WHERE left + (? - last) * ? >= ?", (now, self._rate, full))
            self._database.execute("COMMIT")
        return seconds


@dataclass(frozen=True)
class Rates:
    """Rate limits by kind of request. A client is a key, or an address on a server without keys."""

    requests: Limit  # endpoint requests; searches and verdicts of the page
    uploads: Limit  # uploads to the page, each followed by a search
    thumbnails: Limit

    @classmethod
    def of(cls, rate: float, folder: Path | None = None) -> Rates:
        """Return the limits for `rate` requests per second; processes with the same folder share them."""
        if math.isinf(rate):
            return cls(NoLimit(), NoLimit(), NoLimit())

        def limit(name: str, value: float) -> Limit:
            return Rate(value) if folder is None else SharedRate(folder / f"{name}.sqlite", value)

        return cls(limit("requests", rate), limit("uploads", rate), limit("thumbnails", THUMBNAILS * rate))
