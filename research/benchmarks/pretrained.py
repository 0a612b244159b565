"""Measure a pretrained model as `retrieval quickstart` uses it: as it is, and fitted to part of a catalogue.

    python -m research.benchmarks.pretrained

The projection is fitted to the training partition. R@1 is that of the test partition's queries in its gallery. For the
threshold, the items outside the training partition are split into known and unknown halves, as in
`research.benchmarks.anchoring`, and the gallery's own photos set it. Grocery has four rotations of its families.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np

from index.search.item_distance import ItemDistance
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.metrics.identification import SearchScores, search_scores
from training.export.fit import features_of
from training.export.pretrained import Pretrained
from training.export.projection import choose_projection

from .anchoring import NOTHING, Data, Repetition, repeat
from .rotation_tables import ROTATIONS
from .rotations import rotated
from .tables import NONE, Recorder, parser_of

AS_IS, FITTED = "as it is", "fitted"
SETS = ("birds", "cars", "covers")


def data_sets(data: Path) -> Iterator[tuple[str, str, list[Photo]]]:
    """Yield the name, the name of the photos' file, and the photos of each data set."""
    for name in SETS:
        yield name, name, read_catalogue(data / "data" / name / f"{name}.csv")
    photos = read_catalogue(data / "data" / "grocery" / "grocery.csv")
    for rotation in range(ROTATIONS):
        yield f"grocery, rotation {rotation}", "grocery", rotated(photos, rotation)


def features_in(path: Path, model: Pretrained, photos: Sequence[Photo]) -> np.ndarray:
    """Return the features (n, c) of photos, from a file if it exists."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        np.save(path, features_of(model, photos))
    return np.asarray(np.load(path, allow_pickle=False))


def vectors_of(features: np.ndarray, photos: Sequence[Photo]) -> Iterator[tuple[str, np.ndarray]]:
    """Yield unit vectors (n, c) of the model as it is and, where it is fitted, of the fitted one."""
    yield AS_IS, unit(features)
    trained = np.array([photo.partition == "train" for photo in photos])
    choice = choose_projection([photo for photo in photos if photo.partition == "train"], features[trained])
    if choice.projection is not None:
        yield FITTED, unit(choice.projection(features))


def recall_at_1(vectors: np.ndarray, photos: Sequence[Photo]) -> float:
    """Return the share of the test partition's queries whose item is first, items weighted equally."""
    test = np.array([photo.partition == "test" for photo in photos])
    shown = in_gallery(photos)
    items = np.array([photo.item_id for photo in photos])
    queries, gallery = test & ~shown, test & shown
    scores: SearchScores = search_scores(
        vectors[queries], items[queries], vectors[gallery], items[gallery], item_distance=ItemDistance()
    )
    first = np.isfinite(scores.correct)
    return float(np.mean([first[scores.labels == item].mean() for item in np.unique(scores.labels)]))


def divisions(vectors: np.ndarray, photos: Sequence[Photo], repetitions: int) -> list[Repetition]:
    """Return random divisions of the items outside the training partition into known and unknown ones."""
    untrained = np.array([photo.partition != "train" for photo in photos])
    items = np.array([photo.item_id for photo in photos])
    data = Data(vectors[untrained], items[untrained], in_gallery(photos)[untrained], ItemDistance())
    return [repeat(data, seed) for seed in range(repetitions)]


def main() -> None:
    """Measure every data set and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--model", default="efficientnet-lite0")
    parser.add_argument("--output", type=Path, default=Path("runs/pretrained"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=20)
    arguments = parser.parse_args()
    model = Pretrained.load(arguments.model)
    columns = ("data and model", "R@1", "FPIR realised for 0.05", "TPIR", "TPIR at exactly 0.05")
    with Recorder("pretrained", arguments) as record:
        record.table("frozen", columns)
        for name, file, photos in data_sets(Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))):
            features = features_in(arguments.output / f"{file}.npy", model, photos)
            for kind, vectors in vectors_of(features, photos):
                runs = divisions(vectors, photos, arguments.repetitions)
                exact = f"{np.mean([run.tpir(run.exact) for run in runs]):.3f}"
                record.add(f"{name}, {kind}", f"{recall_at_1(vectors, photos):.3f}", *_served(runs), exact)


def _served(runs: Sequence[Repetition]) -> tuple[str, str]:
    """Return FPIR and TPIR under the galleries' own thresholds; NONE if the items are too few to set one."""
    decided = [run for run in runs if run.own != NOTHING]
    if not decided:
        return NONE, NONE
    realised = np.array([run.fpir(run.own) for run in decided])
    return f"{realised.mean():.3f} ± {realised.std():.3f}", f"{np.mean([run.tpir(run.own) for run in decided]):.3f}"


def in_gallery(photos: Sequence[Photo]) -> np.ndarray:
    return np.array([photo.role == "gallery" if photo.role else photo.source == "store_a" for photo in photos])


def unit(vectors: np.ndarray) -> np.ndarray:
    return np.asarray(vectors / np.linalg.norm(vectors, axis=1, keepdims=True), dtype=np.float32)


if __name__ == "__main__":
    main()
