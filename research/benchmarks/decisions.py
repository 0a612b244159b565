"""Agreement of decisions between programs, batch sizes and thread counts.

    python -m research.benchmarks.decisions RUN BUNDLE

The benchmark indexes the gallery photos of all items of a run, trained and unseen, and searches every query photo of
the test items. It compares the decisions of torch, of ONNX Runtime (batches of 1, 8 and 64, 1 and 2 threads) and of the
endpoint. It then searches every gallery photo, and a thousand images of other domains (noise, gradients, patterns,
text, drawings), with the bundle's distance and with the plain distance at its own threshold.
"""

from __future__ import annotations

import io
import itertools
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import numpy as np
from fastapi.testclient import TestClient
from PIL import Image, ImageDraw, ImageFilter
from tqdm import tqdm

from index.distance import PLAIN, DistanceForm, accepts
from index.gallery import Gallery
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.metrics.identification import threshold_at_fpir
from retrieval.retriever import Retriever
from serving.app import create_app
from training.data.reader import PhotoReader
from training.data.splits import photos_in_protocol
from training.evaluation.distance_selection import Whitening, choose_distance
from training.evaluation.embedding import embed_photos
from training.evaluation.evaluate import make_evaluation_split, score_split
from training.export.onnx_embedding import embed_with_onnx
from training.loop.run import Run

from .tables import Recorder, parser_of

CLOSE = 1e-4  # distance to the threshold below which rounding may change the decision
STRANGERS = 1000


def strangers(count: int) -> Iterator[bytes]:
    """Yield images unrelated to any shop as PNG, of five kinds in turn."""
    kinds: tuple[Callable[[np.random.Generator], Image.Image], ...] = (_noise, _gradient, _pattern, _text, _drawing)
    for number in range(count):
        file = io.BytesIO()
        kinds[number % len(kinds)](np.random.default_rng(number)).save(file, "PNG")
        yield file.getvalue()


def _noise(generator: np.random.Generator) -> Image.Image:
    picture = Image.fromarray(generator.integers(0, 256, (240, 240, 3), dtype=np.uint8))
    return picture.filter(ImageFilter.GaussianBlur(float(generator.choice([0, 2, 8]))))


def _gradient(generator: np.random.Generator) -> Image.Image:
    corners = generator.integers(0, 256, (2, 2, 3)).astype(np.uint8)
    return Image.fromarray(corners).resize((240, 240), Image.Resampling.BICUBIC)


def _pattern(generator: np.random.Generator) -> Image.Image:
    period, (one, two) = int(generator.integers(4, 40)), generator.integers(0, 256, (2, 3))
    y, x = np.mgrid[:240, :240] // period
    which = ((x + y) % 2 if generator.random() < 0.5 else x % 2)[..., None]
    return Image.fromarray(np.where(which, one, two).astype(np.uint8))


def _text(generator: np.random.Generator) -> Image.Image:
    picture = Image.new("RGB", (240, 240), "white")
    draw = ImageDraw.Draw(picture)
    for line in range(14):
        words = "".join(generator.choice(list("abcdefghijklmnopqrstuvwxyz      "), 34))
        draw.text((8, 8 + 16 * line), words, fill=tuple(generator.integers(0, 90, 3).tolist()))
    return picture


def _drawing(generator: np.random.Generator) -> Image.Image:
    picture = Image.new("RGB", (240, 240), tuple(generator.integers(200, 256, 3).tolist()))
    draw = ImageDraw.Draw(picture)
    for _ in range(12):
        points = [tuple(point) for point in generator.integers(0, 240, (4, 2)).tolist()]
        draw.line(points, fill=tuple(generator.integers(0, 256, 3).tolist()), width=int(generator.integers(1, 9)))
    return picture


def answers(
    gallery: Gallery, vectors: np.ndarray, distance_form: DistanceForm, threshold: float
) -> list[tuple[str, float]]:
    """Return the first answer of each query, '' for a no-match, and the nearest distance."""
    nearest = [items[0] for items in gallery.search(vectors, 1, distance_form=distance_form)]
    return [(item.item_id if accepts(item.distance, threshold) else "", item.distance) for item in nearest]


def flips(one: Sequence[tuple[str, float]], other: Sequence[tuple[str, float]], threshold: float) -> tuple[int, int]:
    """Return the number of differing answers, and of those farther than 1e-4 from the threshold."""
    different = [(a, b) for a, b in zip(one, other, strict=True) if a[0] != b[0]]
    return len(different), sum(abs(a[1] - threshold) > CLOSE for a, _ in different)


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("run", type=Path)
    parser.add_argument("bundle", type=Path)
    arguments = parser.parse_args()
    with Recorder("decisions", arguments) as record:
        compare(arguments.run, arguments.bundle, record)


def compare(run_folder: Path, bundle_folder: Path, record: Recorder) -> None:
    """Record how often decisions differ by program, batch and threads, and the decisions on unrelated images."""
    run, bundle = Run.open(run_folder), Bundle.open(bundle_folder)
    splits, protocol, everyone = run.splits, run.protocol, run.photos()
    items = [*splits.fit, *splits.validation, *splits.test]
    gallery_photos = [p for p in photos_in_protocol(everyone, items, protocol) if p.source == protocol.gallery_source]
    queries = [p for p in photos_in_protocol(everyone, splits.test, protocol) if p.source == protocol.query_source]
    embedder, model = bundle.embedder(threads=2), run.best_model()
    with tempfile.TemporaryDirectory() as folder:
        gallery = Gallery.create(Path(folder) / "gallery", dim=bundle.dim, embedding_id=bundle.embedding_id)
        kept = embed_with_onnx(embedder, gallery_photos)[0].vectors
        gallery.add([p.photo_id for p in gallery_photos], [p.item_id for p in gallery_photos], kept)

        print(f"{len(queries)} queries, {len(gallery)} gallery photos of {gallery.items} items\n")
        paths = [photo.path for photo in queries]
        asked: dict[str, list[tuple[str, float]]] = {}
        for threads, batch in itertools.product((1, 2), (1, 8, 64)):
            made = Embedder(bundle_folder / "model.onnx", bundle.preprocessing, threads=threads)
            blocks = [made.embed(paths[i : i + batch]).vectors for i in range(0, len(paths), batch)]
            name = f"ONNX Runtime, batches of {batch}, {threads} threads"
            asked[name] = answers(gallery, np.concatenate(blocks), bundle.distance_form, bundle.threshold)
        reader = PhotoReader(queries, run.preprocessing, cache_bytes=0)
        torch_vectors = embed_photos(model, reader, len(queries), run.preprocessing)
        whitening = whitening_of(run, bundle)
        torch_vectors = torch_vectors if whitening is None else whitening(torch_vectors)
        asked["torch"] = answers(gallery, torch_vectors, bundle.distance_form, bundle.threshold)
        asked["the endpoint"] = served(Retriever(bundle, gallery), paths)
        first = next(iter(asked.values()))
        columns = ("decisions of", "differ from one photo at a time, 1 thread", "farther than 1e-4 from the threshold")
        record.table("decisions", columns)
        for name, answer in asked.items():
            record.add(name, *map(str, flips(first, answer, bundle.threshold)))

        labels = np.array([photo.item_id for photo in everyone])
        calibration = make_evaluation_split("calibration", everyone, splits.calibration, protocol)
        used = np.unique(np.concatenate([calibration.queries, calibration.gallery]))
        vectors = np.zeros((len(everyone), bundle.dim), np.float32)
        vectors[used] = embed_with_onnx(embedder, [everyone[i] for i in used])[0].vectors
        plain = threshold_at_fpir(score_split(calibration, vectors, labels), bundle.operating_point.target_fpir)
        far = embed_blocks(embedder, list(strangers(STRANGERS)))
        record.table("strangers", ("distance", "gallery photos that match themselves", "strangers rejected"))
        for name, distance_form, threshold in (
            ("the bundle's", bundle.distance_form, bundle.threshold),
            ("plain", PLAIN, plain),
        ):
            own = answers(gallery, kept, distance_form, threshold)
            found = sum(answer == photo.item_id for (answer, _), photo in zip(own, gallery_photos, strict=True))
            rejected = sum(not answer for answer, _ in answers(gallery, far, distance_form, threshold))
            record.add(name, f"{found} of {len(own)}", f"{rejected} of {STRANGERS}")
        gallery.close()


def whitening_of(run: Run, bundle: Bundle) -> Whitening | None:
    """Return the whitening of the export, fitted again on the training photos."""
    if not bundle.manifest["evidence"]["distances_tried"][0]["whitened"]:
        return None
    photos = photos_in_protocol(run.photos(), [*run.splits.fit, *run.splits.validation], run.protocol)
    reader = PhotoReader(photos, run.preprocessing, cache_bytes=0)
    vectors = embed_photos(run.best_model(), reader, len(photos), run.preprocessing, progress=True)
    target = bundle.operating_point.target_fpir
    return choose_distance(photos, vectors, run.splits, run.protocol, target_fpir=target).whitening


def embed_blocks(embedder: Embedder, images: Sequence[bytes]) -> np.ndarray:
    parts = [embedder.embed(images[i : i + 32]).vectors for i in range(0, len(images), 32)]
    return np.concatenate(parts)


def served(retriever: Retriever, paths: Sequence[Path]) -> list[tuple[str, float]]:
    """Return the answers of POST /v1/search to each photo."""
    found = []
    with TestClient(create_app(retriever, page=False)) as client:
        for path in tqdm(paths, desc="endpoint"):
            answer = client.post("/v1/search", content=path.read_bytes()).json()
            first = answer["matches"][0]["item_id"] if answer["matches"] else ""
            found.append((first, answer["nearest_distance"]))
    return found


if __name__ == "__main__":
    main()
