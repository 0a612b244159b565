"""The client of a Milvus server: where it is and who asks, a deadline for each request, and one error for failures."""

from __future__ import annotations

import logging
import math
import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import TYPE_CHECKING, Any, Self

from index.errors import GalleryUnavailable, InvalidParameter, importing

if TYPE_CHECKING:
    from pymilvus import MilvusClient

SCHEME = "milvus+"  # scheme of an address: milvus+http://host:19530/name, or milvus+/folder/lite.db/name
EXAMPLES = "milvus+http://host:19530/name or milvus+/folder/lite.db/name"
TOKEN, TOKEN_FILE, DATABASE, CA_FILE, TIMEOUT, AGE = (  # variables of the environment
    *("MILVUS_TOKEN", "MILVUS_TOKEN_FILE", "MILVUS_DATABASE", "MILVUS_CA_FILE"),
    *("MILVUS_TIMEOUT_S", "MILVUS_AGE_S"),
)
STRONG: Mapping[str, Any] = {"consistency_level": "Strong"}  # a read that sees every earlier write, and waits for it
REMEDY = f"Check that the server runs, and the address, {TOKEN} and {TIMEOUT}"


@dataclass(frozen=True)
class Access:
    """How to reach a server. The environment has the values (`of_environment`)."""

    token: str = ""  # an API key, or user:password
    database: str = ""
    ca_file: str = ""  # certificate of the authority that signed the server's, for an address with https
    timeout_s: float = 10.0  # deadline of a request
    age_s: float = 0.5  # for which the facts about a gallery are not read again

    @classmethod
    def of_environment(cls) -> Self:
        """Return the access that the environment describes."""
        token, file = os.environ.get(TOKEN, ""), os.environ.get(TOKEN_FILE, "")
        if file and not token:
            try:
                token = Path(file).read_text(encoding="utf-8").strip()
            except (OSError, UnicodeError) as error:
                raise InvalidParameter(TOKEN_FILE, f"name a file with the token ({error})", file) from error
        seconds = {name: _seconds(name, default) for name, default in ((TIMEOUT, cls.timeout_s), (AGE, cls.age_s))}
        return cls(
            token,
            os.environ.get(DATABASE, ""),
            os.environ.get(CA_FILE, ""),
            max(seconds[TIMEOUT], 0.1),
            seconds[AGE],
        )


def _seconds(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        seconds = float(text or default)
    except ValueError:
        seconds = math.nan
    if not 0 <= seconds < math.inf:
        raise InvalidParameter(name, "be a number of seconds", text)
    return seconds


def place_of(address: str) -> tuple[str, str]:
    """Return the server and the name of the collection that an address names."""
    server, _, name = address.removeprefix(SCHEME).rpartition("/")
    if not address.startswith(SCHEME) or not server or not name.isidentifier():
        raise InvalidParameter("gallery", f"be an address such as {EXAMPLES}", address)
    return server, name


def connect(server: str, access: Access, *, extra: str = "milvus") -> MilvusClient:
    """Return a client of a server, given as in an address."""
    with importing("pymilvus", extra):
        from pymilvus import MilvusClient
    logging.getLogger("pymilvus").setLevel(logging.CRITICAL)  # it logs each failure that it raises, with a traceback
    tls = {"server_pem_path": access.ca_file} if access.ca_file else {}
    return MilvusClient(server, token=access.token, db_name=access.database, timeout=access.timeout_s, **tls)


class Client:
    """A client with a deadline for each request. Threads may share it."""

    def __init__(self, address: str, access: Access) -> None:
        """Connect to the server of an address."""
        server, self.name = place_of(address)
        self.address, self.access = address, access
        self.requests = 0
        self._guard = Lock()
        with importing("pymilvus", "milvus"):
            import grpc  # type: ignore[import-untyped]
            from pymilvus import MilvusException
        self._failures = (MilvusException, grpc.RpcError, OSError)
        with self._errors():
            self._client = connect(server, access)

    @contextmanager
    def _errors(self) -> Iterator[None]:
        try:
            yield
        except self._failures as error:
            words = " ".join(str(getattr(error, "message", "") or error).split())[:200]
            raise GalleryUnavailable(f"{self.address} does not answer: {words}", remedy=REMEDY) from error

    def ask(self, verb: str, *args: Any, timeout_s: float | None = None, **more: Any) -> Any:
        """Make one request, named as the method of MilvusClient; raise GalleryUnavailable if it fails."""
        with self._guard:
            self.requests += 1
        with self._errors():
            return getattr(self._client, verb)(*args, timeout=timeout_s or self.access.timeout_s, **more)

    def written(self, *collections: str) -> int:
        """Return the server's time of the newest write of this process to collections, 0 if it is unknown."""
        from pymilvus.client.ts_utils import get_collection_ts

        place = self._client._config.address, self.access.database or "default"
        return max(int(get_collection_ts(name, *place) or 0) for name in collections)

    def close(self) -> None:
        """Close the connection."""
        self._client.close()
