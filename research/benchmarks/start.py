"""Seconds from the start of `retrieval serve` to the first answer and to the page, with a large gallery.

    python -m research.benchmarks.start BUNDLE PHOTO [--photos 100000]

The server and a process that opens the same gallery and searches take turns, on one core and on all. The time of the
process is a lower bound. A first start, which is not counted, compiles the modules and brings the files into the file
cache. Figures are medians over the starts.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle

from .peers import INSIDE, OURS, Served, command_of, free_port
from .tables import Recorder, parser_of

LARGE, BLOCK, PHOTOS_PER_ITEM = 100_000, 20_000, 5
COLUMNS = ("cores", "first search in a process, s", "first answer of the server, s", "page, s")


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("photo", type=Path)
    parser.add_argument("--photos", type=int, default=LARGE, help="Photos in the gallery.")
    parser.add_argument("--starts", type=int, default=5)
    arguments = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"  # as in `retrieval`, for every process
    os.environ.pop("PYTHONDONTWRITEBYTECODE", None)  # an installed package is compiled
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name, Recorder("start", arguments) as record:
        folder = Path(name)
        gallery = large_gallery(folder / "gallery", Bundle.open(arguments.bundle), arguments.photos)
        record.table("start", COLUMNS)
        take(arguments.bundle, gallery, arguments.photo, folder, None)
        for shown, core in ((str(len(cores)), None), ("1", cores[0])):
            turns = [take(arguments.bundle, gallery, arguments.photo, folder, core) for _ in range(arguments.starts)]
            record.add(shown, *(spread(values) for values in zip(*turns, strict=True)))


def large_gallery(path: Path, bundle: Bundle, photos: int) -> Path:
    """Write a gallery of random vectors for a bundle."""
    generator = np.random.default_rng(0)
    with Gallery.create(path, dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        for first in range(0, photos, BLOCK):
            numbers = range(first, min(photos, first + BLOCK))
            vectors = generator.normal(size=(len(numbers), bundle.dim)).astype(np.float32)
            gallery.add(
                [f"photo-{number}" for number in numbers],
                [f"item-{number // PHOTOS_PER_ITEM}" for number in numbers],
                vectors / np.linalg.norm(vectors, axis=1, keepdims=True),
            )
        gallery.rebuild_if_due()
    return path


def take(bundle: Path, gallery: Path, photo: Path, folder: Path, core: int | None) -> tuple[float, float, float]:
    """Return the seconds to a first search in a process, to the first answer of a server and to its page."""
    places = [bundle, gallery]
    inside = Served(command_of(INSIDE, 0, places, [photo], page=False), port=0, core=core, log=folder / "inside.log")
    try:
        inside.line()
        searched = time.perf_counter() - inside.started
    finally:
        inside.stop()
    port = free_port()
    server = Served(command_of(OURS, port, places, [], page=True), port=port, core=core, log=folder / "server.log")
    try:
        answered = server.wait_for("/v1/search", photo.read_bytes())
        return searched, answered, server.wait_for("/")
    finally:
        server.stop()


def spread(seconds: Sequence[float]) -> str:
    """Return the median, and the least and the most."""
    return f"{statistics.median(seconds):.2f} ({min(seconds):.2f} to {max(seconds):.2f})"


if __name__ == "__main__":
    main()
