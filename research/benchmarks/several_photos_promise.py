"""Compare the target FPIR of queries of several photos with the FPIR on unknown items, by the threshold that serves.

    python -m research.benchmarks.several_photos_promise

The model and its vectors are those of `research.benchmarks.several_photos`. The items outside the training partition
are split at random into halves: known items, whose gallery photos fill a gallery, and unknown items. The gallery sets a
threshold for one photo, from own draws of one photo, and a threshold for several, from own draws of as many photos.
The query photos of the unknown items, in random groups of one item, test both; those of the known items tell the TPIR.
Means and standard deviations are over the repetitions.
"""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

import numpy as np

from index.distance import PLAIN
from index.gallery import Gallery
from index.kept_draws import update_draws
from index.photo_groups import mean_vectors
from retrieval.catalogue.read import read_catalogue
from retrieval.metrics.identification import SearchScores, search_scores
from training.export.pretrained import Pretrained

from .anchoring import NOTHING, TARGET, Data, item_rates, point_of
from .photo_searches import groups_of
from .photo_views import embedder_of, views_of
from .rotations import rotated
from .several_photos import in_gallery_of, projected
from .tables import Recorder, parser_of

COUNTS = (1, 2, 3)


def data_sets(folder: Path, output: Path) -> list[Data]:
    """Return the items outside the training partition of each data set; grocery once for each half of its families."""
    embedder = embedder_of(Pretrained.load("efficientnet-lite0"), output / "model.onnx")
    found = []
    for name in ("cars", "birds", "grocery"):
        whole = read_catalogue(folder / name / f"{name}.csv")
        views = views_of(whole, embedder, output / f"{name}.npz")
        halves = {"grocery, even families": rotated(whole, 0), "grocery, odd families": rotated(whole, 1)}
        for title, photos in (halves if name == "grocery" else {name: whole}).items():
            vectors = projected(photos, views)["photo"]
            kept = np.array([photo.partition != "train" and photo.source != "iconic" for photo in photos])
            items = np.array([photo.item_id for photo in photos])
            found.append(Data(title, vectors[kept], items[kept], in_gallery_of(photos)[kept]))
    return found


def thresholds_of(data: Data, shown: np.ndarray) -> dict[int, float]:
    """Return the thresholds that a gallery of the photos of a mask (n,) sets, by the number of photos of a query."""
    found = {}
    with (
        tempfile.TemporaryDirectory() as folder,
        Gallery.create(Path(folder) / "g", dim=data.vectors.shape[1], embedding_id="model") as gallery,
    ):
        names = [f"p{number}" for number in np.flatnonzero(shown)]
        gallery.add(names, data.items[shown].tolist(), data.vectors[shown])
        for count in COUNTS:
            draws = update_draws(gallery, None, model="model", distance_form=PLAIN, probes={}, photos_per_query=count)
            point = point_of(draws, gallery_items=gallery.items)
            found[count] = NOTHING if point is None else point.threshold
    return found


def searches(data: Data, asked: np.ndarray, shown: np.ndarray, count: int) -> SearchScores:
    """Return searches with groups of `count` photos of a mask (n,)."""
    rows = np.flatnonzero(asked)
    groups = rows[groups_of(np.unique(data.items[rows], return_inverse=True)[1], count)]
    queries = mean_vectors(data.vectors[groups])
    return search_scores(queries, data.items[groups[:, 0]], data.vectors[shown], data.items[shown])


def repeat(data: Data, seed: int) -> list[tuple[float, float, float]]:
    """Return, for each number of photos, the FPIR by its own and by the single-photo threshold, and the TPIR."""
    items = np.random.default_rng(seed).permutation(np.unique(data.items))
    known = np.isin(data.items, items[: len(items) // 2])
    shown = known & data.in_gallery
    thresholds = thresholds_of(data, shown)
    found = []
    for count in COUNTS:
        unknown = searches(data, ~known & ~data.in_gallery, shown, count)
        mated = searches(data, known & ~data.in_gallery, shown, count)
        fpir = [float(np.mean(list(item_rates(unknown, thresholds[each]).values()))) for each in (count, 1)]
        tpir = float(np.mean((mated.own <= thresholds[count]) & (mated.own < mated.impostor)))
        found.append((fpir[0], fpir[1], tpir))
    return found


def main() -> None:
    """Measure every data set and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/several"), help="Folder for computed vectors.")
    parser.add_argument("--repetitions", type=int, default=20)
    arguments = parser.parse_args()
    folder = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")) / "data"
    columns = (
        *("data and photos of a query", f"FPIR realised for {TARGET}"),
        *("FPIR with the threshold of one photo", "TPIR at the own threshold"),
    )
    with Recorder("several_photos_promise", arguments) as record:
        record.table("promise", columns)
        for data in data_sets(folder, arguments.output):
            runs = np.array([repeat(data, seed) for seed in range(arguments.repetitions)])
            for place, count in enumerate(COUNTS):
                own, single, tpir = runs[:, place].T
                record.add(
                    f"{data.name}, {count}",
                    f"{own.mean():.3f} ± {own.std():.3f}",
                    f"{single.mean():.3f} ± {single.std():.3f}",
                    f"{tpir.mean():.3f}",
                )


if __name__ == "__main__":
    main()
