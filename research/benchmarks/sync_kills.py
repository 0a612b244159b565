"""Synchronization killed at random moments and run again: the gallery is that of a run without a kill.

    python -m research.benchmarks.sync_kills [--kills 100] [--photos 600] [--folder runs/sync-kills]

The catalogue has photos with every kind of change (`sync_catalogue`). In each round, a process synchronizes a copy of
the gallery with the changed table and is killed with SIGKILL at a random moment; another one runs the same command and
may be killed too, until one ends. The gallery is then compared with that of a run without a kill: photos, items,
metadata, vectors, thumbnails, threshold, draws and answers. Each run names another author, and writes down the photos
that it embeds.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import re
import shutil
import signal
import sys
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from index.contents import POINT
from index.gallery import Gallery
from index.kept_draws import OWN, KeptDraws
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import ImageRefused
from retrieval.indexing import pipeline
from retrieval.indexing.pipeline import index_catalogue
from retrieval.indexing.plan import SyncSettings
from retrieval.indexing.worker import BOX, CONTENT, Batch, embed_batch
from retrieval.retriever import Retriever

from .sync_catalogue import Catalogue, draw
from .tables import Recorder, parser_of

BATCH, THREADS = 16, 2
SEARCHES = 50  # answers that are compared
STARTED_S = 120.0  # time limit for the start of a process
LATEST = 1.1  # latest moment of a kill, as a share of the time of a run
NOTHING, PART, EVERYTHING = "before the first change", "between the changes", "after the last change"
COMPARED = {  # fields of a state, in words
    "rows": "photos, items, metadata, vectors or thumbnails",
    "columns": "columns for filters",
    "point": "threshold",
    "draws": "draws",
    "answers": "answers",
    "changes": "numbers of changes in the log",
}
PRELOADED = [pipeline.__name__, Retriever.__module__, "onnxruntime", "faiss"]  # imported once, for all runs
REPLACED = re.compile(r"add, (\d+) of them replaced")


def synchronize(bundle: Path, table: Path, gallery: Path, log: Path, author: str) -> None:
    """Synchronize a gallery with a table as an author, and append the photos that are embedded to a file."""

    def embed(
        embedder: Embedder,
        photos: Sequence[Photo],
        known: Mapping[str, str],
        read: Iterable[bytes | ImageRefused] | None = None,
    ) -> Batch:
        batch = embed_batch(embedder, photos, known, read)
        with log.open("a") as file:
            file.write("".join(f"{author}\t{photo.photo_id}\n" for photo in batch.photos))
        return batch

    os.environ["LOGNAME"] = author  # `getpass.getuser` reads it
    pipeline.embed_batch = embed  # type: ignore[attr-defined]
    pipeline.WRITE_S = 0.0  # write each batch at once
    opened, photos, sync = Bundle.open(bundle), read_catalogue(table), SyncSettings(prune=True)
    log.open("a").close()  # its existence shows that the work has begun
    index_catalogue(opened, photos, gallery, threads=THREADS, batch_size=BATCH, progress=False, sync=sync)


@dataclass(frozen=True)
class State:
    """Everything that a gallery holds and answers."""

    rows: dict[str, tuple[Any, ...]]  # item, metadata, vector and thumbnail by photo
    columns: dict[str, str]
    point: bytes | None
    draws: dict[str, tuple[Any, ...]]
    answers: list[Any]
    changes: Counter[str]  # photos in the change log since the first table, by action

    @classmethod
    def of(cls, bundle: Path, place: Path, base: int) -> State:
        """Read a gallery and search it; `base` is its version before the synchronization."""
        with Retriever.open(bundle, place) as retriever:
            images = [draw(number, noise=2) for number in range(0, SEARCHES * 7, 7)]
            results = [retriever.search(image) for image in images]
            answers = [
                (r.decision, r.threshold, [(m.photo_id, m.distance, m.p_value) for m in r.matches]) for r in results
            ]
        with Gallery.open(place, read_only=True) as gallery:
            ids, _, vectors = gallery.contents()
            vector = dict(zip(ids, vectors, strict=True))
            rows = {
                name: (item, facts, vector[name].tobytes(), gallery.thumbnail(name))
                for name, item, facts in gallery.photos()
            }
            kept = KeptDraws.read(gallery)
            draws = {} if kept is None else _draws(kept)
            return cls(rows, gallery.columns(), gallery.kept(POINT), draws, answers, logged(gallery, base))


def _draws(kept: KeptDraws) -> dict[str, tuple[Any, ...]]:
    """Return distances and nearest items of the own draws by photo."""
    own = kept.sources[OWN]
    facts = zip(own.distances.tolist(), own.nearest_items.tolist(), own.own.tolist(), strict=True)
    return dict(zip(own.ids.tolist(), facts, strict=True))


def logged(gallery: Gallery, base: int) -> Counter[str]:
    """Return the number of photos in the change log since a version, by action."""
    counts: Counter[str] = Counter()
    for change in gallery.changes(-1):
        if change.version <= base:
            continue
        replaced = REPLACED.fullmatch(change.action)
        if replaced is not None:
            counts["replace"] += int(replaced[1])
            counts["add"] += change.photos - int(replaced[1])
        elif change.action in ("add", "update", "remove"):
            counts[change.action] += change.photos
    return counts


@dataclass
class Found:
    """Counts over all rounds."""

    rounds: int = 0
    kills: int = 0
    stages: Counter[str] = field(default_factory=Counter)  # kills by what had been written
    problems: int = 0  # found by `verify` after a kill
    different: Counter[str] = field(default_factory=Counter)  # galleries at the end of a round, by what differs
    again: int = 0  # photos embedded by a run although the gallery had them
    in_vain: list[int] = field(default_factory=list)  # photos embedded and not yet written, by kill
    unnamed: int = 0  # changes in the log without the author of the run that made them

    def rows(self) -> list[tuple[str, str]]:
        """Return the rows of the table."""
        stages = [(f"of these, {name}", str(self.stages[name])) for name in (NOTHING, PART, EVERYTHING)]
        differences = [(f"of these, with other {words}", str(self.different[name])) for name, words in COMPARED.items()]
        return [
            ("kills with SIGKILL", str(self.kills)),
            *stages,
            ("problems found by `verify` after a kill", str(self.problems)),
            ("galleries at the end, compared with that of a run without a kill", str(self.rounds)),
            *differences,
            ("photos embedded again although the gallery had them", str(self.again)),
            ("photos embedded and not written when the kill came: mean, most", self._vain()),
            ("changes in the log without the author of their run", str(self.unnamed)),
        ]

    def _vain(self) -> str:
        return f"{np.mean(self.in_vain or [0]):.0f}, {max(self.in_vain, default=0)}"


class Rounds:
    """Rounds of kills of one catalogue."""

    def __init__(self, catalogue: Catalogue, folder: Path) -> None:
        self._catalogue, self._folder, self._runs = catalogue, folder, 0
        self._gallery, self._log = folder / "gallery", folder / "embedded.log"
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload(PRELOADED)
        with Gallery.open(folder / "before", read_only=True) as gallery:
            self._base = gallery.version
        self._copy()
        seconds, _ = self._run(math.inf)
        self.seconds, self.whole = seconds, State.of(catalogue.bundle.path, self._gallery, self._base)
        if not self.whole.draws or self.whole.point is None:
            raise RuntimeError("the gallery has no threshold of its own to compare")
        self._target = {name: _content(row[1]) for name, row in self.whole.rows.items()}

    def run(self, kills: int, generator: np.random.Generator) -> Found:
        """Run rounds until a number of kills, the last one to its end."""
        found = Found()
        while found.kills < kills:
            self._copy()
            ended, runs = False, 0
            while not ended:
                moment = float(generator.uniform(0, LATEST * self.seconds)) if found.kills < kills else math.inf
                seconds, ended = self._step(moment, found)
                runs += 1
            if runs == 1:  # it did all the work
                self.seconds = min(self.seconds, seconds)
            found.rounds += 1
            now = State.of(self._catalogue.bundle.path, self._gallery, self._base)
            found.different.update(name for name in COMPARED if getattr(now, name) != getattr(self.whole, name))
            print(f"{found.kills} kills, {found.rounds} rounds", file=sys.stderr, flush=True)
        return found

    def _step(self, moment: float, found: Found) -> tuple[float, bool]:
        """Run once; return the seconds, and whether the run came to its end."""
        done, version = self._done()
        seconds, ended = self._run(moment)
        embedded = [line.split("\t")[1] for line in self._log.read_text().splitlines()]
        found.again += sum(photo_id in done for photo_id in embedded) + len(embedded) - len(set(embedded))
        written, _ = self._done()
        with Gallery.open(self._gallery, read_only=True) as gallery:
            changes = [change for change in gallery.changes(-1) if change.version > version]
            found.unnamed += sum(change.actor != self._author for change in changes)
            if ended:
                return seconds, True
            found.problems += len(gallery.verify())
            counts = logged(gallery, self._base)
        found.kills += 1
        found.in_vain.append(sum(photo_id not in written for photo_id in set(embedded)))
        found.stages[NOTHING if not counts else EVERYTHING if counts == self.whole.changes else PART] += 1
        return seconds, False

    def _run(self, moment: float) -> tuple[float, bool]:
        """Synchronize in a process that is killed at a moment; return the seconds of its work and whether it ended."""
        self._log.unlink(missing_ok=True)
        self._runs += 1
        catalogue = self._catalogue
        words = (catalogue.bundle.path, catalogue.after, self._gallery, self._log, self._author)
        child = self._context.Process(target=synchronize, args=words)
        child.start()
        try:
            until = time.monotonic() + STARTED_S
            while not self._log.exists():
                if not child.is_alive() or time.monotonic() > until:
                    raise RuntimeError("the process that synchronizes did not begin")
                time.sleep(0.001)
            started = time.monotonic()
            child.join(None if moment == math.inf else moment)
        finally:
            child.kill()
            child.join()
        if child.exitcode not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the process that synchronizes ended with {child.exitcode}")
        return time.monotonic() - started, child.exitcode == 0

    @property
    def changes(self) -> Counter[str]:
        """The number of photos with each kind of change."""
        return self._catalogue.changes

    @property
    def _author(self) -> str:
        return f"run-{self._runs}"

    def _done(self) -> tuple[set[str], int]:
        """Return the photos that the gallery has as the changed catalogue has them, and its version."""
        with Gallery.open(self._gallery, read_only=True) as gallery:
            facts = {name: _content(metadata) for name, _, metadata in gallery.photos()}
            return {name for name, content in facts.items() if self._target.get(name) == content}, gallery.version

    def _copy(self) -> None:
        shutil.rmtree(self._gallery, ignore_errors=True)
        shutil.copytree(self._folder / "before", self._gallery)


def _content(metadata: Mapping[str, Any]) -> tuple[object, object]:
    """Return what decides the vector of a stored photo: the hash of its file, and its bounding box."""
    return metadata[CONTENT], metadata.get(BOX)


def prepare(folder: Path, photos: int) -> Rounds:
    """Write a catalogue, index it, change it, and synchronize it once without a kill."""
    shutil.rmtree(folder, ignore_errors=True)
    catalogue = Catalogue.write(folder / "catalogue", photos)
    index_catalogue(catalogue.bundle, read_catalogue(catalogue.before), folder / "before", progress=False)
    catalogue.change(photos)
    return Rounds(catalogue, folder)


def main() -> None:
    """Run the benchmark and write its record."""
    parser = parser_of(__doc__)
    parser.add_argument("--photos", type=int, default=600, help="Photos before the changes.")
    parser.add_argument("--kills", type=int, default=100, help="Times that a process is killed.")
    parser.add_argument(
        "--folder", type=Path, default=Path("runs/sync-kills"), help="Folder for catalogue and gallery."
    )
    arguments = parser.parse_args()
    with Recorder("sync_kills", arguments) as recorder:
        rounds = prepare(arguments.folder, arguments.photos)
        changes = [(kind, f"{count:,}") for kind, count in rounds.changes.items()]
        recorder.table("changes", ("photos of the catalogue", "number"), changes)
        found = rounds.run(arguments.kills, np.random.default_rng(0))
        recorder.table("kills", ("what", "number"), found.rows())


if __name__ == "__main__":
    main()
