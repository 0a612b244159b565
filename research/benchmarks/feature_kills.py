"""Indexing with local features, killed at random moments: nothing that was added is lost.

    python -m research.benchmarks.feature_kills [--photos 100000] [--kills 100] [--folder runs/feature-kills]

A process adds photos with small features to a gallery, reports each addition, and rebuilds the index at intervals. It
is killed with SIGKILL at random moments and started again. After each kill the gallery is opened beside the leftovers:
every reported photo has to be there, no addition may be there in part, and the features of a sample of photos have to
be the ones that were added. At the end every photo is compared.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.database import SEGMENTS
from index.gallery import Gallery

from .tables import Recorder, parser_of

DIM, BATCH, ITEMS = 32, 500, 5000
REBUILD = 40  # batches from one rebuild to the next
SMALLEST, LARGEST = 100, 600  # bytes of a photo's features
SAMPLED = 200  # photos compared after each kill


def contents(numbers: Sequence[int]) -> tuple[list[str], list[str], NDArray[np.float32], list[bytes]]:
    """Return ids, items, vectors and features of photos; they follow from the numbers."""
    vectors, features = np.empty((len(numbers), DIM)), []
    for row, number in enumerate(numbers):
        generator = np.random.default_rng(number)
        vectors[row] = generator.normal(size=DIM)
        features.append(generator.bytes(int(generator.integers(SMALLEST, LARGEST))))
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    names, items = [f"photo-{n}" for n in numbers], [f"item-{n % ITEMS}" for n in numbers]
    return names, items, vectors.astype(np.float32), features


def write(path: Path, photos: int) -> None:
    """Add the photos that are missing, and print their number after each addition."""
    with Gallery.open(path) as gallery:
        count = len(gallery)
        print(count, flush=True)
        while count < photos:
            names, items, vectors, features = contents(range(count, min(photos, count + BATCH)))
            gallery.add(names, items, vectors, features=features)
            count += len(names)
            print(count, flush=True)
            if count // BATCH % REBUILD == 0:
                gallery.rebuild(kind="fp16")


@dataclass
class Found:
    """Counts of lost, partial and wrong photos after the kills."""

    kills: int = 0
    interrupted: int = 0  # kills that left unfinished files behind
    lost: int = 0  # photos that were reported and are missing
    partial: int = 0  # additions that are there in part
    wrong: int = 0  # photos with other features or another vector
    compared: int = 0

    def look(self, path: Path, reported: int, photos: int, generator: np.random.Generator) -> int:
        """Compare the gallery with what was reported; return its number of photos."""
        with Gallery.open(path, read_only=True) as gallery:
            count, now = len(gallery), gallery.snapshot()
            self.lost += max(0, reported - count)
            self.partial += bool(count % BATCH) and count != photos
            chosen = np.unique(generator.integers(0, count, SAMPLED)) if count else np.zeros(0, np.int64)
            self._compare(gallery, np.flatnonzero(now.live)[chosen])
            named = {segment.name for segment in now.segments}
            self.interrupted += any(file.name.split(".")[0] not in named for file in (path / SEGMENTS).iterdir())
        return count

    def compare_all(self, path: Path, photos: int) -> list[str]:
        """Compare every photo; return the problems that `verify` finds."""
        with Gallery.open(path) as gallery:
            gallery.remove(photo_ids=["nobody"])  # the next write deletes leftover files
            live = np.flatnonzero(gallery.snapshot().live)
            for start in range(0, len(live), BATCH):
                self._compare(gallery, live[start : start + BATCH])
            self.lost += photos - len(live)
            return gallery.verify()

    def _compare(self, gallery: Gallery, positions: NDArray[np.int64]) -> None:
        now = gallery.snapshot()
        numbers = [int(now.photo(position)[0].removeprefix("photo-")) for position in positions.tolist()]
        _, _, vectors, features = contents(numbers)
        stored, kept = now.vectors(positions), now.features(positions)
        alike = np.abs(stored - vectors).max(axis=1, initial=0) < 1e-6
        self.wrong += sum(not same or ours != theirs for same, ours, theirs in zip(alike, kept, features, strict=True))
        self.compared += len(numbers)


def run(path: Path, photos: int, kills: int) -> tuple[Found, list[str]]:
    """Index photos in a process that is killed; return what was found, and the problems at the end."""
    generator, found = np.random.default_rng(0), Found()
    Gallery.create(path, dim=DIM, embedding_id="e", features_key="f").close()
    count, seconds, added = 0, 0.0, 0
    while count < photos:
        command = [sys.executable, "-m", "research.benchmarks.feature_kills", "--child", str(path)]
        child = subprocess.Popen([*command, "--photos", str(photos)], stdout=subprocess.PIPE, text=True)
        if child.stdout is None:
            raise RuntimeError("the child has no output")
        count = int(child.stdout.readline())
        if found.kills < kills:
            share = (photos - count) / (kills - found.kills + 1)  # photos to add until the next kill, on average
            pace = seconds / added if added else 0.4 / BATCH
            started = time.monotonic()
            time.sleep(float(generator.uniform(0, 2 * share * pace)))
            child.send_signal(signal.SIGKILL)
            seconds += time.monotonic() - started
        lines = child.stdout.read().splitlines(keepends=True)
        ended = child.wait()
        reported = int(next((line for line in reversed(lines) if line.endswith("\n")), str(count)))
        found.kills += ended == -signal.SIGKILL
        if ended not in (0, -signal.SIGKILL):
            raise RuntimeError(f"the child ended with {ended}")
        before, count = count, found.look(path, reported, photos, generator)
        added += count - before
        print(f"{found.kills} kills, {count} photos, {os.getloadavg()[0]:.1f} load", file=sys.stderr, flush=True)
    return found, found.compare_all(path, photos)


def main() -> None:
    """Run the benchmark and write its record."""
    parser = parser_of(__doc__)
    parser.add_argument("--photos", type=int, default=100_000, help="Photos to index.")
    parser.add_argument("--kills", type=int, default=100, help="Times that the process is killed.")
    parser.add_argument("--folder", type=Path, default=Path("runs/feature-kills"), help="Folder for the gallery.")
    parser.add_argument("--child", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        write(arguments.child, arguments.photos)
        return
    shutil.rmtree(arguments.folder, ignore_errors=True)
    with Recorder("feature_kills", arguments) as recorder:
        found, problems = run(arguments.folder / "gallery", arguments.photos, arguments.kills)
        rows = [
            ("photos indexed with features", f"{arguments.photos:,}"),
            ("kills with SIGKILL", str(found.kills)),
            ("of these, with unfinished files left behind", str(found.interrupted)),
            ("photos lost", str(found.lost)),
            ("additions there in part", str(found.partial)),
            ("photos compared, some of them several times", f"{found.compared:,}"),
            ("of these, with other features or another vector", str(found.wrong)),
            ("problems found by `verify`", str(len(problems))),
        ]
        recorder.table("kills", ("what", "number"), rows)


if __name__ == "__main__":
    main()
