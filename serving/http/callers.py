"""The caller of the current request, as a context variable."""

from __future__ import annotations

from contextvars import ContextVar
from dataclasses import dataclass


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
