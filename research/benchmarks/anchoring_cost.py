"""Cost of thresholds set in the gallery: anchoring, changes of photos, and searches.

    python -m research.benchmarks.anchoring_cost BUNDLE CATALOGUE PHOTO [PHOTO ...] [--output runs/anchoring-cost]

A gallery of simulated embeddings (`gallery`) is anchored with the bundle, with its calibration photos as probes. Photos
are then added and removed, in turns with and without the draws kept. Searches with the photos run in a gallery of the
catalogue, in turns with and without an operating point of its own, in process and over HTTP. Intervals are 95 %
bootstrap intervals over the pairs. The machine has other load, so CPU seconds are given beside the time where the work
is long.
"""

from __future__ import annotations

import argparse
import hashlib
import http.client
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from index.contents import POINT
from index.gallery import Gallery
from index.kept_draws import DRAWS
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import read_catalogue
from retrieval.indexing.pipeline import index_catalogue, probe_of
from retrieval.indexing.worker import CONTENT
from retrieval.retriever import Retriever
from retrieval.threshold.gallery_anchor import GalleryAnchor

from .gallery import BLOCK, Peak, embeddings, resident, timed
from .peers import OURS, Served, command_of, free_port
from .tables import Recorder, parser_of

ADDED, ROUNDS = 1000, 5
RESAMPLES = 2000
WARM_UP = 20


def content(name: str) -> dict[str, str]:
    """Return the metadata of a photo, as indexing stores it."""
    return {CONTENT: hashlib.sha256(name.encode()).hexdigest()}


def fill(bundle: Bundle, path: Path, count: int) -> dict[str, Any]:
    """Write a gallery with this number of photos."""
    with Gallery.create(path, dim=bundle.dim, embedding_id=bundle.embedding_id) as gallery:
        for block, (vectors, items) in enumerate(embeddings(count, bundle.dim)):
            names = [f"photo-{block * BLOCK + i}" for i in range(len(vectors))]
            gallery.add(names, [f"item-{i}" for i in items.tolist()], vectors, metadata=[content(n) for n in names])
    return {}


def build(bundle: Bundle, path: Path, kind: str) -> dict[str, Any]:
    """Rebuild with an index kind, and remove what was measured before."""
    with Gallery.open(path) as gallery:
        gallery.keep({POINT: None, DRAWS: None}, "forget")
        gallery.rebuild(kind=kind, probe=probe_of(bundle))
    return {}


def anchor(bundle: Bundle, path: Path) -> dict[str, Any]:
    """Set the threshold of a gallery that is open and has been searched."""
    with Gallery.open(path) as gallery:
        gallery.search(next(embeddings(1, bundle.dim))[0], 1, distance_form=bundle.distance_form)
        before, started, cpu = resident(), time.perf_counter(), time.process_time()
        with Peak() as peak:
            anchors = GalleryAnchor(bundle)
            anchored = anchors.anchored(gallery, anchors.draws(gallery))
            anchors.write(gallery, anchored, action="calibrate")
        return {
            "seconds": time.perf_counter() - started,
            "cpu_s": time.process_time() - cpu,
            "peak": peak.bytes - before,
            "draws": {name: len(draws) for name, draws in anchored.draws.sources.items()},
            "anchored": anchored.point is not None,
        }


def change(bundle: Bundle, path: Path) -> dict[str, Any]:
    """Add and remove photos, in turns with and without the draws kept."""
    found: dict[str, list[list[float]]] = {}
    vectors, items = next(embeddings(ADDED, bundle.dim, seed=3))
    with Gallery.open(path) as gallery:
        len(gallery)
        for turn in range(ROUNDS):
            for kept in (False, True) if turn % 2 else (True, False):
                gallery.on_change = GalleryAnchor(bundle) if kept else None
                for count in (1, ADDED):
                    names = [f"new-{i}" for i in range(count)]
                    things, facts = [f"new-item-{i}" for i in items[:count]], [content(name) for name in names]

                    def add(
                        names: list[str] = names, things: list[str] = things, facts: list[dict[str, str]] = facts
                    ) -> None:
                        gallery.add(names, things, vectors[: len(names)], metadata=facts)
                        len(gallery)

                    def remove(names: list[str] = names) -> None:
                        gallery.remove(photo_ids=names)
                        len(gallery)

                    for what, work in (("add", add), ("remove", remove)):
                        cpu = time.process_time()
                        found.setdefault(f"{what} {count} {kept}", []).append([timed(work), time.process_time() - cpu])
        if not gallery.kept(DRAWS):
            raise RuntimeError("no draws were kept")
    return {key: np.median(values, axis=0).tolist() for key, values in found.items()}


STEPS: dict[str, Callable[..., dict[str, Any]]] = {"fill": fill, "build": build, "anchor": anchor, "change": change}


def step(name: str, bundle: Path, path: Path, *words: object) -> dict[str, Any]:
    """Run one measurement in a fresh process."""
    command = [sys.executable, "-m", "research.benchmarks.anchoring_cost", "--step", name]
    done = subprocess.run([*command, *map(str, (bundle, path, *words))], stdout=subprocess.PIPE, check=True, text=True)
    return dict(json.loads(done.stdout.splitlines()[-1]))


Clock = Callable[[], float]


def compare(
    ways: Sequence[Callable[[bytes], object]], photos: Sequence[bytes], pairs: int, clocks: Mapping[str, Clock]
) -> list[tuple[str, ...]]:
    """Search in two ways, in turns; return for each clock the medians and their ratio with its interval."""
    generator = np.random.default_rng(0)
    seconds = np.zeros((pairs + WARM_UP, 2, len(clocks)))
    for pair in range(len(seconds)):
        for way in generator.permutation(2):
            before = [clock() for clock in clocks.values()]
            ways[way](photos[pair % len(photos)])
            seconds[pair, way] = np.subtract([clock() for clock in clocks.values()], before)
    seconds = seconds[WARM_UP:]
    resampled = np.array([np.median(seconds[generator.integers(0, pairs, pairs)], axis=0) for _ in range(RESAMPLES)])
    low, high = np.quantile(resampled[:, 1] / resampled[:, 0], (0.025, 0.975), axis=0)
    plain, anchored = np.median(seconds, axis=0)
    return [
        (name, f"{1e3 * p:.2f} ms", f"{1e3 * a:.2f} ms", f"{a / p:.3f} [{least:.3f}, {most:.3f}]")
        for name, p, a, least, most in zip(clocks, plain, anchored, low, high, strict=True)
    ]


def searches(arguments: argparse.Namespace, folder: Path) -> list[tuple[str, ...]]:
    """Compare searches with and without an operating point of the gallery, in process and over HTTP."""
    places = [folder / "plain", folder / "anchored"]
    for place in places:
        shutil.rmtree(place, ignore_errors=True)
    bundle, photos = Bundle.open(arguments.bundle), [photo.read_bytes() for photo in arguments.photos]
    report = index_catalogue(bundle, read_catalogue(arguments.catalogue), places[1], progress=False)
    if report.point is None:
        raise RuntimeError(f"the gallery was not anchored: {report.unanchored}")
    shutil.copytree(places[1], places[0])
    with Gallery.open(places[0]) as gallery:
        gallery.keep({POINT: None, DRAWS: None}, "forget")
    retrievers = [Retriever.open(bundle.path, place) for place in places]
    if any(retrievers[1].search(photo).nearest.p_value is None for photo in photos):  # type: ignore[union-attr]
        raise RuntimeError("an answer has no p-value")
    clocks = {"p50 in process": time.perf_counter, "CPU in process, median": time.process_time}
    rows = compare([retriever.search for retriever in retrievers], photos, arguments.pairs, clocks)
    core = min(os.sched_getaffinity(0))
    servers = []
    try:
        for number, place in enumerate(places):
            port = free_port()
            command = command_of(OURS, port, [arguments.bundle, place], (), page=False)
            servers.append(Served(command, port=port, core=core, log=folder / f"server-{number}.log"))
            servers[-1].wait_for("/v1/search", photos[0])
        clients = [Client(server.port) for server in servers]
        rows += compare(clients, photos, arguments.pairs, {"p50 over HTTP": time.perf_counter})
    finally:
        for server in servers:
            server.stop()
    return rows


class Client:
    """A connection to a server that is kept open."""

    def __init__(self, port: int) -> None:
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)

    def __call__(self, photo: bytes) -> None:
        self._connection.request("POST", "/v1/search", photo, {"Content-Type": "image/jpeg"})
        response = self._connection.getresponse()
        response.read()
        if response.status != 200:
            raise RuntimeError(f"status {response.status}")


ANCHORING = ("photos × d", "kind", "draws", "time, s", "CPU, s", "peak memory above the opened gallery, MB")
CHANGES = ("change", "kind", "time, s, more (without → with draws kept)", "CPU, s, more (without → with)")
SEARCHES = ("what", "bundle's threshold", "gallery's threshold", "ratio, with 95 % interval of pairs")


def measure(arguments: argparse.Namespace) -> tuple[list[tuple[str, ...]], list[tuple[str, ...]]]:
    """Return the rows on anchoring and on changes, for each index kind."""
    path = arguments.output / "gallery"
    shutil.rmtree(path, ignore_errors=True)
    step("fill", arguments.bundle, path, arguments.size)
    anchoring: list[tuple[str, ...]] = []
    changes: list[tuple[str, ...]] = []
    for kind in arguments.kinds:
        step("build", arguments.bundle, path, kind)
        cost = step("anchor", arguments.bundle, path)
        draws = " + ".join(f"{count:,} {name}" for name, count in cost["draws"].items())
        size = f"{arguments.size:,} × {Bundle.open(arguments.bundle).dim}"
        figures = f"{cost['seconds']:.1f}", f"{cost['cpu_s']:.1f}", f"{cost['peak'] / 1e6:.0f}"
        anchoring.append((size, kind, draws, *figures))
        seconds = step("change", arguments.bundle, path)
        for what in ("add", "remove"):
            for count in (ADDED, 1):
                without, kept = (seconds[f"{what} {count} {state}"] for state in (False, True))
                name = f"{what} {count:,} photo{'s' if count > 1 else ''}"
                pairs = list(zip(without, kept, strict=True))
                changes.append((name, kind, *(f"{k - w:.2f} ({w:.2f} → {k:.2f})" for w, k in pairs)))
    shutil.rmtree(path)
    return anchoring, changes


def main() -> None:
    """Measure everything and write the tables."""
    if len(sys.argv) > 1 and sys.argv[1] == "--step":
        name, bundle, path, *rest = sys.argv[2:]
        words = [int(word) if word.isdecimal() else word for word in rest]
        print(json.dumps(STEPS[name](Bundle.open(bundle), Path(path), *words)))
        return
    parser = parser_of(__doc__)
    parser.add_argument("bundle", type=Path)
    parser.add_argument("catalogue", type=Path)
    parser.add_argument("photos", type=Path, nargs="+")
    parser.add_argument("--output", type=Path, default=Path("runs/anchoring-cost"))
    parser.add_argument("--size", type=int, default=1_000_000, help="Photos in the gallery of simulated embeddings.")
    parser.add_argument("--kinds", nargs="*", default=["fp16", "ivf"])
    parser.add_argument("--pairs", type=int, default=1500)
    arguments = parser.parse_args()
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    arguments.output.mkdir(parents=True, exist_ok=True)
    with Recorder("anchoring_cost", arguments) as record:
        record.table("searches", SEARCHES, searches(arguments, arguments.output))
        anchoring, changes = measure(arguments)
        record.table("anchoring", ANCHORING, anchoring)
        record.table("changes", CHANGES, changes)


if __name__ == "__main__":
    main()
