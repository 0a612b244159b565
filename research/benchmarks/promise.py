"""What the thresholds of galleries realise: in simulated worlds, for photos of many kinds, and while a gallery grows.

    python -m research.benchmarks.promise --output runs/item_distance

Half of the items of a set are known: their gallery photos are indexed, the gallery's own draws set the threshold for
FPIR 5 % by the item distance, and query photos of known and of unknown items search it, all by the code that serves.
Simulated worlds have items in clusters of different density, with photos that vary by the spread of the item. The sets
of photos are embedded by a pretrained model as it is. Rates weight items equally.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from tqdm import tqdm

from index.gallery import Gallery
from index.search.item_distance import ItemDistance
from index.search.leave_one_out import make_draws
from index.snapshot import GROUP
from retrieval.bundle.operating_point import CERTIFIED, OperatingPoint
from retrieval.catalogue.read import read_catalogue
from retrieval.errors import CalibrationError
from retrieval.threshold.anchor import anchor
from retrieval.threshold.error_rates import DrawnDistances
from training.export.pretrained import Pretrained

from .item_distance import quantile, share_within
from .pretrained import features_in, in_gallery, unit
from .tables import NONE, Recorder, parser_of

TARGET, DISTANCE, MODEL = 0.05, ItemDistance(), "efficientnet-lite0"
DIM, CROWDS, PHOTOS, ASKED = 24, 40, 4, 2  # of a simulated world; photos per item in the gallery, and queries
STRANGERS = 1500  # unknown items of a world
SIZES = (100, 300)  # known items of a world
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


def products(items: np.ndarray) -> np.ndarray:
    """Return the products (n,) of item ids, of which a product may have two."""
    return np.asarray(np.char.partition(items, TWIN)[:, 0])


def world(generator: np.random.Generator, items: int, photos: int = PHOTOS) -> Photos:
    """Return a simulated world: photos of some items for the gallery, queries for these and for STRANGERS others."""
    centres, widths = generator.normal(size=(CROWDS, DIM)), generator.uniform(0.5, 1.2, size=(CROWDS, 1))
    count = items + STRANGERS
    crowd, spread = generator.integers(CROWDS, size=count), generator.uniform(0.2, 0.5, size=(count, 1))
    places = centres[crowd] + widths[crowd] * generator.normal(size=(count, DIM))
    labels = np.concatenate([np.repeat(np.arange(items), photos), np.repeat(np.arange(count), ASKED)])
    vectors = places[labels] + spread[labels] * generator.normal(size=(len(labels), DIM))
    names = np.array([f"item {label}" for label in labels.tolist()])
    return Photos(unit(vectors), names, np.arange(len(labels)) < items * photos)


@contextmanager
def gallery_of(shown: Photos) -> Iterator[Gallery]:
    """Yield a gallery of photos in a temporary folder."""
    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(Path(folder) / "gallery", dim=shown.vectors.shape[1], embedding_id="model") as gallery,
    ):
        add(gallery, shown, "photo")
        yield gallery


def add(gallery: Gallery, photos: Photos, name: str) -> None:
    """Add photos to a gallery."""
    groups = [{} if photos.groups is None else {GROUP: str(photos.groups[row])} for row in range(len(photos.items))]
    ids = [f"{name} {row}" for row in range(len(photos.items))]
    gallery.add(ids, photos.items.tolist(), photos.vectors, metadata=groups)


def drawn_point(gallery: Gallery) -> tuple[OperatingPoint | None, DrawnDistances]:
    """Return the operating point that a gallery gets from its own draws, if any, and the draws."""
    draws = make_draws(gallery, model="model", item_distance=DISTANCE, probes={}).sources
    try:
        point = anchor(draws, TARGET, gallery_items=gallery.items)
    except CalibrationError:
        point = None
    return point, DrawnDistances.of(draws)


@dataclass(frozen=True)
class Searches:
    """The first item's distance of each query (n,), whether it is the right product (n,), and the items asked (n,)."""

    distances: np.ndarray
    right: np.ndarray
    items: np.ndarray

    @classmethod
    def of(cls, gallery: Gallery, asked: Photos) -> Searches:
        """Search a gallery."""
        found = [best[0] for best in gallery.search(asked.vectors, 1, item_distance=DISTANCE)]
        names = np.array([one.item_id for one in found])
        right = products(names) == products(asked.items)
        return cls(np.array([one.distance for one in found]), right, products(asked.items))

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
    uneven: float  # Kolmogorov-Smirnov distance of the p-values of unknown items from uniform ones


def outcome(photos: Photos, known: np.ndarray) -> Outcome | None:
    """Return what the threshold of a gallery of known products realises, None if it gets none."""
    unknown = np.setdiff1d(products(photos.items), known)
    with gallery_of(photos.of(known).shown) as gallery:
        point, draws = drawn_point(gallery)
        mated, strange = (Searches.of(gallery, photos.of(items).asked) for items in (known, unknown))
    if point is None:
        return None
    exact = quantile(strange.distances, strange.items)
    return Outcome(
        point.status == CERTIFIED,
        strange.matched(point.threshold),
        mated.found(point.threshold),
        mated.found(exact),
        unevenness(strange, draws),
    )


def unevenness(strange: Searches, draws: DrawnDistances) -> float:
    """Return the Kolmogorov-Smirnov distance of the p-values of searches for unknown items from uniform ones."""
    p = np.sort([draws.fpir(distance) for distance in strange.distances])
    steps = np.arange(len(p) + 1) / len(p)
    return float(max(np.abs(p - steps[1:]).max(), np.abs(p - steps[:-1]).max()))


def simulated(items: int, seed: int, photos: int = PHOTOS) -> Outcome | None:
    """Return the outcome of one world."""
    every = world(np.random.default_rng((seed, items, photos)), items, photos)
    return outcome(every, np.unique(every.shown.items))


def coverage(record: Recorder, repetitions: int) -> None:
    """Add the table of what thresholds realise in simulated worlds, by the number of items."""
    columns = ("items", "certified", "certified that kept 0.05", "FPIR realised", "TPIR", "of the TPIR at exactly 0.05")
    record.table("coverage", (*columns, "unevenness of p-values"))
    for items in SIZES:
        made = [simulated(items, seed) for seed in tqdm(range(repetitions), desc=f"{items} items")]
        found = [one for one in made if one is not None]
        certified = [one for one in found if one.certified]
        kept = f"{sum(one.fpir <= TARGET for one in certified)} of {len(certified)}" if certified else NONE
        record.add(f"{items}", f"{len(certified)}", kept, *cells(found), f"{np.mean([o.uneven for o in found]):.3f}")


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
    for name in ("birds", "cars", "grocery"):
        listed = read_catalogue(data / "data" / name / f"{name}.csv")
        vectors = unit(features_in(output / f"{name}.npy", model, listed))
        items, sources = (np.array(column) for column in zip(*((p.item_id, p.source) for p in listed), strict=True))
        every = Photos(vectors, items, in_gallery(listed))
        if name != "grocery":
            yield name, every
            continue
        for store, title in (("store_a", "grocery, a to b"), ("store_b", "grocery, b to a")):
            yield title, replace(every, in_gallery=sources == store).where(sources != "iconic")


def kinds(record: Recorder, sets: list[tuple[str, Photos]], repetitions: int) -> None:
    """Add the table of what thresholds realise with photos of many kinds."""
    columns = ("data", "known items", "FPIR realised", "TPIR", "of the TPIR at exactly 0.05", "without a threshold")
    record.table("kinds", columns)
    for name, photos in sets:
        items = np.unique(photos.shown.items)
        for kind, change in KINDS.items():
            changed = change(photos)
            runs = [
                outcome(changed, np.random.default_rng(seed).permutation(items)[: len(items) // 2])
                for seed in tqdm(range(repetitions), desc=f"{name}, {kind}")
            ]
            found = [run for run in runs if run is not None]
            shown = cells(found) if found else (NONE, NONE, NONE)
            record.add(f"{name}, {kind}", f"{len(items) // 2}", *shown, f"{len(runs) - len(found)}")
    for count in EACH:
        runs = [simulated(KNOWN, seed, count) for seed in tqdm(range(repetitions), desc=f"{count} photos of an item")]
        found = [run for run in runs if run is not None]
        record.add(f"simulated, photos of an item: {count}", f"{KNOWN}", *cells(found), f"{len(runs) - len(found)}")


def churn(record: Recorder, sets: list[tuple[str, Photos]], repetitions: int) -> None:
    """Add the table of right matches and FPIR under a frozen threshold and under one that is measured again."""
    columns = ("data, change", "right matches lost", "FPIR before", "FPIR after", "lost after measuring again")
    record.table("churn", (*columns, "FPIR after measuring again"))
    for name, photos in sets:
        for change in (more_items, more_photos):
            rows = [change(photos, np.random.default_rng(seed)) for seed in tqdm(range(repetitions), desc=name)]
            means = np.mean([row for row in rows if row is not None], axis=0)
            lost, before, after, again, measured = means.tolist()
            told = f"{name}, {'10 % more items' if change is more_items else 'one more photo of each item'}"
            record.add(told, f"{lost:.1%}", f"{before:.3f}", f"{after:.3f}", f"{again:.1%}", f"{measured:.3f}")


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
    """Return the share of right matches lost and the FPIR before and after photos are added, and measured again."""
    with gallery_of(shown) as gallery:
        point, _ = drawn_point(gallery)
        if point is None:
            return None
        mated, strange = photos.of(known).asked, photos.of(unknown).asked
        before, fpir = Searches.of(gallery, mated).found(point.threshold), Searches.of(gallery, strange)
        add(gallery, added, "added")
        again, _ = drawn_point(gallery)
        after, others = Searches.of(gallery, mated), Searches.of(gallery, strange)
    if again is None or not before:
        return None
    lost = [1 - after.found(threshold) / before for threshold in (point.threshold, again.threshold)]
    rates = [others.matched(threshold) for threshold in (point.threshold, again.threshold)]
    return lost[0], fpir.matched(point.threshold), rates[0], lost[1], rates[1]


def main() -> None:
    """Measure and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/item_distance"), help="Folder for computed features.")
    parser.add_argument("--worlds", type=int, default=200, help="Simulated worlds of each size.")
    parser.add_argument("--repetitions", type=int, default=20, help="Divisions of each set of photos.")
    arguments = parser.parse_args()
    sets = list(real_sets(Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")), arguments.output))
    with Recorder("promise", arguments) as record:
        kinds(record, sets, arguments.repetitions)
        churn(record, sets, arguments.repetitions)
        coverage(record, arguments.worlds)


if __name__ == "__main__":
    main()
