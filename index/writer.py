"""Writing to a gallery: the lock, transactions, declared columns and named contents."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress

from .checks import check_actor, check_stored
from .creation import LOCK
from .database import Change
from .drawable import Drawable
from .errors import GalleryError, InvalidParameter
from .features import FeatureFormat
from .filters import check_columns
from .leftovers import remove_unused
from .lock import take_lock
from .memory import release_memory
from .reader import INDEXES, SEGMENTS, Reader
from .rebuild import INDEX_ENDINGS
from .segments import ENDINGS
from .snapshot import Snapshot
from .versions import in_file


class Writer(Reader):
    """A gallery that one process at a time may change.

    `on_change` is called inside the transaction of each change of photos. The contents that it returns are kept in the
    same transaction.
    """

    on_change: Callable[[Drawable], Mapping[str, bytes | None]] | None = None
    feature_format: FeatureFormat | None = None  # checks the features of added photos, if it is set

    def _to_rewrite(self) -> Snapshot:
        """Return the newest version without indexes, which are not needed to rewrite files."""
        with self._guard:
            return self._read(self._snapshot, searchable=False)

    @contextmanager
    def _index_in_file(self) -> Iterator[None]:
        """Search the index in its file within the context, to save memory."""
        with self._guard:
            known = self._snapshot
            if known is not None:
                self._snapshot = in_file(known, self._store.index(), self.path / INDEXES)
            changed = self._snapshot is not known
            del known
        if changed:
            release_memory()
        try:
            yield
        except BaseException:
            if changed:
                with self._guard:
                    self._snapshot = None  # the next search reads the index into memory again
            raise

    def declare(self, columns: Mapping[str, str], *, actor: str | None = None) -> None:
        """Declare metadata keys for filters, each text, number or boolean; declared keys keep their kind."""
        check_columns(columns)
        actor = self._actor(actor)
        with self._guard:
            self._start_writing()
            known = self._store.columns()
            new = {name: kind for name, kind in columns.items() if known.get(name) != kind}
            for name, kind in new.items():
                if name in known:
                    raise InvalidParameter(f"column {name}", f"stay {known[name]}, its declared kind", kind)
                check_stored(self._store, name, kind)
            if new:
                with self._store.transaction():
                    for name, kind in new.items():
                        self._store.declare(name, kind)
                    self._store.log(f"declare {', '.join(sorted(new))}", 0, actor=actor)

    def restore_log(self, changes: Sequence[Change]) -> None:
        """Start with the log of another gallery, oldest first; raise GalleryError if this gallery has changes."""
        with self._guard:
            self._start_writing()
            with self._store.transaction():
                if self._store.number("version"):
                    raise GalleryError(
                        f"{self.path} already has a change log", remedy="Restore the log into a new gallery"
                    )
                self._store.restore_changes(changes)

    def undeclare(self, names: Sequence[str], *, actor: str | None = None) -> None:
        """Remove metadata keys from filters, so that they can be declared again; unknown keys are ignored."""
        actor = self._actor(actor)
        with self._guard:
            self._start_writing()
            gone = sorted(set(names) & set(self._store.columns()))
            if gone:
                with self._store.transaction():
                    for name in gone:
                        self._store.undeclare(name)
                    self._store.log(f"undeclare {', '.join(gone)}", 0, actor=actor)

    def keep(self, contents: Mapping[str, bytes | None], action: str, *, actor: str | None = None) -> None:
        """Keep named contents, such as an operating point, as one change; None removes a content."""
        actor = self._actor(actor)
        with self._guard:
            self._start_writing()
            with self._store.transaction():
                self._store.keep(contents)
                self._store.log(action, 0, actor=actor)

    def undrawable(self) -> str:
        """Return "": draws can be made of every local gallery."""
        return ""

    @contextmanager
    def one_version(self) -> Iterator[None]:
        """Return a context in which all reads are of one version."""
        with self._guard, self._store.transaction("DEFERRED"):
            yield

    def kept_names(self) -> list[str]:
        """Return the names under which something is kept."""
        with self._guard:
            return self._store.kept_names()

    def fingerprint(self) -> tuple[int, int]:
        """Return the number of live photos and the sum of their seqs, which identify them."""
        return self._current().fingerprint

    def contents_since(self, seq: int, key: str) -> Iterable[tuple[str, str | None]]:
        """Return item id and value of a metadata key for the live photos from a seq on."""
        return self._store.contents_since(seq, key)

    def item_numbers(self, item_ids: Sequence[str]) -> dict[str, int]:
        """Return the numbers of the items that are in the gallery."""
        return self._store.item_numbers(item_ids)

    def lock(self) -> None:
        """Take the write lock until `close`, so that no other process changes the gallery meanwhile."""
        with self._guard:
            self._start_writing()

    @contextmanager
    def _change(self) -> Iterator[None]:
        """Commit the enclosed statements and the contents of `on_change` as one change."""
        before = self._snapshot
        try:
            with self._store.transaction():
                version = self._store.number("version")
                yield
                if self.on_change is not None and self._store.number("version") != version:
                    self._store.keep(self.on_change(self))
        except BaseException:
            self._snapshot = before  # drop the snapshot of a version that was not committed
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
            remove_unused(self.path / SEGMENTS, names, ENDINGS)
            remove_unused(self.path / INDEXES, set() if index is None else {index.name}, INDEX_ENDINGS)
            self._densities.forget(names)
            self._words.forget(names)
