"""Find the items in composed photos: by the whole photo, by its regions, and by given boxes.

    python -m research.benchmarks.regions

Photos of 1 to 4 items are composed at run time: items of the drawn catalogue, and phone photos of covers on photos of
birds and groceries. A frozen EfficientNet-Lite0 embeds them, with the plain distance. The items are split at random
into quarters, and composed photos show items of one quarter. Each of the six galleries holds the catalogue photos of
two quarters. `retrieval calibrate --queries` sets its threshold of whole photos with boxes cut from composed photos of
these items, and `--regions auto` its threshold of regions with the same photos, undivided. Other composed photos of
these items tell which items are found, and those of the other two quarters tell the share of photos of unknown items
that return a match. A gallery in which no threshold that keeps the target finds an item answers nothing.
Means and standard deviations are over the galleries.
"""

from __future__ import annotations

import hashlib
import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.gallery import Gallery
from retrieval.bundle.bundle import FITTED, Bundle, write_bundle
from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.bundle.fitted import Fitted
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.errors import CalibrationError
from retrieval.images import read_file
from retrieval.indexing.pipeline import index_catalogue
from retrieval.regions.windows import AutoRegions
from retrieval.retriever import Retriever
from retrieval.threshold.gallery_calibration import propose
from retrieval.threshold.regions import propose_regions
from training.export.onnx_writer import write_onnx
from training.export.pretrained import Pretrained

from .region_scenes import MOST_ITEMS, Scene, Source, compose, sources
from .tables import Recorder, parser_of

TARGET = 0.05
QUARTERS = 4
TIMED = 20  # photos whose time is measured
WAYS = ("whole photo", "regions auto", "given boxes")


class RememberingEmbedder(Embedder):
    """An embedder that embeds the same pixels once, in this process and in later ones."""

    memory: dict[bytes, tuple[NDArray[np.float32], np.float32]]

    def embed_pixels(self, pixels: NDArray[np.uint8]) -> Embeddings:
        """Return the embeddings of pixels, from memory where they are known."""
        keys = [hashlib.sha256(square.tobytes()).digest() for square in pixels]
        new = {key: row for row, key in enumerate(keys) if key not in self.memory}
        if new:
            made = super().embed_pixels(pixels[list(new.values())])
            self.memory |= dict(zip(new, zip(made.vectors, made.certainties, strict=True), strict=True))
        known = [self.memory[key] for key in keys]
        return Embeddings(np.stack([vector for vector, _ in known]), np.array([norm for _, norm in known]))


def remembering(bundle: Bundle, file: Path) -> RememberingEmbedder:
    """Return an embedder of a bundle that remembers what an earlier process stored in a file."""
    embedder = RememberingEmbedder(bundle.read("model.onnx"), bundle.preprocessing, provider=bundle.provider)
    embedder.memory = {}
    if file.exists():
        with np.load(file, allow_pickle=False) as stored:
            rows = zip(stored["vectors"], stored["norms"], strict=True)
            embedder.memory = dict(zip([key.tobytes() for key in stored["keys"]], rows, strict=True))
    return embedder


def remember(embedder: RememberingEmbedder, file: Path) -> None:
    """Store what an embedder remembers."""
    keys = np.stack([np.frombuffer(key, np.uint8) for key in embedder.memory])
    vectors, norms = zip(*embedder.memory.values(), strict=True)
    np.savez(file, keys=keys, vectors=np.stack(vectors), norms=np.array(norms))


def bundle_of(folder: Path) -> Bundle:
    """Return a bundle of the frozen model without a threshold, written if it does not exist."""
    if (folder / "bundle").exists():
        return Bundle.open(folder / "bundle")
    model = Pretrained.load("efficientnet-lite0")
    folder.mkdir(parents=True, exist_ok=True)
    write_onnx(model.model, folder / "model.onnx", size=model.preprocessing.size)
    black = np.zeros((1, model.preprocessing.size, model.preprocessing.size, 3), np.uint8)
    return write_bundle(
        folder / "bundle",
        model=folder / "model.onnx",
        preprocessing=model.preprocessing,
        dim=model.embed_pixels(black).shape[1],
        operating_point=OperatingPoint.uncalibrated(TARGET),
        files={FITTED: Fitted.of([], []).pack()},
    )


@dataclass(frozen=True)
class Answers:
    """The items that searches returned, and those that their photos show."""

    found: Sequence[set[str]]
    shown: Sequence[set[str]]

    def recall(self, count: int | None = None) -> float:
        """Return the share of items that were found, in photos of `count` items or all."""
        pairs = [pair for pair in zip(self.found, self.shown, strict=True) if count in (None, len(pair[1]))]
        return sum(len(found & shown) for found, shown in pairs) / sum(len(shown) for _, shown in pairs)

    def precision(self) -> float:
        """Return the share of returned items that are in the photo."""
        right = sum(len(found & shown) for found, shown in zip(self.found, self.shown, strict=True))
        return right / max(1, sum(map(len, self.found)))

    def fpir(self) -> float:
        """Return the share of photos that returned anything."""
        return float(np.mean([bool(found) for found in self.found]))


def ask(retriever: Retriever, scene: Scene, way: str) -> set[str]:
    """Return the items that a search with a scene returns."""
    photo = read_file(scene.path)
    if way == "whole photo":
        return {match.item_id for match in retriever.search(photo).matches}
    regions = "auto" if way == "regions auto" else list(scene.boxes.values())
    return {match.item_id for match in retriever.search_regions(photo, regions).matches}


def measure(
    bundle: Bundle, source: Source, known: Sequence[str], scenes: Mapping[str, Sequence[Scene]], folder: Path
) -> dict[str, tuple[Answers, Answers]]:
    """Return, by the way of searching, the answers to photos of known and of unknown items in one gallery.

    `scenes` has photos of known items that set the thresholds, others that are searched, and those of unknown items.
    """
    place = folder / "gallery"
    index_catalogue(bundle, [photo for photo in source.shown if photo.item_id in known], place, progress=False)
    photos = [photo for scene in scenes["anchor"] for photo in scene.photos()]
    ways = []
    with Gallery.open(place) as gallery, suppress(CalibrationError):  # then no threshold finds a single item
        propose(bundle, gallery, target_fpir=TARGET, photos=photos).write(gallery)
        ways += ["whole photo", "given boxes"]
        propose_regions(bundle, gallery, AutoRegions(), target_fpir=TARGET, photos=photos).write(gallery)
        ways += ["regions auto"]
    with Retriever.open(bundle.path, place) as retriever:
        retriever.embedder = bundle.embedder()

        def answers(way: str, kind: str) -> Answers:
            shown = [set(scene.boxes) for scene in scenes[kind]]
            return Answers([ask(retriever, scene, way) if way in ways else set() for scene in scenes[kind]], shown)

        return {way: (answers(way, "known"), answers(way, "unknown")) for way in WAYS}


def galleries(bundle: Bundle, source: Source, output: Path, each: int) -> Iterator[dict[str, tuple[Answers, Answers]]]:
    """Yield the answers in each gallery of two quarters of the items, with `each` photos per quarter and purpose."""
    shuffled = np.random.default_rng(20).permutation(source.items).tolist()
    quarters = [shuffled[number::QUARTERS] for number in range(QUARTERS)]
    composed = {
        (number, kind): compose(source, quarter, each, output / source.name / f"{kind} {number}", 2 * number + place)
        for number, quarter in enumerate(quarters)
        for place, kind in enumerate(("anchor", "asked"))
    }
    for pair in itertools.combinations(range(QUARTERS), 2):
        others = [number for number in range(QUARTERS) if number not in pair]
        scenes = {
            "anchor": [scene for number in pair for scene in composed[number, "anchor"]],
            "known": [scene for number in pair for scene in composed[number, "asked"]],
            "unknown": [scene for number in others for scene in composed[number, "asked"]],
        }
        known = [item for number in pair for item in quarters[number]]
        with tempfile.TemporaryDirectory() as folder:
            yield measure(bundle, source, known, scenes, Path(folder))


def milliseconds(bundle: Bundle, source: Source, output: Path) -> dict[str, float]:
    """Return the processor time of a search on one core, by the way of searching."""
    scenes = compose(source, source.items, TIMED, output / source.name / "timed", 99)
    with tempfile.TemporaryDirectory() as folder:
        index_catalogue(bundle, source.shown, Path(folder) / "gallery", progress=False)
        with Retriever.open(bundle.path, Path(folder) / "gallery") as retriever:
            found = {}
            for way in WAYS:
                ask(retriever, scenes[0], way)
                started = time.process_time()
                for scene in scenes:
                    ask(retriever, scene, way)
                found[way] = 1e3 * (time.process_time() - started) / len(scenes)
    return found


def _same(embedder: Embedder, *, threads: int = 1) -> Embedder:  # noqa: ARG001
    return embedder


def spread(values: Sequence[float]) -> str:
    """Return the mean and the standard deviation of values."""
    return f"{np.mean(values):.3f} ± {np.std(values):.3f}"


def main() -> None:
    """Measure both sources and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/regions"), help="Folder for photos and vectors.")
    parser.add_argument("--each", type=int, default=60, help="Photos composed per quarter of the items and purpose.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")) / "data"
    bundle = bundle_of(arguments.output)
    results: dict[str, list[dict[str, tuple[Answers, Answers]]]] = {}
    times: dict[str, dict[str, float]] = {}
    for source in sources(data, arguments.output):
        times[source.name] = milliseconds(Bundle.open(bundle.path), source, arguments.output)
        file = arguments.output / f"{source.name}.npz"
        embedder = remembering(bundle, file)
        bundle.embedder = partial(_same, embedder)  # type: ignore[method-assign]
        results[source.name] = []
        for answers in galleries(bundle, source, arguments.output, arguments.each):
            results[source.name].append(answers)
            remember(embedder, file)
    with Recorder("regions", arguments) as record:
        record.table("items", ("data and items in the photo", *(f"items found, {way}" for way in WAYS)))
        for name, found in results.items():
            for count in (*range(1, MOST_ITEMS + 1), None):
                cells = [spread([each[way][0].recall(count) for each in found]) for way in WAYS]
                record.add(f"{name}, {'1 to 4' if count is None else count}", *cells)
        columns = ("data and way of searching", "precision", f"FPIR per photo, target {TARGET}", "CPU per search")
        record.table("rates", columns)
        for name, found in results.items():
            for way in WAYS:
                precision = spread([each[way][0].precision() for each in found])
                fpir = spread([each[way][1].fpir() for each in found])
                record.add(f"{name}, {way}", precision, fpir, f"{times[name][way]:.0f} ms")


if __name__ == "__main__":
    main()
