"""Measure searches with several photos: item scores, several query photos, mirror images and re-ranking.

    python -m research.benchmarks.several_photos

A frozen EfficientNet-Lite0 embeds cars, birds and grocery (four rotations of its families), with a projection fitted to
the training partition (`training.export.projection`). The items of the calibration partition are the validation items:
an option is chosen for a data set if it gains more than a standard error there. The test items report. Every figure is
TPIR at exactly 5 % FPIR, with items weighted equally. A search for an unknown item leaves the query's own item out of
the gallery. Standard errors and intervals are those of the difference, by bootstrap over items.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from retrieval.catalogue.read import Photo, read_catalogue
from training.export.pretrained import Pretrained
from training.export.projection import choose_projection

from .photo_searches import DIVISIONS, EVERYTHING, TABLES, Scores, Searches, Side, Views
from .photo_views import CROP_SHARES, embedder_of, seconds_per_photo, unit_mean, views_of
from .rotation_tables import ROTATIONS
from .rotations import rotated
from .tables import Recorder, ms, parser_of

DRAWS = 2000
FITTED, VALIDATION, TEST = "train", "calibration", "test"
COLUMNS = ("data and option", "validation", "gain", "chosen", "test", "gain on test")


def sides(photos: Sequence[Photo], views: Views) -> dict[str, Side]:
    """Return the queries and gallery of the validation and the test items, with a projection fitted to others."""
    views = projected(photos, views)
    in_gallery = in_gallery_of(photos)
    pictures = np.array([photo.source == "iconic" for photo in photos])
    found = {}
    for part in (VALIDATION, TEST):
        chosen = np.array([photo.partition == part for photo in photos]) & ~pictures
        items = np.full(len(photos), -1)
        items[chosen] = np.unique([p.item_id for p, c in zip(photos, chosen, strict=True) if c], return_inverse=True)[1]
        asked, shown = chosen & ~in_gallery, chosen & in_gallery
        queries, gallery = ({name: v[mask] for name, v in views.items()} for mask in (asked, shown))
        found[part] = Side(queries, gallery, items[asked], items[shown])
    return found


def in_gallery_of(photos: Sequence[Photo]) -> np.ndarray:
    """Return which photos are of the gallery's side (n,)."""
    return np.array([photo.role == "gallery" if photo.role else photo.source == "store_a" for photo in photos])


def projected(photos: Sequence[Photo], views: Views) -> Views:
    """Return the unit vectors of each view, projected if a projection fitted to the training photos gains."""
    trained = np.array([photo.partition == FITTED for photo in photos])
    fit = choose_projection([p for p, t in zip(photos, trained, strict=True) if t], views["photo"][trained])
    return views if fit.projection is None else {name: unit_mean(fit.projection(v)) for name, v in views.items()}


def gain(searches: Searches, base: Searches) -> tuple[float, float, tuple[float, float]]:
    """Return the gain of TPIR over `base`, its standard error and its 95 % interval, by bootstrap over items."""
    generator, count = np.random.default_rng(0), int(base.items.max()) + 1
    drawn = [generator.multinomial(count, np.full(count, 1 / count)).astype(float) for _ in range(DRAWS)]
    differences = np.array([searches.tpir(weights) - base.tpir(weights) for weights in drawn])
    low, high = np.percentile(differences, [2.5, 97.5])
    return searches.tpir() - base.tpir(), float(differences.std(ddof=1)), (float(low), float(high))


Gain = tuple[float, float, float]  # of TPIR on validation items, its standard error, and of TPIR on test items


def measure(record: Recorder, name: str, data: Mapping[str, Side], options: Mapping[str, Scores]) -> dict[str, Gain]:
    """Add the rows of one data set to the last table, and return the gains; the first option is the base."""
    bases: dict[str, Searches] = {}
    gains = {}
    for option, score in options.items():
        found = {part: score(side) for part, side in data.items()}
        tpir = [f"{found[part].tpir():.3f}" for part in (VALIDATION, TEST)]
        if not bases:
            bases = found
            record.add(f"{name}, {option}", tpir[0], "", "", tpir[1], "")
            continue
        more, error, _ = gain(found[VALIDATION], bases[VALIDATION])
        on_test, _, (low, high) = gain(found[TEST], bases[TEST])
        interval = f"{on_test:+.3f} [{low:+.3f}, {high:+.3f}]"
        record.add(f"{name}, {option}", tpir[0], f"{more:+.3f} ± {error:.3f}", _chosen(more, error), tpir[1], interval)
        gains[option] = more, error, on_test
    return gains


def pool(record: Recorder, gains: Sequence[Mapping[str, Gain]]) -> None:
    """Add the mean gains over data sets to the last table."""
    for option in gains[0]:
        more, errors, on_test = np.array([each[option] for each in gains]).T
        error = float(np.sqrt((errors**2).sum()) / len(gains))
        told = f"{more.mean():+.3f} ± {error:.3f}", _chosen(more.mean(), error), "", f"{on_test.mean():+.3f}"
        record.add(f"mean of all, {option}", "", *told)


def _chosen(more: float, error: float) -> str:
    return "yes" if more > error else "no"


def seconds(run: Callable[[], object], searches: int) -> float:
    """Return the least time of three runs, per search."""
    times = []
    for _ in range(3):
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return min(times) / searches


def costs(record: Recorder, side: Side, embed: float) -> None:
    """Add the cost of a search by each option, without an index, in the gallery of one rotation of grocery."""
    record.table("cost", ("option", "embedding", "comparison with the gallery"))
    embeddings = {"mirror": 2, "centre crops": 1 + len(CROP_SHARES), "mirror image and": len(EVERYTHING)}
    embeddings |= {"2 ph": 2, "3 ph": 3}
    for options in TABLES.values():
        for option, score in options.items():
            times = max((count for start, count in embeddings.items() if option.startswith(start)), default=1)
            groups = DIVISIONS * len(side.query_items) // times if "photos" in option else len(side.query_items)
            record.add(option, ms(times * embed), f"{1e3 * seconds(lambda s=score: s(side), groups):.2f} ms")  # type: ignore[misc]


def main() -> None:
    """Measure every data set and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/several"), help="Folder for computed vectors.")
    arguments = parser.parse_args()
    folder = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared")) / "data"
    embedder = embedder_of(Pretrained.load("efficientnet-lite0"), arguments.output / "model.onnx")
    data: dict[str, dict[str, Side]] = {}
    for name in ("cars", "birds", "grocery"):
        photos = read_catalogue(folder / name / f"{name}.csv")
        views = views_of(photos, embedder, arguments.output / f"{name}.npz")
        if name == "grocery":
            data |= {f"grocery, rotation {r}": sides(rotated(photos, r), views) for r in range(ROTATIONS)}
        else:
            data[name] = sides(photos, views)
    with Recorder("several_photos", arguments) as record:
        for table, options in TABLES.items():
            record.table(table, COLUMNS)
            pool(record, [measure(record, name, parts, options) for name, parts in data.items()])
        costs(record, data["grocery, rotation 0"][TEST], seconds_per_photo(embedder))


if __name__ == "__main__":
    main()
