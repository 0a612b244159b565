"""What promises for vectors that lie elsewhere realise: short lists, growth, filters, and the usual ways beside them.

    python -m research.benchmarks.promise_vectors --output runs/item_distance

Half of the items of a set are the collection, which `Promise.measure` measures, and the others are unknown. One photo
of each item of the collection is held out and asked, and so are up to three photos of each unknown item. The sets are
embeddings by CLIP that others made, and photos embedded by two pretrained models as they are. FPIR weights unknown
items equally.

Shapes: n photos, q queries, u items, d = embedding size.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from index.photos.arrays import ArrayPhotos
from index.search.distance import accepts
from index.search.item_distance import ItemDistance
from index.search.item_search import ItemSearch
from retrieval import Promise
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.errors import CalibrationError
from retrieval.measuring.fpir import LEAST_ITEMS
from retrieval.promise.levels import Level, Limit
from training.export.pretrained import Pretrained

from .anchoring import TARGET
from .item_distance import item_weights
from .item_distance_data import MODEL, spread
from .pretrained import features_in, unit
from .promise import MOST
from .tables import NONE, Recorder, parser_of

OTHER_MODEL = Path("weights/mobilenet_v1_0.75_224")  # in the folder of test data
PHOTO_SETS = ("birds", "cars", "grocery")
TARGETS = (0.10, 0.01)  # beside TARGET
ICONIC = "iconic"  # source of pictures that no shop took
STRANGE = 3  # queries of an unknown item
NEIGHBOURS = (10, 20, 50, 100)
USUAL = 20  # neighbours
FEW = 3  # photos of an item in the collections with few
FILTERED = 10  # one in so many items passes the filter
FIXED, PERCENTILE, RATIO = 0.8, 99, 0.8  # the usual ways: a score, of pairs of different items, of distances (Lowe)
STEPS = 4000  # of a cosine, in which pairs are counted
NO_MATCH = ""
MEAN, TOGETHER = "mean of the sets", "all together"
PRINTED = "flowers, CLIP"  # whose table the documentation shows
SCORE, DISTANCE, DECIDE = "score", "item distance", "decide()"
DECIDED = f"{DECIDE} {USUAL}"
USUAL_WAYS = (
    f"a fixed score of {FIXED}",
    "the best F1 on pairs of photos",
    f"the {PERCENTILE}th percentile of pairs of different items",
    f"Lowe's ratio of {RATIO}",
)


@dataclass(frozen=True)
class Photos:
    """Unit vectors (n, d) and the item of each (n,)."""

    vectors: np.ndarray
    items: np.ndarray

    def where(self, chosen: np.ndarray) -> Photos:
        """Return the photos of a mask or of positions."""
        return Photos(self.vectors[chosen], self.items[chosen])

    def of(self, items: np.ndarray) -> Photos:
        """Return the photos of some items."""
        return self.where(np.isin(self.items, items))

    def few(self, most: int, generator: np.random.Generator) -> np.ndarray:
        """Return the positions of at most some photos of each item, at random."""
        order = generator.permutation(len(self.items))
        by_item = order[np.argsort(self.items[order], kind="stable")]
        _, starts, counts = np.unique(self.items[by_item], return_index=True, return_counts=True)
        return by_item[np.arange(len(by_item)) - np.repeat(starts, counts) < most]

    def beside(self, further: Photos) -> Photos:
        """Return these photos and further ones."""
        parts = [self, further]
        return Photos(np.concatenate([p.vectors for p in parts]), np.concatenate([p.items for p in parts]))


class Rates(NamedTuple):
    """Shares of queries: of unknown items with a match, and of known items whose item is the first match."""

    fpir: float
    tpir: float
    is_kept: float = np.nan  # 1 if the FPIR is at most its promised upper bound


@dataclass(frozen=True)
class Division:
    """A collection, with queries for its items and for unknown ones."""

    collection: Photos
    mated: Photos
    unknown: Photos

    @classmethod
    def of(cls, photos: Photos, known: np.ndarray, unknown: np.ndarray, generator: np.random.Generator) -> Division:
        """Hold out a photo of each known item that has two."""
        shown, strange = photos.of(known), photos.of(unknown)
        asked = shown.few(1, generator)
        _, numbers, counts = np.unique(shown.items, return_inverse=True, return_counts=True)
        asked = asked[counts[numbers[asked]] > 1]
        rest = ~np.isin(np.arange(len(shown.items)), asked)
        return cls(shown.where(rest), shown.where(asked), strange.where(strange.few(STRANGE, generator)))

    def rates(self, answers: Callable[[Photos], np.ndarray], limit: Limit | None = None) -> Rates:
        """Return the rates of a function from queries to the items that match (q,), "" for no match."""
        right = answers(self.mated) == self.mated.items
        fpir = float(item_weights(self.unknown.items) @ (answers(self.unknown) != NO_MATCH))
        return Rates(fpir, float(right.mean()), np.nan if limit is None else float(fpir <= limit.fpir_upper))


@dataclass(frozen=True)
class Search:
    """An exact search of a collection, as a database makes it, and what follows from what it returns."""

    photos: Photos

    def cosines(self, asked: Photos) -> np.ndarray:
        """Return the cosines (q, n) of queries and photos."""
        return np.asarray(asked.vectors.astype(np.float64) @ self.photos.vectors.astype(np.float64).T)

    def of_items(self, asked: Photos) -> tuple[np.ndarray, np.ndarray]:
        """Return the items (u,), and the cosines (q, u) of queries and the nearest photo of each."""
        order = np.argsort(self.photos.items, kind="stable")
        items, starts = np.unique(self.photos.items[order], return_index=True)
        return items, np.maximum.reduceat(self.cosines(asked)[:, order], starts, axis=1)

    def by_score(self, asked: Photos, least: float) -> np.ndarray:
        """Return the item (q,) of the nearest photo, where its cosine is high enough."""
        items, cosines = self.of_items(asked)
        return np.where(cosines.max(axis=1) >= least, items[cosines.argmax(axis=1)], NO_MATCH)

    def by_ratio(self, asked: Photos, most: float) -> np.ndarray:
        """Return the nearest item (q,), where the ratio of its distance to that of the second one is low enough."""
        items, cosines = self.of_items(asked)
        first, second = np.sqrt(np.maximum(2 - 2 * np.sort(cosines, axis=1)[:, :-3:-1], 0)).T
        return np.where(first <= most * second, items[cosines.argmax(axis=1)], NO_MATCH)

    def by_distance(self, asked: Photos, most: float) -> np.ndarray:
        """Return the first item (q,) of a full search by item distance, where it is near enough."""
        photos = ArrayPhotos(self.photos.vectors, self.photos.items)
        first = ItemSearch(photos, ItemDistance.default()).nearest(asked.vectors, 1)
        return np.where(accepts(first.distances[:, 0], most), photos.item_ids[first.items[:, 0]], NO_MATCH)

    def decided(self, asked: Photos, promise: Promise, count: int) -> np.ndarray:
        """Return the item (q,) that a promise decides on by some neighbours."""
        cosines = self.cosines(asked)
        rows = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        scores, names = np.take_along_axis(cosines, rows, axis=1).tolist(), self.photos.items[rows].tolist()
        neighbours = [list(zip(*each, strict=True)) for each in zip(names, scores, strict=True)]
        answers = promise.decide(asked.vectors, neighbours)
        return np.array([answer.item_id if answer.matched else NO_MATCH for answer in answers])


def at_level(division: Division, search: Search, level: Level) -> dict[str, Rates]:
    """Return the rates at a level by score and by item distance in a full search, of those that have a threshold."""
    rates = {}
    if level.score is not None:
        least = level.score.threshold
        rates[SCORE] = division.rates(lambda asked: search.by_score(asked, least), level.score)
    if level.item_distance is not None:
        most = level.item_distance.threshold
        rates[DISTANCE] = division.rates(lambda asked: search.by_distance(asked, most), level.item_distance)
    return rates


def decided(division: Division, search: Search, promise: Promise, counts: Sequence[int]) -> dict[str, Rates]:
    """Return the rates of `decide` with some neighbours, none where the promise has no threshold for it."""
    if promise.level.item_distance is None:
        return {}
    return {
        f"{DECIDE} {count}": division.rates(partial(search.decided, promise=promise, count=count)) for count in counts
    }


def every_way(
    division: Division, search: Search, promise: Promise | None, counts: Sequence[int] = (USUAL,)
) -> dict[str, Rates]:
    """Return the rates of a promise, if there is one: by score, by item distance in a full search, and by `decide`."""
    if promise is None:
        return {}
    return at_level(division, search, promise.level) | decided(division, search, promise, counts)


def named(name: str, rates: Mapping[str, Rates]) -> dict[str, Rates]:
    """Return rates with a word before the name of each."""
    return {f"{name} {way}": each for way, each in rates.items()}


def promised(photos: Photos) -> Promise | None:
    """Return the promise of a collection, None if no threshold finds anything."""
    try:
        return Promise.measure(photos.vectors, photos.items, target_fpir=TARGET)
    except CalibrationError:
        return None


def usual_scores(collection: Photos) -> Iterator[float]:
    """Yield the cosines that the usual ways choose by the pairs of photos of a collection."""
    cosines = collection.vectors @ collection.vectors.T
    steps = np.clip((cosines + 1) * STEPS / 2, 0, STEPS).astype(np.int64)
    same = collection.items[:, None] == collection.items[None]
    np.fill_diagonal(same, val=False)
    other = collection.items[:, None] != collection.items[None]
    right, wrong = (np.bincount(steps[mask], minlength=STEPS + 1)[::-1].cumsum()[::-1] for mask in (same, other))
    scores = np.arange(STEPS + 1) * 2 / STEPS - 1
    yield FIXED
    yield float(scores[np.argmax(2 * right / (right + wrong + right[0]))])
    yield float(scores[np.argmax(wrong <= (1 - PERCENTILE / 100) * wrong[0])])


def halved(photos: Photos, seed: int) -> dict[str, Rates]:
    """Return the rates of every way on a random half of the items."""
    generator = np.random.default_rng(seed)
    items = generator.permutation(np.unique(photos.items))
    half = len(items) // 2
    division = Division.of(photos, items[:half], items[half:], generator)
    search = Search(division.collection)
    rates = {
        f"first by {SCORE}": division.rates(lambda asked: search.by_score(asked, -np.inf)),
        f"first by {DISTANCE}": division.rates(lambda asked: search.by_distance(asked, np.inf)),
        USUAL_WAYS[-1]: division.rates(lambda asked: search.by_ratio(asked, RATIO)),
    }
    for name, least in zip(USUAL_WAYS, usual_scores(division.collection), strict=False):
        rates[name] = division.rates(partial(search.by_score, least=least))
    promise = promised(division.collection)
    rates |= every_way(division, search, promise, NEIGHBOURS)
    if promise is not None and promise.drawn is not None:
        for target in TARGETS:
            level = promise.drawn.level(target, promise.metric)
            rates |= {f"{name} {target}": each for name, each in at_level(division, search, level).items()}
    passing = items[: round(half / FILTERED)]
    inside = Division(division.collection.of(passing), division.mated.of(passing), division.unknown)
    rates |= named("filtered", every_way(inside, Search(inside.collection), promise))
    return rates | named("few", with_few(division, generator))


def with_few(division: Division, generator: np.random.Generator) -> dict[str, Rates]:
    """Return the rates with few photos of each item in the collection."""
    shown = division.collection.where(division.collection.few(FEW, generator))
    return every_way(division, Search(shown), promised(shown))


def grown(photos: Photos, seed: int) -> dict[str, Rates]:
    """Return the rates of a third of the items before and after another third is added, by a promise of the first."""
    generator = np.random.default_rng(seed)
    items = generator.permutation(np.unique(photos.items))
    third = len(items) // 3
    division = Division.of(photos, items[:third], items[2 * third :], generator)
    promise = promised(division.collection)
    every = division.collection.beside(photos.of(items[third : 2 * third]))
    before, after = (every_way(division, Search(each), promise) for each in (division.collection, every))
    return named("before", before) | named("after", after)


class Figures:
    """The rates of repetitions, by set and way."""

    def __init__(self, runs: Mapping[str, Sequence[Mapping[str, Rates]]]) -> None:
        """Keep the runs of each set. A repetition without a threshold lacks its ways."""
        self._runs = runs

    def of(self, way: str, rate: str) -> dict[str, np.ndarray]:
        """Return a rate of a way in each repetition, by set."""
        sets = {name: [run[way] for run in runs if way in run] for name, runs in self._runs.items()}
        return {name: np.array([getattr(each, rate) for each in rates]) for name, rates in sets.items() if rates}

    def column(self, way: str, rate: str, *, spread: bool = False) -> dict[str, str]:
        """Return the means of a rate by set, with `spread` also standard deviations, and last the mean of the sets."""
        values = self.of(way, rate)
        cells = {
            name: f"{each.mean():.3f} ± {each.std():.3f}" if spread else f"{each.mean():.3f}"
            for name, each in values.items()
        }
        return cells | {MEAN: f"{np.mean([each.mean() for each in values.values()]):.3f}"} if values else {}

    def ratio(self, way: str, to: str) -> dict[str, str]:
        """Return the TPIR of a way as a ratio to that of another way, by set, and last the mean of the sets."""
        first, second = self.of(way, "tpir"), self.of(to, "tpir")
        ratios = {name: first[name].mean() / second[name].mean() for name in first if name in second}
        return {name: f"{ratio:.2f}" for name, ratio in (ratios | {MEAN: np.mean(list(ratios.values()))}).items()}

    def kept(self, way: str) -> dict[str, str]:
        """Return in how many repetitions the promised bound was kept, by set, and last in all together."""
        values = self.of(way, "is_kept")
        every = np.concatenate([np.zeros(0), *values.values()])
        cells = {name: f"{each.sum():.0f} of {len(each)}" for name, each in values.items()}
        return cells | {TOGETHER: f"{every.mean():.1%}"}

    def lists(self, ways: Mapping[str, str]) -> dict[str, dict[str, str]]:
        """Return the columns of FPIR and of TPIR by lists of some lengths, each with the name of its way."""
        rates = ("fpir", "tpir")
        return {f"{rate.upper()}, {end}": self.column(way, rate) for rate in rates for end, way in ways.items()}

    def count(self, way: str) -> dict[str, str]:
        """Return how many repetitions have a way, by set."""
        return {name: f"{len(each)}" for name, each in self.of(way, "fpir").items()}

    def range(self, way: str) -> list[str]:
        """Return the mean, the least and the greatest FPIR over sets, and the same of TPIR."""
        rates = [[each.mean() for each in self.of(way, rate).values()] for rate in ("fpir", "tpir")]
        return [f"{value:.3f}" for each in rates for value in (np.mean(each), min(each), max(each))]


def tables_of(figures: Figures) -> Iterator[tuple[str, dict[str, dict[str, str]]]]:
    """Yield the name and the columns of each table of sets."""
    ways, both = {SCORE: SCORE, DISTANCE: DISTANCE, DECIDE: DECIDED}, (SCORE, DISTANCE)
    yield (
        "rates",
        {
            **{f"FPIR by {name}": figures.column(way, "fpir", spread=True) for name, way in ways.items()},
            **{f"TPIR by {name}": figures.column(way, "tpir") for name, way in ways.items()},
            "item distance / score": figures.ratio(DISTANCE, SCORE),
            **{f"R@1 by {name}": figures.column(f"first by {name}", "tpir") for name in both},
        },
    )
    levels = {TARGET: "", **{target: f" {target}" for target in TARGETS}}
    yield "bounds", {f"{to:.2f} by {way}": figures.kept(f"{way}{end}") for to, end in levels.items() for way in both}
    for target in TARGETS:
        yield (
            f"target {target:.2f}",
            {
                **{f"FPIR by {way}": figures.column(f"{way} {target}", "fpir", spread=True) for way in both},
                **{f"TPIR by {way}": figures.column(f"{way} {target}", "tpir") for way in both},
            },
        )
    lists = {"all": DISTANCE} | {f"{count}": f"{DECIDE} {count}" for count in NEIGHBOURS}
    yield "neighbours", figures.lists(lists)
    few = {"all": f"few {DISTANCE}", f"{USUAL}": f"few {DECIDED}"}
    yield "few photos", figures.lists(few) | {"halves with a threshold": figures.count(few["all"])}
    rates = [*(("fpir", name, way) for name, way in ways.items()), ("tpir", DECIDE, DECIDED)]
    yield (
        "growth",
        {
            f"{rate.upper()} by {name}, {when}": figures.column(f"{when} {way}", rate)
            for rate, name, way in rates
            for when in ("before", "after")
        },
    )
    inside = {SCORE: SCORE, DECIDE: DECIDED, "item distance with rivals inside alone": DISTANCE}
    yield "filter", {f"FPIR by {name}": figures.column(f"filtered {way}", "fpir") for name, way in inside.items()}


def add_tables(record: Recorder, figures: Figures) -> None:
    """Add the tables of rates."""
    for name, columns in tables_of(figures):
        rows = sorted({row: None for column in columns.values() for row in column}, key=(MEAN, TOGETHER).__contains__)
        cells = ((row, *(column.get(row, NONE) for column in columns.values())) for row in rows)
        record.table(name, ("set", *columns), cells)
    head = ("match if", "FPIR", "least FPIR", "greatest FPIR", "TPIR", "least TPIR", "greatest TPIR")
    ours = {"the promised score": SCORE, f"decide() with {USUAL} neighbours": DECIDED}
    every = ours | {way: way for way in USUAL_WAYS}
    record.table("naive", head, ((name, *figures.range(way)) for name, way in every.items()))


def sets(data: Path, output: Path) -> Iterator[tuple[str, Photos]]:
    """Yield the sets: vectors that others made, and photos embedded by pretrained models."""
    for path in sorted((data / "vectors").glob("clip_*.npz")):
        arrays = np.load(path, allow_pickle=False)
        yield f"{path.stem.removeprefix('clip_')}, CLIP", Photos(arrays["vectors"], arrays["items"].astype(str))
    for title, ending, name in (("Lite0", "", MODEL), ("MobileNet", "-mobilenet", str(data / OTHER_MODEL))):
        model = Pretrained.load(name)
        for each in PHOTO_SETS:
            listed = read_catalogue(data / "data" / each / f"{each}.csv")
            features = features_in(output / f"{each}{ending}.npy", model, listed)
            every = Photos(features, np.array([photo.item_id for photo in listed]))
            yield f"{each}, {title}", every.where(some_of(listed))


def some_of(listed: Sequence[Photo]) -> np.ndarray:
    """Return the positions of at most MOST photos of each item and shop, evenly spaced, without pictures of makers."""
    keys = np.array([f"{photo.item_id} {photo.source}" for photo in listed])
    rows = np.concatenate([spread(np.flatnonzero(keys == key), MOST) for key in np.unique(keys)])
    return np.sort(rows[[listed[row].source != ICONIC for row in rows.tolist()]])


def printed(photos: Photos) -> list[str]:
    """Return the lines that a promise of a whole set prints."""
    return str(Promise.measure(photos.vectors, photos.items, target_fpir=TARGET)).splitlines()


def main() -> None:
    """Measure and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/item_distance"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=20, help="Divisions of each set.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    with Recorder("promise_vectors", arguments) as record:
        record.table("sets", ("set", "items", "photos", "photos of an item"))
        runs = {}
        for name, given in sets(data, arguments.output):
            photos = Photos(unit(given.vectors.astype(np.float32)), given.items)
            counts = np.unique(photos.items, return_counts=True)[1]
            record.add(name, f"{len(counts)}", f"{len(photos.items):,}", f"{counts.min()} to {counts.max()}")
            is_large = len(counts) // 3 >= LEAST_ITEMS
            seeds = tqdm(range(arguments.repetitions), desc=name)
            runs[name] = [halved(photos, seed) | (grown(photos, seed) if is_large else {}) for seed in seeds]
            if name == PRINTED:
                lines = printed(given)
        add_tables(record, Figures(runs))
        record.table("printed", ("line",), ([line] for line in lines))


if __name__ == "__main__":
    main()
