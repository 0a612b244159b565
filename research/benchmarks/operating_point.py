"""What operating points of galleries realise: matches and questions of estimated points and of certified ones.

    python -m research.benchmarks.operating_point --output runs/item_distance

Half of the items of a set are known: their gallery photos are measured for FPIR 5 % as a gallery does it, by its own
draws alone, once for an estimated point and once for a certified one. Query photos of known and of unknown items
search them. The sets are those of `promise`, embedded by a pretrained model as it is, and all of them in one gallery,
which is large enough for its draws to be a sample. Rates weight unknown items equally.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm import tqdm

from index.search.distance import accepts
from retrieval.measuring.measure import measure
from retrieval.measuring.point import CERTIFIED, ESTIMATED, Point

from .anchoring import TARGET
from .item_distance_data import Sets
from .promise import DISTANCE, Photos, Searches, divided, gallery_of, mixed, real_sets
from .tables import NONE, Recorder, parser_of

RULES = (ESTIMATED, CERTIFIED)
COLUMNS = (
    "data, known items, rule",
    "with a threshold",
    "FPIR realised",
    "TPIR",
    "that ask",
    "unknown asked",
    "known asked and right",
    "right with as many known as unknown",
)


@dataclass(frozen=True)
class Answers:
    """Shares of searches that a point answers with a match and with a question ("perhaps")."""

    fpir: float
    tpir: float
    asks: bool  # whether the point asks at all
    unknown: float  # of the searches for unknown items, answered with a question
    known: float  # of the searches for known items
    right: float  # of the searches for known items, with a question about the right item

    @classmethod
    def of(cls, point: Point, mated: Searches, strange: Searches) -> Answers:
        """Return the answers to searches for known items and for unknown ones."""
        threshold = point.threshold
        within = threshold if point.perhaps is None else point.perhaps.within
        asked = (mated.distances > threshold) & accepts(mated.distances, within)
        return cls(
            strange.matched(threshold),
            mated.found(threshold),
            point.perhaps is not None,
            strange.matched(within) - strange.matched(threshold),
            float(asked.mean()),
            float((asked & mated.right).mean()),
        )


def division(photos: Photos, seed: int) -> dict[str, Answers]:
    """Return the answers by rule for one choice of known items; a rule without a threshold is left out."""
    items = np.unique(photos.items)
    known = divided(photos, len(items) // 2, seed)
    gallery = gallery_of(photos.of(known).shown)
    mated, strange = (Searches.of(gallery, photos.of(some).asked) for some in (known, np.setdiff1d(items, known)))
    estimated = measure(gallery, DISTANCE, target_fpir=TARGET)
    certified = measure(gallery, DISTANCE, target_fpir=TARGET, draws=estimated.draws, certify=True)
    points = zip(RULES, (estimated.point, certified.point), strict=True)
    return {rule: Answers.of(point, mated, strange) for rule, point in points if point is not None}


def cells(answers: Sequence[Answers]) -> tuple[str, ...]:
    """Return the figures of the divisions with a threshold; those of questions are of the divisions that ask."""
    if not answers:
        return (NONE,) * (len(COLUMNS) - 2)
    fpir, tpir = np.array([(each.fpir, each.tpir) for each in answers]).T
    asking = [(each.unknown, each.known, each.right) for each in answers if each.asks]
    asked = (NONE, NONE, NONE)
    if asking:
        unknown, known, right = np.mean(asking, axis=0).tolist()
        asked = f"{unknown:.3f}", f"{right:.3f}", f"{right / (known + unknown):.2f}"
    return f"{fpir.mean():.3f} ± {fpir.std():.3f}", f"{tpir.mean():.3f}", f"{len(asking)}", *asked


def rules(record: Recorder, sets: Mapping[str, Photos], repetitions: int) -> None:
    """Add the table of what both rules realise with each set."""
    record.table("rules", COLUMNS)
    for name, photos in sets.items():
        size = len(np.unique(photos.items)) // 2
        runs = [division(photos, seed) for seed in tqdm(range(repetitions), desc=name)]
        for rule in RULES:
            answers = [run[rule] for run in runs if rule in run]
            record.add(f"{name}, {size}, {rule}", f"{len(answers)} of {len(runs)}", *cells(answers))


def main() -> None:
    """Measure every set and print the table."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/item_distance"), help="Folder for computed features.")
    parser.add_argument("--repetitions", type=int, default=20, help="Divisions of each set.")
    arguments = parser.parse_args()
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    sets = dict(real_sets(data, arguments.output))
    sets["symbols"] = Photos(*Sets(data, arguments.output).symbols())
    every = mixed({name: photos for name, photos in sets.items() if name != "grocery, b to a"})
    with Recorder("operating_point", arguments) as record:
        rules(record, sets | {"all sets": every}, arguments.repetitions)


if __name__ == "__main__":
    main()
