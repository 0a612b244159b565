"""What second looks find where a thing fills a small part of the frame, beside one look at the whole photo.

    python -m research.benchmarks.framing

Items outside the training partition, by which the rules were chosen, are halved at random: one half is the gallery, the
others are unknown. Two photos of each item are queries, as they are and in each view (`framing_views`). A strict TPIR
is that at the threshold where 5 % of the unknown photos as they are match, and at most 5 % of those in the same view.
The served threshold follows from the gallery's draws. Both are by the item distance, with one look or two.

Shapes: n photos, d = embedding size.
"""

from __future__ import annotations

import io
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from unittest.mock import patch

import numpy as np
from PIL import Image
from tqdm import tqdm

from index.gallery import Gallery
from index.photos.arrays import ArrayPhotos
from index.search.distance import accepts
from index.search.item_distance import ItemDistance, mean_photo
from index.search.item_search import ItemSearch
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.galleries.kept import Kept
from retrieval.galleries.measured import measure_gallery
from retrieval.images import open_image
from retrieval.indexing.pipeline import index_catalogue
from retrieval.measuring.drawing import Drawing, PartVectors
from retrieval.measuring.draws import OWN, AllDraws
from retrieval.measuring.fpir import LEAST_ITEMS
from retrieval.measuring.measure import measure, without_copies
from retrieval.retriever import Retriever
from retrieval.search.second_look import reduced, second_vectors
from training.export.pretrained import Pretrained, export_pretrained

from .anchoring import TARGET
from .framing_views import AS_IT_IS, HALF, generator_of, on_plain, views
from .item_distance_data import MODEL
from .promise_vectors import ICONIC, OTHER_MODEL
from .tables import Recorder, parser_of

SETS = {"birds": "grocery", "cars": "birds", "covers": "grocery", "grocery": "birds"}  # and whose photos are clutter
TRAIN = "train"
SHOWN, ASKED = 8, 2  # photos of an item in the gallery, and queries
COSTED, ROUNDS = 100, 3  # photos, and turns of searches with one look and with two
CENTRE = 0.7  # of the side, for gallery photos that are the mean of the whole and the centre
BATCH = 32
ONE, TWO, CENTRED = "one look", "two looks", "two looks, gallery photos with their centre"


@dataclass(frozen=True)
class Looks:
    """First and second looks at n photos."""

    first: np.ndarray  # (n, d)
    second: np.ndarray  # (n, d), zeros where there is none
    items: np.ndarray  # (n,)

    def of(self, items: np.ndarray) -> Looks:
        """Return the photos of some items."""
        chosen = np.isin(self.items, items)
        return Looks(self.first[chosen], self.second[chosen], self.items[chosen])


@dataclass(frozen=True)
class PhotoSet:
    """The photos of a set: for the gallery, with the vectors of their centres, and as queries by view."""

    shown: Looks
    centres: np.ndarray  # (n, d)
    asked: Mapping[str, Looks]

    @cached_property
    def items(self) -> np.ndarray:
        """The items."""
        return np.unique(self.shown.items)


@dataclass(frozen=True)
class Division:
    """A gallery, its threshold, and the distances of queries by view."""

    tpir: Mapping[str, float]  # strict
    found: Mapping[str, float]  # at the served threshold
    fpir: Mapping[str, float]  # the same
    recall: Mapping[str, float]


def chosen(photos: Sequence[Photo]) -> tuple[list[Photo], list[Photo]]:
    """Return the photos for the gallery and the queries: of items outside the training partition, evenly spaced."""
    shown, asked = [], []
    for item in sorted({photo.item_id for photo in photos}):
        own = [photo for photo in photos if photo.item_id == item]
        spaced = np.unique(np.linspace(0, len(own) - 1, min(SHOWN + ASKED, len(own))).round().astype(int))
        own = [own[place] for place in generator_of(item).permutation(spaced).tolist()]
        asked += own[:ASKED]
        shown += own[ASKED:]
    return shown, asked


def looked_at(embedder: Embedder, images: Sequence[Image.Image], items: Sequence[str]) -> Looks:
    """Return both looks at images."""
    first, second = [], []
    for start in range(0, len(images), BATCH):
        some = images[start : start + BATCH]
        made = embedder.embed_pixels(np.stack([embedder.square(image) for image in some]))
        again = second_vectors(embedder, [reduced(image, embedder.preprocessing) for image in some], made)
        first.append(made.vectors)
        second += [look[0] if len(look) else np.zeros(embedder.dim, np.float32) for look in again]
    return Looks(np.concatenate(first), np.array(second), np.array(items))


def load(name: str, data: Path, embedder: Embedder) -> PhotoSet:
    """Return a set with its queries in each view."""
    listed, clutter = (_judged(data, each) for each in (name, SETS[name]))

    def other(generator: np.random.Generator) -> Image.Image:
        return open_image(clutter[int(generator.integers(len(clutter)))].read())

    shown, asked = chosen(listed)
    images, queries = ([open_image(photo.read()) for photo in photos] for photos in (shown, asked))
    of_views = {}
    for view, draw in tqdm(views(other).items(), desc=name):
        drawn = [
            draw(image, generator_of(f"{photo.photo_id} {view}")) for photo, image in zip(asked, queries, strict=True)
        ]
        of_views[view] = looked_at(embedder, drawn, [photo.item_id for photo in asked])
    centres = [embedder.square(centre(image)) for image in images]
    vectors = embedder.embed_pixels(np.stack(centres)).vectors
    return PhotoSet(looked_at(embedder, images, [photo.item_id for photo in shown]), vectors, of_views)


def _judged(data: Path, name: str) -> list[Photo]:
    photos = read_catalogue(data / "data" / name / f"{name}.csv")
    return [photo for photo in photos if photo.partition != TRAIN and photo.source != ICONIC]


def centre(image: Image.Image) -> Image.Image:
    """Return the centre of a photo."""
    width, height = image.size
    left, upper = (1 - CENTRE) / 2 * width, (1 - CENTRE) / 2 * height
    return image.crop((round(left), round(upper), round(width - left), round(height - upper)))


def divided(photos: PhotoSet, seed: int, *, looks: int, centred: bool = False) -> Division:
    """Halve the items at random, measure the gallery of one half, and search it with the queries of both.

    If a half has too few items for a threshold, the gallery has more.
    """
    known = np.random.default_rng(seed).permutation(photos.items)[: max(len(photos.items) // 2, LEAST_ITEMS + 1)]
    among = np.isin(photos.shown.items, known)
    vectors = photos.shown.first[among]
    if centred:
        pairs = np.stack([vectors, photos.centres[among]], axis=1)
        vectors = np.array([mean_photo(pair) for pair in pairs], dtype=np.float32)
    gallery = ArrayPhotos(vectors, photos.shown.items[among].tolist())
    distance = ItemDistance.default()
    ids = gallery.photos_at(np.arange(len(vectors)))
    second = PartVectors(np.array([each[0] for each in ids]), photos.shown.second[among][:, None])
    drawn = Drawing(gallery, distance).own(looks=second if looks > 1 else None)
    draws = AllDraws("", without_copies({OWN: drawn}), frozenset(), mark=gallery.mark, looks=looks > 1)
    point = measure(gallery, distance, draws=draws).required
    search = ItemSearch(gallery, distance)
    results = {view: _searched(search, gallery, queries, looks) for view, queries in photos.asked.items()}
    mated = {view: np.isin(queries.items, known) for view, queries in photos.asked.items()}
    plain, _ = results[AS_IT_IS]
    limit = _limit(plain[~mated[AS_IT_IS]])
    tpir, found, fpir, recall = {}, {}, {}, {}
    for view, (distances, first) in results.items():
        own, right = mated[view], first == photos.asked[view].items
        strict = min(limit, _limit(distances[~own]))
        tpir[view] = float((accepts(distances, strict) & right)[own].mean())
        found[view] = float((accepts(distances, point.threshold) & right)[own].mean())
        fpir[view] = float(accepts(distances, point.threshold)[~own].mean())
        recall[view] = float(right[own].mean())
    return Division(tpir, found, fpir, recall)


def _limit(distances: np.ndarray) -> float:
    """Return the largest threshold at which at most 5 % of unknown photos with these distances (n,) match."""
    allowed = int(TARGET * len(distances))
    return float(np.nextafter(np.sort(distances)[allowed], -np.inf))


def _searched(search: ItemSearch, gallery: ArrayPhotos, queries: Looks, looks: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance of the first item of each query (n,), and the item: the nearer of both looks."""
    names = np.array(gallery.item_ids)
    table = search.nearest(queries.first, 1)
    distances, items = table.distances[:, 0].copy(), names[table.items[:, 0]]
    rows = np.flatnonzero(queries.second.any(axis=1)) if looks > 1 else np.zeros(0, int)
    if len(rows):
        again = search.nearest(queries.second[rows], 1)
        nearer = again.distances[:, 0] < distances[rows]
        distances[rows[nearer]], items[rows[nearer]] = again.distances[nearer, 0], names[again.items[nearer, 0]]
    return distances, items


def main() -> None:
    """Measure and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--repetitions", type=int, default=20, help="Divisions of each set.")
    parser.add_argument("--only", choices=SETS, help="Measure this set alone.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    with Recorder("framing", arguments) as record, tempfile.TemporaryDirectory() as folder:
        bundles = {
            title: export_pretrained(Pretrained.load(name), Path(folder) / title)
            for title, name in (("Lite0", MODEL), ("MobileNet", str(data / OTHER_MODEL)))
        }
        sets = {
            f"{name}, {title}": load(name, data, bundle.embedder(threads=os.cpu_count() or 1))
            for title, bundle in bundles.items()
            for name in SETS
            if arguments.only in (None, name)
        }
        add_tables(record, sets, arguments.repetitions)
        record.table("queries", ("model", "photo", "looks", "runs of the model", "milliseconds", "of CPU time"))
        for title, bundle in bundles.items():
            for row in queries(bundle, data, Path(folder)):
                record.add(title, *row)
        record.table("cost", ("model", "look", "milliseconds of a photo"))
        for title, bundle in bundles.items():
            for look, spent in cost(bundle, _judged(data, "birds")[:COSTED]).items():
                record.add(title, look, f"{spent:.1f}")


def queries(bundle: Bundle, data: Path, folder: Path) -> Iterator[tuple[str, ...]]:
    """Yield the runs of the model, the milliseconds and the CPU time of a search, by kind of query and by looks.

    Both kinds of search are in the same gallery, of half of the birds, by thresholds of their own, in turns.
    """
    shown, asked = chosen(_judged(data, "birds"))
    known = set(sorted({photo.item_id for photo in shown})[::2])
    place = folder / f"{bundle.path.name} gallery"
    index_catalogue(bundle, [photo for photo in shown if photo.item_id in known], place, progress=False)
    once = Path(shutil.copytree(place, folder / f"{bundle.path.name} once"))
    with Gallery.open(once) as gallery:
        gallery.keep({Kept.LOOKS: None}, "one look")
        measure_gallery(bundle, gallery, rule="set").set_in(gallery)
    photos = {
        "known, as it is": [photo.read() for photo in asked if photo.item_id in known],
        "unknown, as it is": [photo.read() for photo in asked if photo.item_id not in known],
    }
    photos["known, half, plain"] = [
        encoded(on_plain(open_image(photo), generator_of(str(number)), share=HALF))
        for number, photo in enumerate(photos["known, as it is"])
    ]
    for kind, some in photos.items():
        spent: dict[str, list[tuple[float, float, float]]] = {ONE: [], TWO: []}
        for _ in range(ROUNDS):
            for way, searched in ((ONE, once), (TWO, place)):
                with Retriever.open(bundle.path, searched) as retriever:
                    spent[way].append(_spent(retriever, some))
        for way, each in spent.items():
            runs, wall, cpu = np.median(each, axis=0).tolist()
            yield kind, way, f"{runs:.2f}", f"{wall:.1f}", f"{cpu:.1f}"


def _spent(retriever: Retriever, photos: Sequence[bytes]) -> tuple[float, float, float]:
    """Return the runs of the model, the milliseconds and those of CPU time of a search."""
    retriever.search(photos[0])
    with patch.object(retriever.embedder, "embed_pixels", wraps=retriever.embedder.embed_pixels) as embed:
        wall, cpu = time.perf_counter(), time.process_time()
        for photo in photos:
            retriever.search(photo)
        wall, cpu = time.perf_counter() - wall, time.process_time() - cpu
    runs = sum(len(call.args[0]) for call in embed.call_args_list)
    return runs / len(photos), 1e3 * wall / len(photos), 1e3 * cpu / len(photos)


def encoded(photo: Image.Image) -> bytes:
    """Return a photo as JPEG."""
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=92)
    return file.getvalue()


def cost(bundle: Bundle, photos: Sequence[Photo]) -> dict[str, float]:
    """Return the milliseconds of CPU that a look at a photo takes, with one thread."""
    embedder = bundle.embedder()
    images = [open_image(photo.read(), min_side=embedder.preprocessing.min_side) for photo in photos]
    made = [embedder.embed_pixels(embedder.square(image)[None]) for image in images]

    def timed(work: Callable[[], object]) -> float:
        started = time.process_time()
        work()
        return 1e3 * (time.process_time() - started) / len(images)

    return {
        "the first: resize and embed": timed(
            lambda: [embedder.embed_pixels(embedder.square(image)[None]) for image in images]
        ),
        "the second: find, resize and embed": timed(
            lambda: [second_vectors(embedder, [image], first) for image, first in zip(images, made, strict=True)]
        ),
    }


def add_tables(record: Recorder, sets: Mapping[str, PhotoSet], repetitions: int) -> None:
    """Add a table of each rate by view, and the share of photos with a second look."""
    ways = {ONE: (1, False), TWO: (2, False), CENTRED: (2, True)}
    runs = {
        (name, way): [divided(photos, seed, looks=looks, centred=centred) for seed in range(repetitions)]
        for name, photos in tqdm(sets.items(), desc="halves")
        for way, (looks, centred) in ways.items()
    }
    shown = list(next(iter(sets.values())).asked)

    def mean(name: str, way: str, rate: str, view: str) -> float:
        return float(np.mean([getattr(division, rate)[view] for division in runs[name, way]]))

    record.table("sets", ("set", "items", "gallery photos", "queries"))
    for name, photos in sets.items():
        record.add(name, f"{len(photos.items)}", f"{len(photos.shown.items)}", f"{len(photos.asked[AS_IT_IS].items)}")
    columns = {
        "strict TPIR, one look": (ONE, "tpir"),
        "two looks": (TWO, "tpir"),
        "R@1, one look": (ONE, "recall"),
        "R@1, two": (TWO, "recall"),
        "served TPIR, one look": (ONE, "found"),
        "served TPIR, two": (TWO, "found"),
        "FPIR, one look": (ONE, "fpir"),
        "FPIR, two": (TWO, "fpir"),
    }
    record.table("views", ("photo", *columns, "photos with a second look"))
    for view in shown:
        values = [np.mean([mean(name, way, rate, view) for name in sets]) for way, rate in columns.values()]
        share = np.mean([photos.asked[view].second.any(axis=1).mean() for photos in sets.values()])
        record.add(view, *(f"{value:.3f}" for value in values), f"{share:.2f}")
    for title, way, rate in (
        ("strict TPIR, one look", ONE, "tpir"),
        ("strict TPIR, two looks", TWO, "tpir"),
        ("FPIR, one look", ONE, "fpir"),
        ("FPIR, two looks", TWO, "fpir"),
        ("strict TPIR with centres", CENTRED, "tpir"),
    ):
        record.table(title, ("set", *shown))
        for name in sets:
            record.add(name, *(f"{mean(name, way, rate, view):.3f}" for view in shown))


if __name__ == "__main__":
    main()
