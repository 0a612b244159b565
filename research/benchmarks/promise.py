"""What the thresholds of galleries realise: by size, for photos of many kinds, while a gallery grows, in simulations.

    python -m research.benchmarks.promise --output runs/item_distance

Half of the items of a set are known: their gallery photos are indexed, the gallery's own draws set the threshold for
FPIR 5 % by the item distance, and query photos of known and of unknown items search it, all by the code that serves.
Simulated worlds have items in clusters of different density, with photos that vary by the spread of the item. The sets
of photos are embedded by a pretrained model as it is. FPIR weights items equally.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from index.photos.arrays import ArrayPhotos
from index.search.item_distance import ItemDistance
from index.search.item_search import ItemSearch
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import CalibrationError
from retrieval.measuring.drawing import Drawing
from retrieval.measuring.draws import OWN, AllDraws, Probes
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.labelled import by_source, query_shift
from retrieval.measuring.point import CERTIFIED, Point
from retrieval.measuring.rule import set_threshold
from training.export.pretrained import Pretrained

from .anchoring import NOTHING, TARGET
from .item_distance import item_weights, quantile, share_within
from .item_distance_data import MODEL, Sets, spread
from .pretrained import features_in, in_gallery, unit
from .tables import NONE, Recorder, parser_of

DISTANCE = ItemDistance()
DIM, PHOTOS = 24, 3  # of a simulated world; photos per item in the gallery
SIZES = (50, 100, 200, 400)  # known items of a gallery of photos
MOST = 12  # photos of an item in one shop of grocery; birds and cars have as many
LABELLED = 25  # labelled photos of known items, and of unknown ones
TWIN = "~2"  # ending of the second id of an item
SPLIT, NEAR_COPIES, NOISE = 0.2, 3, 0.01  # share of items under two ids; copies of a photo in a burst, and their noise
KNOWN, EACH = 100, (1, 2, 5, 20, 50)  # items of a world, and gallery photos of each, to compare
GROWTH = 0.1  # share of items that are added


@dataclass(frozen=True)
class Photos:
    """Unit vectors (n, d) with their items (n,), whether they are gallery photos (n,), and groups of items, if any."""

    vectors: np.ndarray
    items: np.ndarray
    in_gallery: np.ndarray
    groups: np.ndarray | None = None

    def where(self, chosen: np.ndarray) -> Photos:
        """Return the photos of a mask or of positions."""
        groups = None if self.groups is None else self.groups[chosen]
        return Photos(self.vectors[chosen], self.items[chosen], self.in_gallery[chosen], groups)

    def of(self, items: np.ndarray) -> Photos:
        """Return the photos of some products, under whatever id."""
        return self.where(np.isin(products(self.items), items))

    @property
    def shown(self) -> Photos:
        """The gallery photos."""
        return self.where(self.in_gallery)

    @property
    def asked(self) -> Photos:
        """The query photos."""
        return self.where(~self.in_gallery)


@dataclass(frozen=True)
class World:
    """A kind of simulated world: items in crowds, whose width varies, with photos that vary too."""

    items: int  # that are known
    one_in: int = 1  # one in so many worlds is of this kind
    strangers: int = 1000  # unknown items; so few would decide by chance whether 3,000 known ones keep 5 %
    crowds: int = 40
    widths: tuple[float, float] = (0.5, 1.2)
    spread: tuple[float, float] = (0.5, 1.0)  # of the photos of an item


WORLDS = {
    "100": World(100),
    "400": World(400),
    "3000": World(3000, 2, 20_000),
    "2000, in families of about three": World(2000, 4, 5000, 667, (0.2, 0.8), (0.2, 0.2)),
}


def products(items: np.ndarray) -> np.ndarray:
    """Return the products (n,) of item ids, of which a product may have two."""
    return np.asarray(np.char.partition(items, TWIN)[:, 0])


def world(generator: np.random.Generator, kind: World, photos: int = PHOTOS) -> Photos:
    """Return a simulated world: photos of some items for the gallery, a query for each and for many others."""
    items, count = kind.items, kind.items + kind.strangers
    centres = generator.normal(size=(kind.crowds, DIM))
    widths = generator.uniform(*kind.widths, size=(kind.crowds, 1))
    crowd, spread = generator.integers(kind.crowds, size=count), generator.uniform(*kind.spread, size=(count, 1))
    places = centres[crowd] + widths[crowd] * generator.normal(size=(count, DIM))
    labels = np.concatenate([np.repeat(np.arange(items), photos), np.arange(count)])
    vectors = places[labels] + spread[labels] * generator.normal(size=(len(labels), DIM))
    names = np.array([f"item {label}" for label in labels.tolist()])
    return Photos(unit(vectors), names, np.arange(len(labels)) < items * photos)


def gallery_of(*shown: Photos) -> ArrayPhotos:
    """Return a gallery of photos, which are added one part after the other."""
    columns = [[getattr(part, name) for part in shown] for name in ("vectors", "items", "groups")]
    vectors, items = (np.concatenate(column) for column in columns[:2])
    groups = None if shown[0].groups is None else np.concatenate(columns[2]).tolist()
    ids = [f"photo {row} of part {number}" for number, part in enumerate(shown) for row in range(len(part.items))]
    return ArrayPhotos(vectors, items, photo_ids=ids, groups=groups)


def drawn(gallery: ArrayPhotos, probes: Mapping[str, Probes]) -> AllDraws:
    """Return the own draws of a gallery, and the draws of photos from elsewhere by source."""
    drawing = Drawing(gallery, DISTANCE)
    sources = {OWN: drawing.own()} | {name: drawing.probes(source) for name, source in probes.items()}
    return AllDraws("", sources, frozenset())


def drawn_point(gallery: ArrayPhotos, draws: AllDraws, *, certify: bool = False) -> Point | None:
    """Return the operating point that draws set, None if they set none; with `certify`, a certified one if possible."""
    for certified in (True, False) if certify else (False,):
        try:
            shift = query_shift(draws.sources)
            return set_threshold(draws, TARGET, items=gallery.item_count, shift=shift, certify=certified)
        except CalibrationError:
            continue
    return None


@dataclass(frozen=True)
class Searches:
    """The first item's distance of each query (n,), whether it is the right product (n,), and the items asked (n,)."""

    distances: np.ndarray
    right: np.ndarray
    items: np.ndarray

    @classmethod
    def of(cls, gallery: ArrayPhotos, asked: Photos) -> Searches:
        """Search a gallery."""
        first = ItemSearch(gallery, DISTANCE).nearest(asked.vectors, 1)
        right = products(gallery.item_ids[first.items[:, 0]]) == products(asked.items)
        return cls(first.distances[:, 0], right, products(asked.items))

    def matched(self, threshold: float) -> float:
        """Return the share of queries with a match, items weighted equally: FPIR of unknown items."""
        return share_within(self.distances, self.items, threshold)

    def found(self, threshold: float) -> float:
        """Return the share of queries whose own item is a match and first: TPIR."""
        return float(np.mean(self.right & (self.distances <= threshold)))


@dataclass(frozen=True)
class Outcome:
    """What a gallery's threshold realises."""

    certified: bool
    fpir: float
    served: float  # TPIR
    exact: float  # TPIR where exactly the target share of the searches for unknown items return a match
    p_values: np.ndarray  # (n,) of searches for unknown items
    weights: np.ndarray  # (n,) of these searches, the same for each item


def outcome(photos: Photos, known: np.ndarray, *, certify: bool = False) -> Outcome | None:
    """Return what the threshold of a gallery of known products realises, None if it gets none."""
    unknown = np.setdiff1d(products(photos.items), known)
    gallery = gallery_of(photos.of(known).shown)
    draws = drawn(gallery, {})
    point = drawn_point(gallery, draws, certify=certify)
    mated, strange = (Searches.of(gallery, photos.of(items).asked) for items in (known, unknown))
    if point is None:
        return None
    return Outcome(
        point.status == CERTIFIED,
        strange.matched(point.threshold),
        mated.found(point.threshold),
        mated.found(quantile(strange.distances, strange.items)),
        DrawnDistances.of(draws.sources).p_values(strange.distances),
        item_weights(strange.items),
    )


def unevenness(found: Sequence[Outcome]) -> float:
    """Return the Kolmogorov-Smirnov distance of the p-values of all searches for unknown items from uniform ones."""
    p, weights = (np.concatenate(values) for values in zip(*((o.p_values, o.weights) for o in found), strict=True))
    order = np.argsort(p)
    steps = np.r_[0, np.cumsum(weights[order])] / len(found)
    return float(max(np.abs(p[order] - steps[1:]).max(), np.abs(p[order] - steps[:-1]).max()))


def simulated(kind: World, seed: int, photos: int = PHOTOS, *, certify: bool = False) -> Outcome | None:
    """Return the outcome of one world."""
    every = world(np.random.default_rng((seed, kind.items, photos)), kind, photos)
    return outcome(every, np.unique(every.shown.items), certify=certify)


def coverage(record: Recorder, repetitions: int) -> None:
    """Add the table of what thresholds realise in simulated worlds."""
    rates = ("FPIR realised", "TPIR", "of the TPIR at exactly 0.05", "unevenness of p-values")
    record.table("coverage", ("world, items", "certified", "certified that kept 0.05", *rates))
    for items, kind in WORLDS.items():
        seeds = tqdm(range(0, repetitions, kind.one_in), desc=f"{items} items")
        made = [simulated(kind, seed, certify=True) for seed in seeds]
        found = [one for one in made if one is not None]
        certified = [one for one in found if one.certified]
        kept = f"{sum(one.fpir <= TARGET for one in certified)} of {len(certified)}" if certified else NONE
        record.add(items, f"{len(certified)}", kept, *cells(found), f"{unevenness(found):.3f}")


def cells(found: list[Outcome]) -> tuple[str, ...]:
    """Return the FPIR realised, TPIR, and its ratio to the TPIR at exactly the target."""
    fpir, served, exact = np.array([(one.fpir, one.served, one.exact) for one in found]).T
    return f"{fpir.mean():.3f} ± {fpir.std():.3f}", f"{served.mean():.3f}", f"{served.mean() / exact.mean():.2f}"


def few(photos: Photos, count: int) -> Photos:
    """Return the photos with `count` gallery photos of each item."""
    chosen = ~photos.in_gallery
    for item in np.unique(photos.shown.items):
        chosen[np.flatnonzero(photos.in_gallery & (photos.items == item))[:count]] = True
    return photos.where(chosen)


def bursts(photos: Photos) -> Photos:
    """Return the photos with near copies of every gallery photo."""
    times = np.where(photos.in_gallery, NEAR_COPIES, 1)
    every = photos.where(np.repeat(np.arange(len(times)), times))
    noise = np.random.default_rng(0).normal(size=every.vectors.shape) / np.sqrt(every.vectors.shape[1])
    moved = every.vectors + NOISE * noise * every.in_gallery[:, None]
    return replace(every, vectors=unit(moved))


def twins(photos: Photos, *, grouped: bool) -> Photos:
    """Return the photos with every second gallery photo of some items under a second id."""
    generator, items = np.random.default_rng(0), photos.items.astype(f"<U{photos.items.itemsize // 4 + len(TWIN)}")
    names = generator.permutation(np.unique(photos.shown.items))
    for item in names[: round(SPLIT * len(names))].tolist():
        rows = np.flatnonzero(photos.in_gallery & (photos.items == item))[1::2]
        items[rows] = item + TWIN
    return replace(photos, items=items, groups=photos.items if grouped else None)


KINDS: dict[str, Callable[[Photos], Photos]] = {
    "as it is": lambda photos: photos,
    "one photo of an item": lambda photos: few(photos, 1),
    "two photos of an item": lambda photos: few(photos, 2),
    "every photo three times, nearly": bursts,
    "a fifth of the items under two ids": lambda photos: twins(photos, grouped=False),
    "the same, the ids of a product in one group": lambda photos: twins(photos, grouped=True),
}


def real_sets(data: Path, output: Path) -> Iterator[tuple[str, Photos]]:
    """Yield the sets of photos by the pretrained model; grocery by shop: one is the gallery, the other one asks."""
    model = Pretrained.load(MODEL)
    for name in ("birds", "cars", "covers", "grocery"):
        listed = read_catalogue(data / "data" / name / f"{name}.csv")
        vectors = unit(features_in(output / f"{name}.npy", model, listed))
        items, sources = (np.array(column) for column in zip(*((p.item_id, p.source) for p in listed), strict=True))
        every = Photos(vectors, items, in_gallery(listed))
        if name != "grocery":
            yield name, every
            continue
        for store, title in (("store_a", "grocery, a to b"), ("store_b", "grocery, b to a")):
            shops = [[items == item, sources == shop] for item in np.unique(items) for shop in ("store_a", "store_b")]
            rows = np.concatenate([spread(np.flatnonzero(np.all(each, axis=0)), MOST) for each in shops])
            yield title, replace(every, in_gallery=sources == store).where(rows)


def mixed(sets: Mapping[str, Photos]) -> Photos:
    """Return the photos of several sets as one."""
    names = [np.char.add(f"{name} ", photos.items) for name, photos in sets.items()]
    vectors, shown = ([getattr(each, name) for each in sets.values()] for name in ("vectors", "in_gallery"))
    return Photos(np.concatenate(vectors), np.concatenate(names), np.concatenate(shown))


def divided(photos: Photos, size: int, seed: int) -> np.ndarray:
    """Return some items at random, the known ones."""
    return np.random.default_rng(seed).permutation(np.unique(photos.shown.items))[:size]


def by_size(record: Recorder, sets: Mapping[str, Photos], repetitions: int) -> None:
    """Add the table of what thresholds realise with galleries of several sizes."""
    columns = ("data, known items", "FPIR realised", "TPIR", "of the TPIR at exactly 0.05", "unevenness of p-values")
    record.table("sizes", columns)
    for name, photos in sets.items():
        for size in (size for size in SIZES if size <= 0.7 * len(np.unique(photos.items))):
            runs = [outcome(photos, divided(photos, size, seed)) for seed in tqdm(range(repetitions), desc=name)]
            found = [run for run in runs if run is not None]
            record.add(f"{name}, {size}", *cells(found), f"{unevenness(found):.3f}")


def labelled(record: Recorder, sets: Mapping[str, Photos], repetitions: int) -> None:
    """Add the table of thresholds from own draws alone and together with some labelled photos."""
    columns = ("data", "FPIR realised, own draws", "TPIR, own draws", "FPIR realised, labelled too")
    record.table("labelled", (*columns, "TPIR, labelled too", "of the TPIR of own draws at the same FPIR"))
    for name, photos in sets.items():
        runs = [with_labels(photos, seed) for seed in tqdm(range(repetitions), desc=f"{name}, labelled")]
        own, both = (np.array([thresholds[place] for _, _, thresholds in runs]) for place in (0, 1))
        rates = [mean_rates(runs, thresholds) for thresholds in (own, both)]
        low, high = -1.0, 1.0
        while high - low > 1e-6:  # moves the thresholds of own draws to the other ones' FPIR
            middle = (low + high) / 2
            low, high = (middle, high) if mean_rates(runs, own + middle)[0] < rates[1][0] else (low, middle)
        same = rates[1][1] / mean_rates(runs, own + high)[1]
        record.add(name, *(f"{rate:.3f}" for rate in (*rates[0], *rates[1])), f"{same:.2f}")


def with_labels(photos: Photos, seed: int) -> tuple[Searches, Searches, tuple[float, float]]:
    """Return searches for known and for unknown items, and the thresholds of own draws and with labelled photos too.

    One query photo of each of some known and some unknown items is labelled. These do not count as searches.
    """
    items = np.random.default_rng(seed).permutation(np.unique(photos.shown.items))
    known, unknown = np.split(items, [len(items) // 2])
    firsts = ~photos.in_gallery
    firsts[firsts] = np.isin(np.arange(firsts.sum()), np.unique(photos.asked.items, return_index=True)[1])
    chosen = [firsts & np.isin(photos.items, some[:LABELLED]) for some in (known, unknown)]
    named = np.concatenate([photos.items[chosen[0]], np.full(chosen[1].sum(), "")]).tolist()
    vectors = np.concatenate([photos.vectors[mask] for mask in chosen])
    probes = by_source(Probes(vectors, [f"labelled {row}" for row in range(len(named))], named))
    asked = photos.where(~photos.in_gallery & ~chosen[0])
    gallery = gallery_of(photos.of(known).shown)
    draws = drawn(gallery, probes)
    points = (drawn_point(gallery, each) for each in (replace(draws, sources={OWN: draws.get(OWN)}), draws))
    mated, strange = (Searches.of(gallery, asked.of(some)) for some in (known, unknown[LABELLED:]))
    own, both = (NOTHING if point is None else point.threshold for point in points)
    return mated, strange, (own, both)


def mean_rates(
    runs: Sequence[tuple[Searches, Searches, tuple[float, float]]], thresholds: np.ndarray
) -> tuple[float, float]:
    """Return the mean FPIR and TPIR of searches with the threshold of each."""
    rates = [
        (strange.matched(each), mated.found(each))
        for (mated, strange, _), each in zip(runs, thresholds.tolist(), strict=True)
    ]
    fpir, tpir = np.mean(rates, axis=0).tolist()
    return fpir, tpir


def kinds(record: Recorder, sets: Mapping[str, Photos], repetitions: int) -> None:
    """Add the table of what thresholds realise with photos of many kinds."""
    columns = ("data", "known items", "FPIR realised", "TPIR", "of the TPIR at exactly 0.05", "without a threshold")
    record.table("kinds", columns)
    for name, photos in sets.items():
        half = len(np.unique(photos.items)) // 2
        for kind, change in KINDS.items():
            known, changed = [divided(photos, half, seed) for seed in range(repetitions)], change(photos)
            runs = [outcome(changed, items) for items in tqdm(known, desc=f"{name}, {kind}")]
            found = [run for run in runs if run is not None]
            shown = cells(found) if found else (NONE, NONE, NONE)
            record.add(f"{name}, {kind}", f"{half}", *shown, f"{len(runs) - len(found)}")
    for count in EACH:
        runs = [
            simulated(World(KNOWN), seed, count) for seed in tqdm(range(repetitions), desc=f"{count} photos of an item")
        ]
        found = [run for run in runs if run is not None]
        record.add(f"simulated, photos of an item: {count}", f"{KNOWN}", *cells(found), f"{len(runs) - len(found)}")


def churn(record: Recorder, sets: Mapping[str, Photos], repetitions: int) -> None:
    """Add the table of right matches and FPIR under a frozen threshold and under one that is measured again."""
    columns = ("data, change", "FPIR before", "right matches lost", "FPIR after", "lost after measuring again")
    record.table("churn", (*columns, "FPIR after measuring again"))
    for name, photos in sets.items():
        for change in (more_items, more_photos):
            rows = [change(photos, np.random.default_rng(seed)) for seed in tqdm(range(repetitions), desc=name)]
            means = np.mean([row for row in rows if row is not None], axis=0).tolist()
            (first, fpir), *later = means[:2], means[2:4], means[4:]
            compared = [(f"{1 - tpir / first:.1%}", f"{rate:.3f}") for tpir, rate in later]
            told = f"{name}, {'10 % more items' if change is more_items else 'one more photo of each item'}"
            record.add(told, f"{fpir:.3f}", *compared[0], *compared[1])


def more_items(photos: Photos, generator: np.random.Generator) -> tuple[float, ...] | None:
    """Return what a gallery loses when a tenth more items are added."""
    items = generator.permutation(np.unique(photos.shown.items))
    known, new = np.split(items[: round(len(items) / 2 * (1 + GROWTH))], [len(items) // 2])
    return grown(photos.of(known).shown, photos.of(new).shown, photos, known, np.setdiff1d(items, [*known, *new]))


def more_photos(photos: Photos, generator: np.random.Generator) -> tuple[float, ...] | None:
    """Return what a gallery loses when one more photo of each item is added."""
    items = generator.permutation(np.unique(photos.shown.items))
    known, shown = items[: len(items) // 2], photos.of(items[: len(items) // 2]).shown
    _, firsts, counts = np.unique(shown.items, return_index=True, return_counts=True)
    later = np.isin(np.arange(len(shown.items)), firsts[counts > 1])
    return grown(shown.where(~later), shown.where(later), photos, known, items[len(items) // 2 :])


def grown(
    shown: Photos, added: Photos, photos: Photos, known: np.ndarray, unknown: np.ndarray
) -> tuple[float, ...] | None:
    """Return TPIR and FPIR before and after photos are added, and with the threshold measured again."""
    mated, strange = photos.of(known).asked, photos.of(unknown).asked
    galleries = gallery_of(shown), gallery_of(shown, added)
    point, again = (drawn_point(gallery, drawn(gallery, {})) for gallery in galleries)
    before, after = ([Searches.of(gallery, asked) for asked in (mated, strange)] for gallery in galleries)
    if point is None or again is None:
        return None
    times = ((before, point), (after, point), (after, again))
    return tuple(
        rate for (right, other), at in times for rate in (right.found(at.threshold), other.matched(at.threshold))
    )


def main() -> None:
    """Measure and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/item_distance"), help="Folder for computed features.")
    parser.add_argument("--worlds", type=int, default=200, help="Simulated worlds of each size.")
    parser.add_argument("--repetitions", type=int, default=20, help="Divisions of each set of photos.")
    parser.add_argument("--grown", type=int, default=20, help="Divisions of each set in which the gallery grows.")
    parser.add_argument("--labelled", type=int, default=30, help="Divisions with labelled photos.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    sets = dict(real_sets(data, arguments.output))
    several = {name: photos for name, photos in sets.items() if name != "covers"}  # which has one photo of an item
    every = mixed({name: photos for name, photos in sets.items() if name != "grocery, b to a"})
    drawings = Photos(*Sets(data, arguments.output).symbols())
    sized = {name: sets[name] for name in ("birds", "cars")} | {"all sets": every, "symbols": drawings}
    with Recorder("promise", arguments) as record:
        by_size(record, sized, arguments.repetitions)
        kinds(record, several, arguments.repetitions)
        churn(record, several, arguments.grown)
        labelled(record, sets, arguments.labelled)
        coverage(record, arguments.worlds)


if __name__ == "__main__":
    main()
