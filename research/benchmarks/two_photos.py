"""What two photos of a thing find: their mean, and the better of the single searches, beside one photo.

    python -m research.benchmarks.two_photos --output runs/two_photos

Half of the items are known, and two photos of each search; the others are the gallery. Pairs of photos of unknown items
search too. *Exact* TPIR is that at the threshold where 5 % of these match. The threshold that is served follows from
draws of the very rule. Birds and cars are the items outside the training partition, by the pretrained model as it is;
flowers are embeddings by CLIP that others made.

Shapes: n photos, p pairs, d = embedding size.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
from tqdm import tqdm

from index.photos.arrays import ArrayPhotos
from index.search.distance import accepts
from index.search.item_distance import ItemDistance, mean_photo
from index.search.item_search import ItemSearch
from retrieval.catalogue.read import read_catalogue
from retrieval.measuring.drawing import Drawing, PartVectors
from retrieval.measuring.draws import OWN, Draws
from retrieval.measuring.fpir import DrawnDistances
from training.export.pretrained import Pretrained

from .anchoring import TARGET
from .framing import TRAIN
from .item_distance import quantile, share_within
from .item_distance_data import MODEL
from .pretrained import features_in, unit
from .tables import Recorder, parser_of

ONE, MEAN, EITHER, BEST = "one photo", "their mean", "the better of both", "the better of both and their mean"
PARTS = {ONE: [1], MEAN: [0], EITHER: [1, 2], BEST: [0, 1, 2]}  # searches of a rule: mean, first and second photo
MOST, STRANGE = 20, 3  # photos of an item, and pairs of photos of an unknown item
COLUMNS = ("set, rule", "R@1", "exact TPIR", "TPIR", "FPIR", "found by a photo alone and lost", "gained")


def sets(data: Path, output: Path) -> Iterator[tuple[str, np.ndarray, np.ndarray]]:
    """Yield the name, the unit vectors (n, d) and the items (n,) of each set."""
    for name in ("birds", "cars"):
        listed = read_catalogue(data / "data" / name / f"{name}.csv")
        judged = [photo for photo in listed if photo.partition != TRAIN]
        vectors = features_in(output / f"{name}.npy", Pretrained.load(MODEL), judged)
        yield name, unit(vectors), np.array([photo.item_id for photo in judged])
    with np.load(data / "vectors" / "clip_flowers.npz") as stored:
        vectors, items = stored["vectors"].astype(np.float32), stored["items"].astype(str)
    generator = np.random.default_rng(0)
    chosen = [generator.permutation(np.flatnonzero(items == item))[:MOST] for item in np.unique(items)]
    rows = np.concatenate(chosen)
    yield "flowers", unit(vectors[rows]), items[rows]


def looks_of(vectors: np.ndarray, pairs: np.ndarray) -> np.ndarray:
    """Return the vectors (p, 3, d) of pairs of photos (p, 2): their mean, and each of them."""
    means = np.array([mean_photo(vectors[pair]) for pair in pairs], dtype=np.float32)
    return np.stack([means, vectors[pairs[:, 0]], vectors[pairs[:, 1]]], axis=1).astype(np.float32)


def searched(search: ItemSearch, gallery: ArrayPhotos, looks: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the distance of the first item of each search (p, 3), and the item (p, 3)."""
    found = search.nearest(looks.reshape(-1, looks.shape[2]), 1)
    shape = looks.shape[:2]
    return found.distances[:, 0].reshape(shape), np.array(gallery.item_ids)[found.items[:, 0]].reshape(shape)


def drawn(gallery: ArrayPhotos, vectors: np.ndarray, items: np.ndarray, names: np.ndarray) -> Mapping[str, Draws]:
    """Return the draws of each rule, by the photos (n,) of a gallery with the ids `names`."""
    drawing, rows = Drawing(gallery, ItemDistance.default()), np.arange(len(items))
    pairs = np.array([pair for item in np.unique(items) for pair in _pairs(rows[items == item])])
    looks = looks_of(vectors, pairs)
    several = {rule: drawing.windows(PartVectors(names[pairs[:, 0]], looks[:, PARTS[rule]])) for rule in (EITHER, BEST)}
    return {ONE: drawing.own(), MEAN: drawing.several(2), **several}


def _pairs(rows: np.ndarray) -> np.ndarray:
    return rows[: len(rows) // 2 * 2].reshape(-1, 2)


def division(vectors: np.ndarray, items: np.ndarray, seed: int) -> dict[str, tuple[float, ...]]:
    """Return the figures of each rule for one choice of known items."""
    generator = np.random.default_rng(seed)
    names = generator.permutation(np.unique(items))
    own = [generator.permutation(np.flatnonzero(items == name)) for name in names]
    known, unknown = own[: len(own) // 2], own[len(own) // 2 :]
    pairs, shown = np.array([rows[:2] for rows in known]), np.concatenate([rows[2:] for rows in known])
    strange = np.concatenate([_pairs(rows)[:STRANGE] for rows in unknown])
    ids = np.array([f"photo {row}" for row in shown.tolist()])
    gallery = ArrayPhotos(vectors[shown], items[shown].tolist(), photo_ids=ids.tolist())
    search = ItemSearch(gallery, ItemDistance.default())
    mated, mated_items = searched(search, gallery, looks_of(vectors, pairs))
    apart, _ = searched(search, gallery, looks_of(vectors, strange))
    draws, truth = drawn(gallery, vectors[shown], items[shown], ids), items[pairs[:, 0]]
    result: dict[str, tuple[float, ...]] = {}
    alone: np.ndarray | None = None
    for rule, parts in PARTS.items():
        best = mated[:, parts].argmin(axis=1)
        distances = mated[:, parts].min(axis=1)
        right = np.take_along_axis(mated_items[:, parts], best[:, None], 1)[:, 0] == truth
        others, of = apart[:, parts].min(axis=1), items[strange[:, 0]]
        threshold = DrawnDistances.of({OWN: draws[rule]}).limit(TARGET, certified=False)
        threshold = -np.inf if threshold is None else threshold
        found = right & accepts(distances, threshold)
        if alone is None:
            alone = (accepts(mated[:, 1:], threshold) & (mated_items[:, 1:] == truth[:, None])).any(axis=1)
        exact = float((right & (distances <= quantile(others, of))).mean())
        lost, gained = float((alone & ~found).mean()), float((found & ~alone).mean())
        fpir = share_within(others, of, threshold)
        result[rule] = (float(right.mean()), exact, float(found.mean()), fpir, lost, gained)
    return result


def main() -> None:
    """Measure every set and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/two_photos"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=20, help="Divisions of each set.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    with Recorder("two_photos", arguments) as record:
        record.table("rules", COLUMNS)
        ratios = []
        for name, vectors, items in sets(data, arguments.output):
            runs = [division(vectors, items, seed) for seed in tqdm(range(arguments.repetitions), desc=name)]
            means = {rule: np.mean([run[rule] for run in runs], axis=0) for rule in PARTS}
            for rule, values in means.items():
                record.add(f"{name}, {rule}", *(f"{value:.3f}" for value in values))
            ratios.append((name, *(f"{means[rule][1] / means[ONE][1]:.2f}" for rule in (MEAN, EITHER, BEST))))
        record.table("ratios", ("set", MEAN, EITHER, BEST), ratios)


if __name__ == "__main__":
    main()
