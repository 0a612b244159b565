"""The writing side of a gallery: the lock, transactions, and contents that are kept with the photos."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress

from .checks import check_actor
from .creation import LOCK
from .errors import GalleryError
from .lock import take_lock
from .reader import INDEXES, SEGMENTS, Reader
from .rebuild import remove_unused_indexes
from .segments import remove_unused_segments


class Writer(Reader):
    """A gallery that one process at a time may change.

    `on_change` is called within each change of photos; what it returns is kept with the new version.
    """

    on_change: Callable[[Reader], Mapping[str, bytes | None]] | None = None

    def keep(self, contents: Mapping[str, bytes | None], action: str, *, actor: str | None = None) -> None:
        """Keep contents under their names as one change, such as an operating point; None removes one."""
        actor = self._actor(actor)
        with self._guard:
            self._start_writing()
            with self._store.transaction():
                self._store.keep(contents)
                self._store.log(action, 0, actor=actor)

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Commit the enclosed statements as one change, with what `on_change` keeps of it."""
        before = self._snapshot
        try:
            with self._store.transaction():
                yield
                if self.on_change is not None:
                    self._store.keep(self.on_change(self))
        except BaseException:
            self._snapshot = before  # never one of a version that was not committed
            raise

    def _actor(self, actor: str | None) -> str:
        return self.actor if actor is None else check_actor(actor)

    def _start_writing(self) -> None:
        """Take the write lock until `close`, and clean up after an interrupted write."""
        if self.read_only:
            raise GalleryError(f"{self.path} was opened read-only", remedy="Open it without read_only")
        if self._lock is None:
            self._lock = take_lock(self.path / LOCK)
            self._delete_unused_files()

    def _delete_unused_files(self) -> None:
        """Delete unreferenced files; those that cannot be deleted are left to the next writer."""
        names = {segment.name for segment in self._store.segments()}
        index = self._store.index()
        with suppress(OSError):
            remove_unused_segments(self.path / SEGMENTS, names)
            remove_unused_indexes(self.path / INDEXES, None if index is None else index.name)
            self._densities.forget(names)
