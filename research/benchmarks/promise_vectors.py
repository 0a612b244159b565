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
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import CalibrationError
from retrieval.measuring.fpir import LEAST_ITEMS
from retrieval.promise.levels import Level, Limit
from training.export.pretrained import Pretrained

from .anchoring import TARGET
from .item_distance import item_weights
from .item_distance_data import MODEL
from .pretrained import features_in, unit
from .tables import NONE, Recorder, parser_of

OTHER_MODEL = Path("weights/mobilenet_v1_0.75_224")  # in the folder of test data
PHOTO_SETS = ("birds", "cars", "grocery")
TARGETS = (0.10, 0.01)  # beside TARGET
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
    distance: ItemDistance

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
        first = ItemSearch(photos, self.distance).nearest(asked.vectors, 1)
        return np.where(accepts(first.distances[:, 0], most), photos.item_ids[first.items[:, 0]], NO_MATCH)

    def decided(self, asked: Photos, promise: Promise, count: int) -> np.ndarray:
        """Return the item (q,) that a promise decides on by some neighbours."""
        cosines = self.cosines(asked)
        rows = np.argsort(-cosines, axis=1, kind="stable")[:, :count]
        scores, names = np.take_along_axis(cosines, rows, axis=1).tolist(), self.photos.items[rows].tolist()
        neighbours = [list(zip(*each, strict=True)) for each in zip(names, scores, strict=True)]
        answers = promise.decide(asked.vectors, neighbours)
        return np.array([answer.item_id if answer.matched else NO_MATCH for answer in answers])


def limits(level: Level) -> tuple[Limit, Limit]:
    """Return the limits of a level on the score and on the item distance; raise CalibrationError if it lacks them."""
    if level.score is None or level.item_distance is None:
        raise CalibrationError(level.why)
    return level.score, level.item_distance


def at_level(division: Division, search: Search, level: Level) -> dict[str, Rates]:
    """Return the rates at a level by score and by item distance, in a full search."""
    score, distance = limits(level)
    return {
        SCORE: division.rates(lambda asked: search.by_score(asked, score.threshold), score),
        DISTANCE: division.rates(lambda asked: search.by_distance(asked, distance.threshold), distance),
    }


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
    promise = Promise.measure(division.collection.vectors, division.collection.items, target_fpir=TARGET)
    assert promise.drawn is not None  # noqa: S101 (a measurement has draws)
    search = Search(division.collection, promise.distance)
    rates = at_level(division, search, promise.level)
    rates[f"first by {SCORE}"] = division.rates(lambda asked: search.by_score(asked, -np.inf))
    rates[f"first by {DISTANCE}"] = division.rates(lambda asked: search.by_distance(asked, np.inf))
    for count in NEIGHBOURS:
        rates[f"{DECIDE} {count}"] = decided(division, search, promise, count)
    for target in TARGETS:
        level = promise.drawn.level(target, promise.metric)
        if level.score is not None and level.item_distance is not None:
            rates |= {f"{name} {target}": each for name, each in at_level(division, search, level).items()}
    for name, least in zip(USUAL_WAYS, usual_scores(division.collection), strict=False):
        rates[name] = division.rates(partial(search.by_score, least=least))
    rates[USUAL_WAYS[-1]] = division.rates(lambda asked: search.by_ratio(asked, RATIO))
    return rates | filtered(division, promise, items) | few(division, generator)


def every_way(division: Division, search: Search, promise: Promise) -> dict[str, Rates]:
    """Return the rates of a promise by score, by item distance in a full search, and by `decide`."""
    return at_level(division, search, promise.level) | {DECIDE: decided(division, search, promise)}


def named(name: str, rates: Mapping[str, Rates]) -> dict[str, Rates]:
    """Return rates with a word before the name of each."""
    return {f"{name} {way}": each for way, each in rates.items()}


def decided(division: Division, search: Search, promise: Promise, count: int = USUAL) -> Rates:
    """Return the rates of `decide` with some neighbours."""
    return division.rates(lambda asked: search.decided(asked, promise, count), limits(promise.level)[1])


def filtered(division: Division, promise: Promise, items: np.ndarray) -> dict[str, Rates]:
    """Return the rates where only a tenth of the items passes the filter of a search."""
    passing = items[: round(promise.items / FILTERED)]
    inside = Search(division.collection.of(passing), promise.distance)
    within = Division(inside.photos, division.mated.of(passing), division.unknown)
    return named("filtered", every_way(within, inside, promise))


def few(division: Division, generator: np.random.Generator) -> dict[str, Rates]:
    """Return the rates with few photos of each item in the collection."""
    shown = division.collection.where(division.collection.few(FEW, generator))
    promise = Promise.measure(shown.vectors, shown.items, target_fpir=TARGET)
    return named("few", every_way(division, Search(shown, promise.distance), promise))


def grown(photos: Photos, seed: int) -> dict[str, Rates]:
    """Return the rates of a third of the items before and after another third is added, by a promise of the first."""
    generator = np.random.default_rng(seed)
    items = generator.permutation(np.unique(photos.items))
    third = len(items) // 3
    known, added, unknown = items[:third], items[third : 2 * third], items[2 * third :]
    division = Division.of(photos, known, unknown, generator)
    promise = Promise.measure(division.collection.vectors, division.collection.items, target_fpir=TARGET)
    rates: dict[str, Rates] = {}
    for name, every in {"before": division.collection, "after": division.collection.beside(photos.of(added))}.items():
        rates |= named(name, every_way(division, Search(every, promise.distance), promise))
    return rates


class Figures:
    """The rates of repetitions, by set and way."""

    def __init__(self, runs: Mapping[str, Sequence[Mapping[str, Rates]]]) -> None:
        """Keep the runs of the sets in which every repetition has a way."""
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
        ratios = {name: first[name].mean() / second[name].mean() for name in first}
        return {name: f"{ratio:.2f}" for name, ratio in (ratios | {MEAN: np.mean(list(ratios.values()))}).items()}

    def kept(self, way: str) -> dict[str, str]:
        """Return in how many repetitions the promised bound was kept, by set, and last in all together."""
        values = self.of(way, "is_kept")
        every = np.concatenate(list(values.values()))
        cells = {name: f"{each.sum():.0f} of {len(each)}" for name, each in values.items()}
        return cells | {TOGETHER: f"{every.mean():.1%}"}

    def range(self, way: str) -> list[str]:
        """Return the mean, the least and the greatest FPIR over sets, and the same of TPIR."""
        rates = [[each.mean() for each in self.of(way, rate).values()] for rate in ("fpir", "tpir")]
        return [f"{value:.3f}" for each in rates for value in (np.mean(each), min(each), max(each))]


def add_table(record: Recorder, name: str, columns: Mapping[str, Mapping[str, str]]) -> None:
    """Add a table of columns, each with the cells of the sets."""
    rows = list(next(iter(columns.values())))
    record.table(
        name, ("set", *columns), ((row, *(cells.get(row, NONE) for cells in columns.values())) for row in rows)
    )


def add_tables(record: Recorder, figures: Figures) -> None:
    """Add the tables of rates."""
    ways = {SCORE: SCORE, DISTANCE: DISTANCE, DECIDE: f"{DECIDE} {USUAL}"}
    both = (SCORE, DISTANCE)
    add_table(
        record,
        "rates",
        {f"FPIR by {name}": figures.column(way, "fpir", spread=True) for name, way in ways.items()}
        | {f"TPIR by {name}": figures.column(way, "tpir") for name, way in ways.items()}
        | {"item distance / score": figures.ratio(DISTANCE, SCORE)}
        | {f"R@1 by {name}": figures.column(f"first by {name}", "tpir") for name in both},
    )
    levels = {TARGET: "", **{target: f" {target}" for target in TARGETS}}
    add_table(
        record,
        "bounds",
        {f"{target:.2f} by {way}": figures.kept(f"{way}{end}") for target, end in levels.items() for way in both},
    )
    for target in TARGETS:
        add_table(
            record,
            f"target {target:.2f}",
            {f"FPIR by {way}": figures.column(f"{way} {target}", "fpir", spread=True) for way in both}
            | {f"TPIR by {way}": figures.column(f"{way} {target}", "tpir") for way in both},
        )
    lists = {"all": DISTANCE} | {f"{count}": f"{DECIDE} {count}" for count in NEIGHBOURS}
    short = {"all": f"few {DISTANCE}", f"{USUAL}": f"few {DECIDE}"}
    for name, ends in {"neighbours": lists, "few photos": short}.items():
        titles = {"fpir": "FPIR, {}", "tpir": "TPIR, {}"}
        add_table(
            record,
            name,
            {
                title.format(end): figures.column(way, rate)
                for rate, title in titles.items()
                for end, way in ends.items()
            },
        )
    grown_ways = [*(("fpir", way) for way in ways), ("tpir", DECIDE)]
    add_table(
        record,
        "growth",
        {
            f"{rate.upper()} by {way}, {when}": figures.column(f"{when} {way}", rate)
            for rate, way in grown_ways
            for when in ("before", "after")
        },
    )
    titles = {SCORE: SCORE, DECIDE: DECIDE, DISTANCE: "item distance with rivals inside alone"}
    add_table(
        record,
        "filter",
        {f"FPIR by {title}": figures.column(f"filtered {way}", "fpir") for way, title in titles.items()},
    )
    columns = ("match if", "FPIR", "least FPIR", "greatest FPIR", "TPIR", "least TPIR", "greatest TPIR")
    promised = {"the promised score": SCORE, f"decide() with {USUAL} neighbours": ways[DECIDE]}
    every = promised | {way: way for way in USUAL_WAYS}
    record.table("naive", columns, ((name, *figures.range(way)) for name, way in every.items()))


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
            yield f"{each}, {title}", Photos(features, np.array([photo.item_id for photo in listed]))


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
