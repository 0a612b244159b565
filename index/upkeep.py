"""Upkeep of a gallery: combine its segments, rebuild its index, and divide it into shards."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Protocol

import numpy as np

from index.ann.kinds import FLAT, choose_kind
from index.ann.recall import Probe, Recall

from .errors import GalleryCorrupt, GalleryError
from .features import check_size
from .files import IndexFile, Segment
from .reader import INDEXES, SEGMENTS
from .rebuild import (
    Rebuilt,
    Rewritten,
    build_index,
    rewrite,
    segments_to_combine,
    segments_to_rewrite,
    write_positions,
)
from .segments import Part, open_segment, write_errors, write_segment
from .sharded import shards_of
from .shards import check_shards, shard_folder, shard_of
from .snapshot import Snapshot
from .stored import Rows
from .versions import TAIL, of_segment
from .writer import Writer

MIN_RECALL = 0.99  # an index whose decision recall has a smaller lower bound is refused
UNINDEXED = 0.2  # share of photos outside the index above which a rebuild is due


class Build(Protocol):
    """A function that builds the index of a shard, whose files are in the folder `shard`."""

    def __call__(self, snapshot: Snapshot, *, shard: str) -> tuple[IndexFile | None, Recall | None]:
        """Return the index and its recall, None for each that does not exist."""


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
        shards: int | None = None,
        actor: str | None = None,
    ) -> Rebuilt:
        """Combine segments, drop the vectors of removed photos and rebuild the index while searches go on.

        Shards are rebuilt one after the other, so only one new index at a time needs memory. All new files are put into
        use together. If the index of a shard is refused, nothing changes.

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
        shards:
            Number of shards to divide the gallery into, all at once; 1 joins them. Other changes and searches through
            this object wait meanwhile.
        """
        actor = self._actor(actor)
        with write_errors(self.path), self._rebuilding:
            with self._guard:
                self._start_writing()
                photos, before, facts = self._store.number("photos"), self._store.shards(), self._store.facts()
            shards = before if shards is None else check_shards(shards)
            check_size(photos, self.features_key, shards)
            kind, max_memory = kind or facts["kind"], _memory_limit(facts) if max_memory is None else max_memory
            choice = choose_kind(photos, self.dim, kind=kind, max_memory=max_memory, shards=shards)
            build = partial(
                build_index,
                choice,
                self.path / INDEXES,
                self._densities,
                probe=probe or Probe(),
                min_recall=min_recall,
                threads=threads or os.cpu_count() or 1,
            )
            settings = {"kind": kind} | ({} if max_memory is None else {"max_memory": max_memory})
            action = f"rebuild as {choice.kind}{'' if shards == before else _division(shards)}"
            finish = partial(self._finish, settings, action, photos, actor)
            if shards != before:
                recalls, dropped = self._divide(shards, build, finish)
            else:
                recalls, dropped = self._rebuild_shards(shards, build, finish, purge=purge)
        return Rebuilt(choice, _joined([recall for recall in recalls if recall is not None]), dropped, shards)

    def _finish(self, settings: Mapping[str, object], action: str, photos: int, actor: str) -> None:
        """Record a rebuild, within its last transaction."""
        for name, value in settings.items():
            self._store.set_fact(name, value)
        self._store.sum_live()
        self._store.log(action, photos, actor=actor)

    def _rebuild_shards(
        self, shards: int, build: Build, finish: Callable[[], None], *, purge: bool
    ) -> tuple[list[Recall | None], int]:
        """Rebuild one shard after the other, and put the new files into use in one transaction.

        Returns the recall of each shard, and the number of dropped vectors.
        """
        segments: list[Rewritten] = []
        built: list[tuple[IndexFile | None, Recall | None]] = []
        with ExitStack() as searched_in_files:
            for shard in range(shards):
                now = shards_of(self._to_rewrite())[shard]
                folder, chosen = shard_folder(shard, shards), segments_to_rewrite(now, purge=purge)
                segments += [rewrite(now, chosen, self.path / SEGMENTS, shard=folder)] if chosen else []
                searched_in_files.enter_context(self._index_in_file(shard))
                built.append(build(now, shard=folder))
            with self._guard:
                with self._store.transaction():
                    for rewritten in segments:
                        self._adopt(rewritten)
                    for shard, (index, _) in enumerate(built):
                        self._store.set_index(index, shard=shard)
                    finish()
                    self._store.increase("layout")
                self._delete_unused_files()
        return [recall for _, recall in built], sum(len(rewritten.dropped) for rewritten in segments)

    def _divide(self, shards: int, build: Build, finish: Callable[[], None]) -> tuple[list[Recall | None], int]:
        """Write all photos again, divided into shards, and put the new files into use in one transaction."""
        with self._guard:  # photos must not change meanwhile
            now = self._to_rewrite()
            live, homes = np.flatnonzero(now.live), self._store.shards_of_items(shards)
            home = np.array([homes[number] for number in now.items[live].tolist()], dtype=np.int64)
            segments: list[Segment] = []
            built: list[tuple[IndexFile | None, Recall | None]] = []
            for shard in range(shards):
                folder = shard_folder(shard, shards)
                segment = write_positions(now, live[home == shard], self.path / SEGMENTS, shard=folder)
                if segment is not None:
                    features = bool(self.features_key)
                    opened = open_segment(self.path / SEGMENTS, segment, dim=self.dim, features=features)
                    segments.append(segment)
                    built.append(build(of_segment(opened, self.dim), shard=folder))
            dropped = now.seqs[~now.live].tolist()
            with self._store.transaction():
                self._adopt(Rewritten([segment.id for segment in now.segments], None, dropped))
                self._store.drop_indexes()
                self._store.set_shards(shards)
                for segment, (index, _) in zip(segments, built, strict=True):
                    self._store.add_segment(segment.name, segment.rows, segment.first, segment.sha256)
                    self._store.set_index(index, shard=segment.shard)
                finish()
                self._store.increase("layout")
            self._delete_unused_files()
        return [recall for _, recall in built], len(dropped)

    def rebuild_if_due(
        self, *, kind: str | None = None, max_memory: int | None = None, probe: Probe | None = None
    ) -> Rebuilt | None:
        """Rebuild if `kind` or `max_memory` is given, another kind fits better, or the index lacks too many photos."""
        if kind is not None or max_memory is not None:
            return self.rebuild(kind=kind, max_memory=max_memory, probe=probe)
        now, facts = self._current(), self.facts()
        shards = shards_of(now)
        recommended = choose_kind(
            now.photos, self.dim, kind=facts["kind"], max_memory=_memory_limit(facts), shards=len(shards)
        ).kind
        covered = now.scanned_photos <= max(TAIL, UNINDEXED * now.photos)
        same = all(shard.kind == recommended for shard in shards if shard.photos)
        if same and (covered or recommended == FLAT):
            return None
        return self.rebuild(probe=probe, purge=False)

    def _written(self, part: Part, item_ids: Sequence[str]) -> Iterator[tuple[str, int, int, str]]:
        """Write a segment of one part for each shard of its items; yield the name, rows, first seq and sha256."""
        shards, features = self._store.shards(), part.features is not None
        homes = np.array([shard_of(item_id, shards) for item_id in item_ids])
        for shard in np.unique(homes).tolist():
            some = _chosen(part, np.flatnonzero(homes == shard)) if shards > 1 else part
            rows, folder = len(some.seqs), shard_folder(shard, shards)
            name, digest = write_segment(
                self.path / SEGMENTS, [some], rows=rows, dim=self.dim, features=features, shard=folder
            )
            yield name, rows, int(some.seqs[0]), digest

    def _adopt(self, rewritten: Rewritten) -> None:
        """Replace segments by a rewritten one, within a transaction."""
        self._store.drop_segments(rewritten.replaced)
        self._store.forget_removed(rewritten.dropped)
        if rewritten.segment is not None:
            self._store.add_segment(*rewritten.segment)

    def _compact(self) -> None:
        """Combine small segments if there are many; during a rebuild this is postponed until it has finished."""
        by_shard = _segments_to_combine(self._store.segments())
        if not by_shard or not self._rebuilding.acquire(blocking=False):
            return
        try:
            now = shards_of(self._to_rewrite())
            rewritten = [
                rewrite(now[shard], chosen, self.path / SEGMENTS, shard=shard_folder(shard, len(now)))
                for shard, chosen in by_shard.items()
            ]
            with self._store.transaction():
                for each in rewritten:
                    self._adopt(each)
                self._store.increase("layout")
            self._delete_unused_files()
        except (OSError, GalleryError) as error:
            if isinstance(error, GalleryCorrupt):
                raise
            # disk full: the addition itself is committed, and the next addition tries again
        finally:
            self._rebuilding.release()


def _segments_to_combine(segments: Sequence[Segment]) -> dict[int, set[int]]:
    """Return the ids of the segments to combine, by shard."""
    chosen = {}
    for shard in {segment.shard for segment in segments}:
        combined = segments_to_combine([segment for segment in segments if segment.shard == shard])
        if combined:
            chosen[shard] = {segment.id for segment in combined}
    return chosen


def _chosen(part: Part, rows: Rows) -> Part:
    """Return some rows of a part."""
    places = rows.tolist()
    texts = [part.texts[place] for place in places]
    features = None if part.features is None else [part.features[place] for place in places]
    return Part(part.vectors[rows], part.seqs[rows], part.items[rows], texts, features)


def _joined(recalls: Sequence[Recall]) -> Recall | None:
    """Return the recall of all shards together, None if none was measured."""
    if not recalls:
        return None
    return Recall(sum(recall.found for recall in recalls), sum(recall.expected for recall in recalls))


def _division(shards: int) -> str:
    return f" in {shards} shards" if shards > 1 else " in one part"


def _memory_limit(facts: Mapping[str, str]) -> int | None:
    """Return the memory limit that the last rebuild was given."""
    return int(facts["max_memory"]) if "max_memory" in facts else None
