"""What a gallery tells of itself beside what it does: names and questions, for photos of known and of unknown things.

    python -m research.benchmarks.sides --output runs/sides

A quarter of the items is unknown. Of the others a quarter of the photos search, and the rest is the gallery, whose own
draws set the point for FPIR 5 %. Grocery and the demo's catalogue are embedded by the pretrained model as it is, with
the second looks of the product; flowers are embeddings by CLIP that others made. Nothing is fitted or chosen.

Shapes: n photos, d = embedding size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NamedTuple

import numpy as np
from tqdm import tqdm

from index.photos.arrays import ArrayPhotos
from index.search.distance import accepts
from index.search.item_distance import ItemDistance
from index.search.item_search import ItemSearch
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.images import open_image
from retrieval.measuring.drawing import PartVectors
from retrieval.measuring.measure import Material, measure
from retrieval.measuring.sides import Sides, sides_of
from retrieval.search.true_rates import Rate
from training.data.synthetic.catalogue import CATALOGUE, make_catalogue
from training.export.pretrained import Pretrained, export_pretrained

from .anchoring import TARGET
from .framing import Looks, looked_at
from .item_distance_data import MODEL
from .promise_vectors import ICONIC
from .tables import NONE, Recorder, parser_of

CLASSES, PHOTOS = 36, 20  # of a set, at most
UNKNOWN, ASKED = 0.25, 0.25  # shares of the items, and of the photos of a known item
QUESTIONS = ("set", "that ask", "unknown asked, mean", "most", "named item right, half of the searches unknown")
SIDES = ("set, side", "told", "realised", "told lies in the interval of the realised rate")
NAMES = {
    "known_sure": "known, says for sure",
    "known_asked": "known, asks",
    "known_closest": "known, right one first",
    "unknown_called": "unknown, called something",
    "unknown_asked": "unknown, asked about",
}


class Division(NamedTuple):
    """What a gallery tells, what it does, and the share of its questions about the right item."""

    told: Sides
    realised: Mapping[str, Rate]  # by side
    right: float  # of the searches for known items, with a question about the right item


@dataclass(frozen=True)
class PhotoSet:
    """Both looks at the photos of a set, and the groups of their items (n,), "" for none."""

    looks: Looks
    groups: np.ndarray

    def divided(self, generator: np.random.Generator) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Return the positions of the gallery's photos, of queries for known items, and of those for unknown ones."""
        kinds = np.where(self.groups == "", self.looks.items, self.groups)
        names = generator.permutation(np.unique(kinds))
        unknown = np.isin(kinds, names[: round(UNKNOWN * len(names))])
        asked = np.zeros(len(kinds), dtype=bool)
        for item in np.unique(self.looks.items[~unknown]):
            own = generator.permutation(np.flatnonzero(self.looks.items == item))
            asked[own[: round(ASKED * len(own))]] = True
        return np.flatnonzero(~unknown & ~asked), np.flatnonzero(asked), np.flatnonzero(unknown)


def division(photos: PhotoSet, seed: int) -> Division | None:
    """Measure a gallery, and search it; None if it gets no threshold."""
    shown, mated, strange = photos.divided(np.random.default_rng(seed))
    looks = photos.looks
    ids = np.array([f"photo {row}" for row in shown.tolist()])
    gallery = ArrayPhotos(
        looks.first[shown], looks.items[shown].tolist(), photo_ids=ids.tolist(), groups=photos.groups[shown].tolist()
    )
    distance, second = ItemDistance.default(), PartVectors(ids, looks.second[shown][:, None])
    material = Material(looks=second if looks.second.any() else None)
    point = measure(gallery, distance, material=material, target_fpir=TARGET).point
    told = None if point is None else sides_of(point)
    if point is None or told is None:
        return None
    search, within = ItemSearch(gallery, distance), point.threshold
    if point.perhaps is not None:
        within = point.perhaps.within
    (known, names), (unknown, _) = (nearest(search, gallery, looks, rows) for rows in (mated, strange))
    right = names == looks.items[mated]
    sure, called = accepts(known, point.threshold), accepts(unknown, point.threshold)
    asked, questioned = accepts(known, within) & ~sure, accepts(unknown, within) & ~called
    hits = {"known_sure": sure & right, "known_asked": asked, "known_closest": right}
    realised = {name: Rate.of(share.tolist(), looks.items[mated].tolist()) for name, share in hits.items()}
    hits = {"unknown_called": called, "unknown_asked": questioned}
    realised |= {name: Rate.of(share.tolist(), looks.items[strange].tolist()) for name, share in hits.items()}
    return Division(told, {name: rate for name, rate in realised.items() if rate}, float((asked & right).mean()))


def nearest(search: ItemSearch, gallery: ArrayPhotos, looks: Looks, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance of the first item of each query, and the item: the nearer of both looks."""
    names = np.array(gallery.item_ids)
    first = search.nearest(looks.first[rows], 1)
    distances, items = first.distances[:, 0].copy(), names[first.items[:, 0]]
    again = np.flatnonzero(looks.second[rows].any(axis=1))
    if len(again):
        second = search.nearest(looks.second[rows[again]], 1)
        nearer = second.distances[:, 0] < distances[again]
        distances[again[nearer]] = second.distances[nearer, 0]
        items[again[nearer]] = names[second.items[nearer, 0]]
    return distances, items


def sets(data: Path, output: Path) -> Iterator[tuple[str, PhotoSet]]:
    """Yield the sets by name."""
    output.mkdir(parents=True, exist_ok=True)
    with np.load(data / "vectors" / "clip_flowers.npz") as stored:
        vectors, items = stored["vectors"].astype(np.float32), stored["items"].astype(str)
    chosen = sample(items)
    unit = vectors[chosen] / np.linalg.norm(vectors[chosen], axis=1, keepdims=True)
    looks = Looks(unit, np.zeros_like(unit), items[chosen])
    yield "flowers", PhotoSet(looks, np.full(len(chosen), ""))
    listed = read_catalogue(data / "data" / "grocery" / "grocery.csv")
    listed = [photo for photo in listed if photo.source != ICONIC]
    chosen = sample(np.array([photo.item_id for photo in listed]))
    looks = embedded(output, "grocery", [listed[row] for row in chosen.tolist()])
    yield "grocery", PhotoSet(looks, np.full(len(chosen), ""))  # its groups are families of products, not variants
    catalogue = output / "demo" / CATALOGUE
    drawn = read_catalogue(catalogue if catalogue.exists() else make_catalogue(catalogue.parent))
    yield "the demo", PhotoSet(embedded(output, "demo", drawn), np.array([photo.group for photo in drawn]))


def sample(items: np.ndarray) -> np.ndarray:
    """Return the positions of some photos of some items that have enough, or as many as any, at random."""
    generator = np.random.default_rng(0)
    names, counts = np.unique(items, return_counts=True)
    chosen = generator.permutation(names[counts >= min(PHOTOS, counts.max())])[:CLASSES]
    return np.concatenate([generator.permutation(np.flatnonzero(items == name))[:PHOTOS] for name in chosen])


def embedded(output: Path, name: str, photos: Sequence[Photo]) -> Looks:
    """Return both looks at photos by the pretrained model, from a file if it exists."""
    path = output / f"{name}.npz"
    if not path.exists():
        bundle = output / "bundle"
        opened = Bundle.open(bundle) if bundle.exists() else export_pretrained(Pretrained.load(MODEL), bundle)
        images = [open_image(photo.read()) for photo in tqdm(photos, desc=name)]
        looks = looked_at(opened.embedder(), images, [photo.item_id for photo in photos])
        np.savez(path, first=looks.first, second=looks.second, items=looks.items)
    with np.load(path, allow_pickle=False) as stored:
        return Looks(stored["first"], stored["second"], stored["items"])


def questions(found: Sequence[Division]) -> tuple[str, ...]:
    """Return how often unknown things are asked about, and how often the item of a question is right."""
    known, unknown = (
        np.array([each.realised[side].value for each in found]) for side in ("known_asked", "unknown_asked")
    )
    right = sum(each.right for each in found)
    asks = sum(bool(each.told.unknown_asked) for each in found)
    share = f"{right / (known + unknown).sum():.2f}" if (known + unknown).any() else NONE
    return f"{asks} of {len(found)}", f"{unknown.mean():.3f}", f"{unknown.max():.3f}", share


def told(found: Sequence[Division], side: str) -> tuple[str, ...]:
    """Return what galleries tell of a side, what they do, and how often the first lies in the interval of the other."""
    pairs = [(asdict(each.told)[side], each.realised[side]) for each in found]
    shares, rates = np.array([share for share, _ in pairs]), np.array([rate.value for _, rate in pairs])
    inside = sum(rate.lower <= share <= rate.upper for share, rate in pairs)
    realised = f"{rates.mean():.3f} ± {rates.std():.3f}"
    return f"{shares.mean():.3f}", realised, f"{inside} of {len(found)}"


def main() -> None:
    """Measure every set and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/sides"), help="Folder for photos and vectors.")
    parser.add_argument("--repetitions", type=int, default=10, help="Divisions of each set.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    found: dict[str, list[Division]] = {}
    for name, photos in sets(data, arguments.output):
        runs = [division(photos, seed) for seed in tqdm(range(arguments.repetitions), desc=name)]
        found[name] = [run for run in runs if run is not None]
    with Recorder("sides", arguments) as record:
        record.table("questions", QUESTIONS)
        for name, divisions in found.items():
            record.add(name, *questions(divisions))
        record.table("sides", SIDES)
        for name, divisions in found.items():
            for side, title in NAMES.items():
                record.add(f"{name}: {title}", *told(divisions, side))


if __name__ == "__main__":
    main()
