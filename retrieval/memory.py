"""Memory management of Python."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Lock


class _Pause:
    """A pause of the cyclic garbage collector that lasts while anything needs it, in any thread."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._needs = 0
        self._was_enabled = False

    def begin(self) -> None:
        """Disable the collector."""
        with self._guard:
            if not self._needs:
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._needs += 1

    def end(self) -> None:
        """Enable the collector if nothing else needs the pause and it was enabled before."""
        with self._guard:
            self._needs -= 1
            if not self._needs and self._was_enabled:
                gc.enable()


_PAUSE = _Pause()


@contextmanager
def no_collection() -> Iterator[None]:
    """Disable the cyclic garbage collector while many objects are created that stay, such as imported modules.

    Contexts of several threads may overlap: the collector is as it was at the end of the last one.
    """
    _PAUSE.begin()
    try:
        yield
    finally:
        _PAUSE.end()
