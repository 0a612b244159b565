"""Measure geometric verification: covers, the rotations of grocery, and what a shortlist misses.

    python -m research.benchmarks.verification --output runs/verification

Vectors are those of a pretrained model as it is. The vocabulary comes from items outside the test partition: on covers
from its training and calibration items, in each rotation of grocery from its training items. Agreeing local features
lower the item distance by a fixed weight (`research.benchmarks.item_distance` compares weights).
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from index.search.details import Points, Voting
from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.metrics.identification import SearchScores, search_scores
from retrieval.verification.verifier import GeometricVerifier

from .anchoring import limit
from .rotation_tables import ROTATIONS
from .rotations import rotated
from .tables import NONE, Recorder, parser_of
from .verification_data import Photos, load

EVERY = 1000  # as items and photos of a shortlist: every pair is verified
TESTED_BY = 16  # queries of an item of grocery
SHORTLISTS = ((10, 3, 20), (5, 3, 5), (10, 3, 0), (1, 1, 20), (1, 1, 5))
OF_EVERY = "of the TPIR of every pair"
PHONES = ("canon", "droid", "e63", "palm")
COVERS = ("phone", "R@1 without", "R@1", "TPIR at exactly 0.05 without", "TPIR at exactly 0.05")
LISTS = ("gallery", "items", "photos", "voted", "R@1", "TPIR at exactly 0.05", OF_EVERY)
GROCERY = (
    *("rotation", "TPIR at exactly 0.05 by nearest photo", "without verification", "TPIR at exactly 0.05", "ratio"),
    "standard error of the difference",
)
WITHOUT, WITH = ItemDistance.default(), ItemDistance.default(verified=True)
Rows = list[list[str]]


@dataclass(frozen=True)
class Remembering:
    """A verifier that compares each pair of photos once (an `index.search.details.Verifier`)."""

    verifier: GeometricVerifier
    known: dict[tuple[bytes, bytes], int] = field(default_factory=dict)  # inliers of pairs that were compared

    @property
    def key(self) -> str:
        return self.verifier.key

    @property
    def features_key(self) -> str:
        return self.verifier.features_key

    @property
    def items(self) -> int:
        return self.verifier.items

    @property
    def photos(self) -> int:
        return self.verifier.photos

    @property
    def voted(self) -> int:
        return self.verifier.voted

    @property
    def voting(self) -> Voting:
        return self.verifier.voting

    def points(self, features: bytes) -> Points:
        return self.verifier.points(features)

    def asked(self, features: bytes) -> Points:
        return self.verifier.asked(features)

    def inliers(self, query: bytes, photos: Sequence[bytes]) -> NDArray[np.int64]:
        """Return the number of inliers between a query and each of the photos (m,)."""
        new = [photo for photo in photos if (query, photo) not in self.known]
        for photo, count in zip(new, self.verifier.inliers(query, new).tolist(), strict=True):
            self.known[query, photo] = count
        return np.array([self.known[query, photo] for photo in photos], dtype=np.int64)


def scores_of(
    queries: Photos, gallery: Photos, item_distance: ItemDistance, verifier: Remembering | None = None
) -> SearchScores:
    """Return the searches of a gallery; without a verifier, local features are not compared."""
    return search_scores(
        queries.vectors,
        queries.items,
        gallery.vectors,
        gallery.items,
        item_distance=item_distance,
        verifier=verifier,
        features=(queries.packed, gallery.packed),
    )


def found(scores: SearchScores) -> np.ndarray:
    """Return which queries (n,) find their item first within the threshold of FPIR at exactly the target."""
    return np.asarray(scores.correct <= limit(scores))


def recall_at_1(scores: SearchScores) -> float:
    """Return the share of queries whose own item is first."""
    return float(np.mean(np.isfinite(scores.correct)))


def sized(verifier: Remembering, **sizes: int) -> Remembering:
    """Return a verifier with another size of the shortlist."""
    changed = replace(verifier.verifier, settings=replace(verifier.verifier.settings, **sizes))
    return replace(verifier, verifier=changed)


def covers(photos: Photos, others: Photos) -> dict[str, Rows]:
    """Return the rows of the tables of covers; items outside the test partition give the vocabulary."""
    fitted = photos.where(photos.partition("train", "calibration"))
    verifier = Remembering(GeometricVerifier.fit(fitted.local))
    asked, shown = divided(photos.where(photos.partition("test")).described(verifier.verifier))
    without = scores_of(asked, shown, WITHOUT)
    by_pairs = scores_of(asked, shown, WITH, sized(verifier, items=EVERY, photos=EVERY, voted=EVERY))
    by_phone = []
    for name in ("all", *PHONES):
        chosen = np.ones(len(asked.items), dtype=bool) if name == "all" else asked.source(name)
        sides = [each.where(chosen) for each in (without, by_pairs)]
        figures = *(recall_at_1(each) for each in sides), *(float(found(each).mean()) for each in sides)
        by_phone.append([name, *(f"{figure:.3f}" for figure in figures)])
    best = float(found(by_pairs).mean())
    shortlists = [["covers", "all", "all", NONE, f"{recall_at_1(by_pairs):.3f}", f"{best:.3f}", "1.00"]]
    mixed = Photos.joined(shown, others.described(verifier.verifier))
    lists = [("covers", shown, shortlist) for shortlist in SHORTLISTS]
    for name, gallery, (items, near, voted) in [*lists, ("covers and grocery", mixed, SHORTLISTS[0])]:
        scores = scores_of(asked, gallery, WITH, sized(verifier, items=items, photos=near, voted=voted))
        tpir = float(found(scores).mean())
        cells = [f"{figure:.3f}" for figure in (recall_at_1(scores), tpir)]
        shortlists.append([name, str(items), str(near), str(voted), *cells, f"{tpir / best:.2f}"])
    return {"covers": by_phone, "shortlists": shortlists}


def divided(photos: Photos) -> tuple[Photos, Photos]:
    """Return the queries and the gallery photos of covers."""
    shown = photos.source("reference")
    return photos.where(~shown), photos.where(shown)


def grocery(photos: Photos, rotation: int) -> dict[str, Rows]:
    """Return the row of a rotation of grocery; its training items give the vocabulary."""
    turned = replace(photos, photos=rotated(photos.photos, rotation))
    fitted = turned.where(turned.partition("train") & turned.source("store_a"))
    verifier = Remembering(GeometricVerifier.fit(fitted.local))
    asked, shown = stores(turned.where(turned.partition("test")).described(verifier.verifier), most=TESTED_BY)
    nearest = found(scores_of(asked, shown, NEAREST_PHOTO))
    without = found(scores_of(asked, shown, WITHOUT)).astype(float)
    verified = found(scores_of(asked, shown, WITH, verifier)).astype(float)
    error = clustered_error(verified - without, asked.items)
    figures = [f"{each.mean():.3f}" for each in (nearest, without, verified)]
    ratio = f"{verified.mean() / without.mean():.2f}" if without.any() else NONE
    return {"grocery": [[str(rotation), *figures, ratio, f"{error:.3f}"]]}


def clustered_error(values: np.ndarray, groups: np.ndarray) -> float:
    """Return the standard error of the mean of values (n,), clustered by group."""
    _, codes = np.unique(groups, return_inverse=True)
    sums = np.bincount(codes, weights=values - values.mean())
    return float(np.sqrt((sums**2).sum() * len(sums) / (len(sums) - 1)) / len(values))


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
