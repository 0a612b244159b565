"""Who asks: the key of a request, known to all that happens on its behalf."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True)
class Caller:
    """The holder of a key, or anybody where the server has no keys."""

    key: str = ""  # its name
    is_admin: bool = False

    @property
    def actor(self) -> str:
        """The name that the log of changes of a gallery keeps."""
        return self.key or "http"


# of the request that runs; threads of the pool and of the page have it, too
CALLER: ContextVar[Caller] = ContextVar("caller", default=Caller())  # noqa: B039 (it is frozen)
