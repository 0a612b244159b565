"""Measure geometric verification: covers, the rotations of grocery, and what a search costs.

    python -m research.benchmarks.verification --output runs/verification

Vectors are those of a pretrained model as it is. The vocabulary and the strength of the fusion come from items outside
the test partition: on covers from its training and calibration items, in each rotation of grocery from its training
items. The strength is 0 unless the gain of another one is significant there, with standard errors clustered by family.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np

from index.search.distance import PLAIN, Floats
from index.search.verified import VerifiedDistance
from retrieval.metrics.identification import SearchScores, search_scores
from retrieval.metrics.verified_scores import RememberedInliers, SearchSide, verified_scores
from retrieval.verification.verifier import GeometricVerifier
from training.export.projection import CONFIDENCE
from training.export.verification import clustered_error

from .anchoring import limit
from .rotation_tables import ROTATIONS
from .rotations import rotated
from .tables import NONE, Recorder, parser_of
from .verification_data import Photos, load

STRENGTHS = (0.1, 0.2, 0.4, 0.8, 1.6)
EVERY = 1000  # as items and photos of a shortlist: every pair is verified
CHOSEN_BY, TESTED_BY = 6, 16  # queries of an item of grocery, to choose a strength and to test it
SHORTLISTS = ((10, 3, 20), (5, 3, 5), (10, 3, 0), (1, 1, 20), (1, 1, 5))
OF_EVERY = "of the TPIR of every pair"
PHONES = ("canon", "droid", "e63", "palm")
COVERS = ("phone", "R@1 without", "R@1", "TPIR at exactly 0.05 without", "TPIR at exactly 0.05")
LISTS = ("gallery", "items", "photos", "voted", "own item on the shortlist", "R@1", "TPIR at exactly 0.05", OF_EVERY)
GROCERY = (
    *("rotation", "chosen strength", "TPIR at exactly 0.05 without", "TPIR with the chosen strength", "ratio"),
    "standard error of the difference",
    *(f"strength {strength:g}" for strength in STRENGTHS),
)
Rows = list[list[str]]


class Marking(RememberedInliers):
    """Brings every photo on a shortlist to distance 0."""

    def __init__(self, verifier: GeometricVerifier, known: dict[tuple[bytes, bytes], int]) -> None:
        super().__init__(verifier, known)
        self.key, self.fused = f"marking {verifier.key}", _nothing


def _nothing(distances: Floats, inliers: np.ndarray) -> Floats:  # noqa: ARG001
    return np.zeros(len(distances))


@dataclass(frozen=True)
class Searched:
    """Searches by base distance, and what verified ones need."""

    base: SearchScores
    sides: tuple[SearchSide, SearchSide]
    verifier: GeometricVerifier
    known: dict[tuple[bytes, bytes], int]  # inliers of pairs that were compared

    def scores(self, strength: float) -> SearchScores:
        """Return the scores with a strength of the fusion; 0 gives the base distances."""
        if not strength:
            return self.base
        return self._verified(RememberedInliers(self.verifier.with_strength(strength), self.known))

    def shortlisted(self) -> float:
        """Return the share of queries with a photo of their own item on the shortlist."""
        return float(np.mean(self._verified(Marking(self.verifier, self.known)).own == 0))

    def _verified(self, verifier: RememberedInliers) -> SearchScores:
        return verified_scores(*self.sides, [VerifiedDistance(PLAIN, verifier)])[0]


def searched(queries: Photos, gallery: Photos, verifier: GeometricVerifier) -> Searched:
    """Search a gallery by base distance, and prepare searches with verification."""
    base = search_scores(queries.vectors, queries.items, gallery.vectors, gallery.items)
    return Searched(base, (queries.side(), gallery.side()), verifier, {})


def found(scores: SearchScores) -> np.ndarray:
    """Return which queries (n,) find their item first within the threshold of FPIR at exactly the target."""
    return np.asarray((scores.own <= limit(scores)) & (scores.own < scores.impostor))


def choose(searches: Searched, queries: Photos) -> float:
    """Return the strength with the greatest TPIR, or 0 if its gain may be chance."""
    families = {photo.item_id: photo.group or photo.item_id for photo in queries.photos}
    groups = [families[str(item)] for item in searches.base.labels]
    without = found(searches.base).astype(float)
    gains = {strength: found(searches.scores(strength)) - without for strength in STRENGTHS}
    best = max(gains, key=lambda strength: float(gains[strength].mean()))
    return best if gains[best].mean() > CONFIDENCE * clustered_error(gains[best], groups) else 0.0


def recall_at_1(scores: SearchScores) -> float:
    """Return the share of queries whose own item is first."""
    return float(np.mean(scores.own < scores.impostor))


def sized(verifier: GeometricVerifier, **sizes: int) -> GeometricVerifier:
    """Return a verifier with another size of the shortlist."""
    return replace(verifier, settings=verifier.settings.changed(**sizes))


def covers(photos: Photos, others: Photos) -> dict[str, Rows]:
    """Return the rows of the tables of covers; the items outside the test partition choose the strength."""
    tuned = photos.where(photos.partition("train", "calibration"))
    verifier = GeometricVerifier.fit(tuned.local)
    every = sized(verifier, items=EVERY, photos=EVERY)
    asked, shown = divided(tuned.described(verifier))
    strength = choose(searched(asked, shown, every), asked)
    verifier, every = (each.with_strength(strength) for each in (verifier, every))
    asked, shown = divided(photos.where(photos.partition("test")).described(verifier))
    exhaustive = searched(asked, shown, every)
    by_pairs, without = exhaustive.scores(strength), exhaustive.base
    by_phone = []
    for name in ("all", *PHONES):
        chosen = np.ones(len(asked.items), dtype=bool) if name == "all" else asked.source(name)
        sides = [each.where(chosen) for each in (without, by_pairs)]
        figures = *(recall_at_1(each) for each in sides), *(float(found(each).mean()) for each in sides)
        by_phone.append([name, *(f"{figure:.3f}" for figure in figures)])
    best = float(found(by_pairs).mean())
    shortlists = [["covers", "all", "all", NONE, "1.000", f"{recall_at_1(by_pairs):.3f}", f"{best:.3f}", "1.00"]]
    mixed = Photos.joined(shown, others.described(verifier))
    lists = [("covers", shown, shortlist) for shortlist in SHORTLISTS]
    for name, gallery, (items, near, voted) in [*lists, ("covers and grocery", mixed, SHORTLISTS[0])]:
        short = searched(asked, gallery, sized(verifier, items=items, photos=near, voted=voted))
        scores = short.scores(strength)
        tpir = float(found(scores).mean())
        cells = [f"{figure:.3f}" for figure in (short.shortlisted(), recall_at_1(scores), tpir)]
        shortlists.append([name, str(items), str(near), str(voted), *cells, f"{tpir / best:.2f}"])
    return {"covers": by_phone, "shortlists": shortlists}


def divided(photos: Photos) -> tuple[Photos, Photos]:
    """Return the queries and the gallery photos of covers."""
    shown = photos.source("reference")
    return photos.where(~shown), photos.where(shown)


def grocery(photos: Photos, rotation: int) -> dict[str, Rows]:
    """Return the row of a rotation of grocery; its training items choose the strength."""
    turned = replace(photos, photos=rotated(photos.photos, rotation))
    trained = turned.partition("train")
    verifier = GeometricVerifier.fit(turned.where(trained & turned.source("store_a")).local)
    described = turned.described(verifier)
    asked, shown = stores(described.where(trained), most=CHOSEN_BY)
    strength = choose(searched(asked, shown, verifier), asked)
    test = searched(*stores(described.where(turned.partition("test")), most=TESTED_BY), verifier)
    without, chosen = (found(test.scores(each)).astype(float) for each in (0.0, strength))
    every = [f"{found(test.scores(each)).mean():.3f}" for each in STRENGTHS]
    error = clustered_error(chosen - without, test.base.labels.tolist())
    figures = f"{without.mean():.3f}", f"{chosen.mean():.3f}", f"{chosen.mean() / without.mean():.2f}", f"{error:.3f}"
    return {"grocery": [[str(rotation), f"{strength:g}", *figures, *every]]}


def stores(photos: Photos, *, most: int) -> tuple[Photos, Photos]:
    """Return the photos of store_b as queries, at most some of each item, and those of store_a as gallery."""
    asked = photos.where(photos.source("store_b"))
    rows = np.concatenate([spread(np.flatnonzero(asked.items == item), most) for item in np.unique(asked.items)])
    return asked.where(np.isin(np.arange(len(asked.items)), rows)), photos.where(photos.source("store_a"))


def spread(rows: np.ndarray, most: int) -> np.ndarray:
    """Return at most some of the rows, evenly spaced."""
    places = np.unique(np.linspace(0, len(rows) - 1, min(most, len(rows))).round().astype(int))
    return np.asarray(rows[places])


def stage(path: Path, measure: Callable[[], dict[str, Rows]]) -> dict[str, Rows]:
    """Return the rows of a stage, from the file of an interrupted benchmark if it exists."""
    if not path.exists():
        path.write_text(json.dumps(measure()))
    return dict(json.loads(path.read_text()))


def main() -> None:
    """Measure and print the tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--output", type=Path, default=Path("runs/verification"), help="Folder for computed features.")
    parser.add_argument("--rotation", type=int, choices=range(ROTATIONS), help="Measure only this; for calls at once.")
    arguments = parser.parse_args()
    output = arguments.output
    output.mkdir(parents=True, exist_ok=True)
    data = Path(os.environ.get("RETRIEVAL_TEST_DATA", "../shared"))
    shelves = load("grocery", data, output)
    rotations = range(ROTATIONS) if arguments.rotation is None else (arguments.rotation,)
    products = [stage(output / f"grocery-{r}.json", partial(grocery, shelves, r))["grocery"] for r in rotations]
    if arguments.rotation is not None:
        return
    prints = load("covers", data, output)
    store = shelves.where(shelves.source("store_a"))
    rows = stage(output / "covers.json", partial(covers, prints, store))
    with Recorder("verification", arguments) as record:
        record.table("covers", COVERS, rows["covers"])
        record.table("shortlists", LISTS, rows["shortlists"])
        record.table("grocery", GROCERY, [row for each in products for row in each])


if __name__ == "__main__":
    main()
