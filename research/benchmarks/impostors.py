"""What limits TPIR at exactly FPIR 5 %: the unknown items that match others, and the spread of distances.

    python -m research.benchmarks.impostors --trained runs/head_trainers
    python -m research.benchmarks.impostors --trained runs/head_trainers --draw pairs

The vectors are those that `research.benchmarks.head_trainers` has stored of this project's training. Untrained items
are divided into known and unknown halves, 20 times, as in `research.benchmarks.anchoring`. The family of an item is its
`group`, or the last word of a bird's name; cars have none. With --draw, the worst unknown items are drawn next to the
photos that they are taken for, into a local folder: the photos must not be published.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from research.results.render import DOCS
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.images import open_image
from retrieval.metrics.identification import SearchScores

from .anchoring import TARGET, Data, Repetition, limit, repeat_exact
from .head_trainers import OURS, SETS, Cell
from .pretrained import in_gallery
from .rotations import rotated
from .tables import NONE, Recorder, parser_of

REPETITIONS, WORST = 20, 0.1  # WORST: share of the unknown items that is left out
DRAWN, SIDE = 12, 160  # pairs of photos in a picture, and the side of each in pixels
PLOT = DOCS / "impostors.png"
COLUMNS = (
    *("data", "TPIR at exactly 0.05", "R@1", "unknown items that cause half of the false matches"),
    *("false matches within the family", "TPIR without unknown items of known families"),
    f"TPIR without the worst {WORST:.0%} of the unknown items",
    *("median distance to the own item", "threshold", "median distance of an unknown item"),
)


@dataclass(frozen=True)
class Untrained:
    """Photos of untrained items with their vectors."""

    photos: Sequence[Photo]
    data: Data
    family: Mapping[str, str]  # of each item, '' if it has none


def load(name: str, place: Path, trained: Path) -> Untrained:
    """Return the untrained photos of a data set with the vectors of the first training."""
    file, _, number = name.partition(", rotation ")
    photos = read_catalogue(place / "data" / file / f"{file}.csv")
    photos = rotated(photos, int(number)) if number else photos
    rest = [photo for photo in photos if photo.partition != "train"]
    vectors = np.load(Cell(name, OURS, 0).path(trained).with_suffix(".npy"), allow_pickle=False)
    items = np.array([photo.item_id for photo in rest])
    family = {photo.item_id: photo.group or (photo.item_id.split("_")[-1] if file == "birds" else "") for photo in rest}
    return Untrained(rest, Data(name, vectors, items, in_gallery(rest)), family)


def without(scores: SearchScores, items: Sequence[str]) -> float:
    """Return the threshold at exactly the target if some unknown items are left out."""
    return limit(scores.where(~np.isin(scores.labels, list(items))), TARGET)


def row(each: Untrained) -> tuple[str, ...]:
    """Return the figures of a data set, means over the divisions."""
    found = np.array([_figures(repeat_exact(each.data, number), each, number) for number in range(REPETITIONS)])
    families = any(each.family.values())
    means = [float(np.nanmean(column)) if families or not np.isnan(column).all() else np.nan for column in found.T]
    return (each.data.name, *(NONE if np.isnan(value) else f"{value:.3f}" for value in means))


def _figures(run: Repetition, each: Untrained, number: int) -> tuple[float, ...]:
    threshold, unknown, known = run.thresholds["exact"], run.unknown, run.known
    accepted = unknown.labels[unknown.impostor <= threshold]
    counts = np.sort(list(Counter(accepted.tolist()).values()))[::-1]
    half = int(np.searchsorted(np.cumsum(counts), counts.sum() / 2)) + 1 if len(counts) else 0
    names = [item for item, _ in Counter(accepted.tolist()).most_common(max(1, round(WORST * _items(unknown))))]
    families = {each.family[str(item)] for item in np.unique(known.labels)}
    siblings = [str(item) for item in np.unique(unknown.labels) if each.family[str(item)] in families]
    within = np.nan
    has = any(each.family.values())
    if has:
        taken = taken_for(each, number)
        same = [each.family[item] == each.family[other] for item, other, _, _ in taken]
        within = float(np.mean(same)) if same else np.nan
    return (
        run.tpir(threshold),
        float((known.own < known.impostor).mean()),
        half / _items(unknown),
        within,
        run.tpir(without(unknown, siblings)) if has and len(siblings) < _items(unknown) else np.nan,
        run.tpir(without(unknown, names)),
        float(np.median(known.own)),
        threshold,
        float(np.median(unknown.impostor)),
    )


def _items(scores: SearchScores) -> int:
    return len(np.unique(scores.labels))


def taken_for(each: Untrained, number: int) -> list[tuple[str, str, int, int]]:
    """Return (unknown item, known item, query, gallery photo) of every false match of a division, nearest first."""
    data, run = each.data, repeat_exact(each.data, number)
    known = np.isin(data.items, np.unique(run.known.labels))
    asked, shown = np.flatnonzero(~known & ~data.in_gallery), np.flatnonzero(known & data.in_gallery)
    similar = data.vectors[asked] @ data.vectors[shown].T
    nearest = similar.argmax(axis=1)
    order = np.argsort(run.unknown.impostor, kind="stable")
    chosen = [row for row in order if run.unknown.impostor[row] <= run.thresholds["exact"]]
    return [
        (str(data.items[asked[row]]), str(data.items[shown[nearest[row]]]), int(asked[row]), int(shown[nearest[row]]))
        for row in chosen
    ]


def draw(each: Untrained, folder: Path) -> None:
    """Draw the worst unknown items of the first division (top) above the photos that they match (bottom)."""
    pairs = list({item: (query, photo) for item, _, query, photo in reversed(taken_for(each, 0))}.values())[-DRAWN:]
    sheet = Image.new("RGB", (SIDE * max(1, len(pairs)), 2 * SIDE), "white")
    for column, pair in enumerate(reversed(pairs)):
        for line, position in enumerate(pair):
            image = open_image(each.photos[position].read())
            image.thumbnail((SIDE, SIDE))
            sheet.paste(image, (column * SIDE, line * SIDE))
    folder.mkdir(parents=True, exist_ok=True)
    sheet.save(folder / f"{each.data.name.replace(', ', '-').replace(' ', '-')}.png")


def plot(sets: Sequence[Untrained], path: Path) -> None:
    """Plot the distances of searches for known and unknown items, with the threshold at exactly 5 %."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.2 * len(sets), 2.6), layout="constrained")
    for place, each in enumerate(sets, start=1):
        axes, run = figure.add_subplot(1, len(sets), place), repeat_exact(each.data, 0)
        bins = np.linspace(0, 2, 41).tolist()
        for scores, label in ((run.known.own, "own item"), (run.unknown.impostor, "unknown item")):
            axes.hist(scores, bins=bins, density=True, alpha=0.6, label=label)
        axes.axvline(run.thresholds["exact"], color="black", linewidth=1)
        axes.set(title=each.data.name, xlabel="distance", yticks=[])
        if place == 1:
            axes.legend(fontsize="small", loc="upper left")
    figure.savefig(path, dpi=100)


def main() -> None:
    """Record the figures of every data set, and draw the requested pictures."""
    parser = parser_of(__doc__)
    parser.add_argument("--trained", type=Path, default=Path("runs/head_trainers"), help="Folder of the trainings.")
    parser.add_argument("--draw", type=Path, help="Folder for pictures of the worst unknown items.")
    arguments = parser.parse_args()
    place = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    found = [name for name in SETS if Cell(name, OURS, 0).path(arguments.trained).exists()]
    sets = [load(name, place, arguments.trained) for name in found]
    if arguments.draw:
        for each in sets:
            draw(each, arguments.draw)
        return
    with Recorder("impostors", arguments) as record:
        record.table("limits", COLUMNS, [row(each) for each in sets])
    plot(sets, PLOT)


if __name__ == "__main__":
    main()
