"""Upkeep of a gallery: combine its segments and rebuild its index."""

from __future__ import annotations

import os
from collections.abc import Mapping

from index.ann.kinds import FLAT, choose_kind
from index.ann.recall import Probe

from .errors import GalleryCorrupt, GalleryError
from .features import check_size
from .reader import INDEXES, SEGMENTS
from .rebuild import Rebuilt, Rewritten, build_index, rewrite, segments_to_combine, segments_to_rewrite
from .segments import write_errors
from .versions import TAIL
from .writer import Writer

MIN_RECALL = 0.99  # an index whose decision recall has a smaller lower bound is refused
UNINDEXED = 0.2  # share of photos outside the index above which a rebuild is due


class Upkeep(Writer):
    """A gallery that one process at a time may rebuild."""

    def rebuild(
        self,
        *,
        kind: str | None = None,
        max_memory: int | None = None,
        probe: Probe | None = None,
        min_recall: float = MIN_RECALL,
        purge: bool = True,
        threads: int | None = None,
        actor: str | None = None,
    ) -> Rebuilt:
        """Combine segments, drop the vectors of removed photos and rebuild the index while searches go on.

        All new files are put into use together. If the index is refused, nothing changes.

        Parameters
        ----------
        kind:
            Index kind of `index.ann.kinds`, or "auto" to choose by size and memory. Defaults to the last choice.
        max_memory:
            Memory limit in bytes for the index and its rebuild.
        probe:
            Queries that measure the recall of an approximate index. An index below `min_recall` is refused.
        purge:
            Rewrite every segment with a removed photo, not only those with many.
        """
        actor = self._actor(actor)
        with write_errors(self.path), self._rebuilding:
            with self._guard:
                self._start_writing()
                photos, facts = self._store.number("photos"), self._store.facts()
            check_size(photos, self.features_key)
            kind, max_memory = kind or facts["kind"], _memory_limit(facts) if max_memory is None else max_memory
            choice = choose_kind(photos, self.dim, kind=kind, max_memory=max_memory)
            now = self._to_rewrite()
            chosen = segments_to_rewrite(now, purge=purge)
            rewritten = rewrite(now, chosen, self.path / SEGMENTS) if chosen else Rewritten([], None, [])
            with self._index_in_file():
                index, recall = build_index(
                    choice,
                    self.path / INDEXES,
                    self._densities,
                    now,
                    probe=probe or Probe(),
                    min_recall=min_recall,
                    threads=threads or os.cpu_count() or 1,
                )
                with self._guard:
                    with self._store.transaction():
                        self._adopt(rewritten)
                        self._store.set_index(index)
                        self._store.set_fact("kind", kind)
                        if max_memory is not None:
                            self._store.set_fact("max_memory", max_memory)
                        self._store.log(f"rebuild as {choice.kind}", photos, actor=actor)
                        self._store.increase("layout")
                    self._delete_unused_files()
        return Rebuilt(choice, recall, len(rewritten.dropped))

    def rebuild_if_due(
        self, *, kind: str | None = None, max_memory: int | None = None, probe: Probe | None = None
    ) -> Rebuilt | None:
        """Rebuild if `kind` or `max_memory` is given, another kind fits better, or the index lacks too many photos."""
        if kind is not None or max_memory is not None:
            return self.rebuild(kind=kind, max_memory=max_memory, probe=probe)
        now, facts = self._current(), self.facts()
        recommended = choose_kind(now.photos, self.dim, kind=facts["kind"], max_memory=_memory_limit(facts)).kind
        covered = now.scanned_photos <= max(TAIL, UNINDEXED * now.photos)
        same = now.kind == recommended or not now.photos
        if same and (covered or recommended == FLAT):
            return None
        return self.rebuild(probe=probe, purge=False)

    def _adopt(self, rewritten: Rewritten) -> None:
        """Replace segments by a rewritten one, within a transaction."""
        self._store.drop_segments(rewritten.replaced)
        self._store.forget_removed(rewritten.dropped)
        if rewritten.segment is not None:
            self._store.add_segment(*rewritten.segment)

    def _compact(self) -> None:
        """Combine small segments if there are many; during a rebuild this is postponed until it has finished."""
        chosen = {segment.id for segment in segments_to_combine(self._store.segments())}
        if not chosen or not self._rebuilding.acquire(blocking=False):
            return
        try:
            rewritten = rewrite(self._to_rewrite(), chosen, self.path / SEGMENTS)
            with self._store.transaction():
                self._adopt(rewritten)
                self._store.increase("layout")
            self._delete_unused_files()
        except (OSError, GalleryError) as error:
            if isinstance(error, GalleryCorrupt):
                raise
            # disk full: the addition itself is committed, and the next addition tries again
        finally:
            self._rebuilding.release()


def _memory_limit(facts: Mapping[str, str]) -> int | None:
    """Return the memory limit that the last rebuild was given."""
    return int(facts["max_memory"]) if "max_memory" in facts else None
