"""Error sheet of a run: the wrong answers of its best model on the test items."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from PIL import Image

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, InvalidParameter, counted
from retrieval.images import Preprocessing
from retrieval.images.thumbnails import thumbnail
from retrieval.metrics.identification import (
    IdentificationRates,
    SearchScores,
    identification_rates,
    threshold_at_fpir,
)
from retrieval.reports.sheet import Card, Section, Sheet
from training.data.reader import PhotoReader
from training.loop.run import FOLD_COUNT, Run

from .embedding import embed_catalogue
from .errors import (
    FALSE_MATCH,
    FOUND,
    KINDS,
    MISIDENTIFIED,
    MISSED,
    UNMATED,
    Neighbour,
    Outcomes,
    nearest_photos,
    worst_rows,
)
from .evaluate import (
    MORE_GROUPS,
    ONE_GROUP,
    identification_metrics,
    item_groups,
    item_labels,
    make_evaluation_split,
    score_split,
)

WORST, MOST_WORST = 8, 50  # queries per kind of error
SIDE = 144  # side of a picture, in pixels
TEXTS = {
    MISIDENTIFIED: "Another item comes first.",
    MISSED: "Nothing is returned, though the gallery has the item.",
    FALSE_MATCH: "Another item would be returned if the query's own item were not in the gallery.",
}


@dataclass(frozen=True)
class Wrong:
    """A wrong answer: a query and its nearest photos of another item and of its own."""

    photo: Photo
    other: tuple[Photo, float] | None  # with the distance
    own: tuple[Photo, float] | None


@dataclass(frozen=True)
class Explanation:
    """The errors of a run on items that it was not fitted on."""

    run: str
    protocol: str
    threshold: float
    target_fpir: float
    rates: IdentificationRates
    items: int  # in the gallery
    counts: Mapping[str, int]  # queries of each outcome
    worst: Mapping[str, Sequence[Wrong]]  # by kind of error
    preprocessing: Preprocessing
    set_on: str = "the calibration items"  # items that set the threshold

    @property
    def queries(self) -> int:
        """Number of queries."""
        return sum(count for outcome, count in self.counts.items() if outcome != FALSE_MATCH)

    def summary(self) -> list[str]:
        """Return the results in a few sentences."""
        lines = [
            f"{counted(self.queries, 'search', 'searches')} among {counted(self.items, 'item')}, plain distance, "
            f"threshold {self.threshold:.4f} set on {self.set_on} for FPIR {self.target_fpir:g}.",
            f"{self.counts[FOUND]} return their own item first, {self.counts[MISIDENTIFIED]} another item, "
            f"{self.counts[MISSED]} nothing; {self.counts[FALSE_MATCH]} would return something if their item were not "
            "in the gallery.",
        ]
        if self.counts[UNMATED]:
            lines.append(
                f"{counted(self.counts[UNMATED], 'search', 'searches')} for items without a photo in the gallery."
            )
        return lines

    def to_dict(self) -> dict[str, Any]:
        """Return JSON values with photo_ids and item_ids; undefined rates are null."""
        rates = identification_metrics(self.rates)
        return {
            "run": self.run,
            "protocol": self.protocol,
            "threshold": self.threshold,
            "target_fpir": self.target_fpir,
            "queries": self.queries,
            "items": self.items,
            "outcomes": dict(self.counts),
            "rates": {name: value if math.isfinite(value) else None for name, value in rates.items()},
            "worst": {kind: [_wrong_dict(wrong) for wrong in found] for kind, found in self.worst.items()},
        }

    def sheet(self) -> Sheet:
        """Return the sheet of the worst answers, with pictures cropped as the model sees them."""
        sections = [
            Section(f"{kind.capitalize()}: {self.counts[kind]}", TEXTS[kind], [self._card(each) for each in worst])
            for kind in KINDS
            if (worst := self.worst[kind])
        ]
        return Sheet(f"Errors of {self.run}", self.summary(), sections)

    def _card(self, wrong: Wrong) -> Card:
        """Return the query, the nearest photo of another item, and the nearest one of its own."""
        photos, texts = [wrong.photo], [f"Query: {wrong.photo.item_id} ({wrong.photo.photo_id})"]
        for role, found in (("Nearest other item", wrong.other), ("Its own item", wrong.own)):
            if found is None:
                texts.append(f"{role}: none in the gallery")
                continue
            photo, distance = found
            told = f"{distance:.4f}, {'a match' if distance <= self.threshold else 'too far'}"
            photos.append(photo)
            texts.append(f"{role}: {photo.item_id} ({photo.photo_id}), {told}")
        return Card([(photo.photo_id, self._picture(photo)) for photo in photos], ". ".join([*texts, ""]).strip())

    def _picture(self, photo: Photo) -> bytes:
        reader = PhotoReader([photo], replace(self.preprocessing, size=SIDE), cache_bytes=0)
        return thumbnail(Image.fromarray(reader.pixels([0])[0]))


def explain_run(run: Run, *, worst: int = WORST, progress: bool = True) -> Explanation:
    """Embed the photos of a run's test items with its best model and find its errors among them.

    A run on all items has no test items: its first fold model searches the items that it was fitted without.

    Parameters
    ----------
    worst:
        Number of wrong answers per kind of error, 1 to 50.

    The threshold is set on the calibration items, or on the same items by a fold model.
    """
    if not 1 <= worst <= MOST_WORST:
        raise InvalidParameter("worst", f"lie between 1 and {MOST_WORST}", worst)
    name, set_on = run.path.resolve().name, "the calibration items"
    parts, target = run.splits, run.settings.target_fpir
    if run.folds:
        run = run.folds[0]
        left_out = run.splits.validation
        parts = replace(parts, test=left_out, calibration=left_out)
        set_on = f"the same items, which one of {FOLD_COUNT} fold models was fitted without,"
    searched = {*parts.test, *parts.calibration}
    photos = [photo for photo in run.photos() if photo.item_id in searched]
    chosen, calibration = (
        make_evaluation_split(name, photos, items, run.protocol)
        for name, items in (("test", parts.test), ("calibration", parts.calibration))
    )
    vectors = embed_catalogue(run.best_model(), photos, run.preprocessing, progress=progress)
    labels, groups = item_labels(photos), item_groups(photos)
    calibrated = score_split(calibration, vectors, labels, groups=groups)
    if not np.isfinite(calibrated.impostor).any():
        raise DataError(ONE_GROUP, remedy=MORE_GROUPS)
    threshold = threshold_at_fpir(calibrated, target)
    scores = score_split(chosen, vectors, labels, groups=groups)
    outcomes = Outcomes.of(scores, threshold)

    def nearest(row: int) -> tuple[Photo, Neighbour | None, Neighbour | None]:
        return photos[chosen.queries[row]], *nearest_photos(chosen, vectors, labels, row, groups)

    return Explanation(
        run=name,
        protocol=run.protocol.describe(),
        threshold=threshold,
        target_fpir=target,
        rates=identification_rates(scores, threshold),
        items=scores.gallery_items,
        counts=outcomes.counts(),
        worst=_worst(scores, outcomes, threshold, worst, photos, nearest),
        preprocessing=run.preprocessing,
        set_on=set_on,
    )


def _worst(
    scores: SearchScores,
    outcomes: Outcomes,
    threshold: float,
    count: int,
    photos: Sequence[Photo],
    nearest: Callable[[int], tuple[Photo, Neighbour | None, Neighbour | None]],
) -> dict[str, list[Wrong]]:
    """Return the worst answers of each kind, given the photo of a row with the nearest of another and its own item."""

    def named(found: Neighbour | None) -> tuple[Photo, float] | None:
        return None if found is None else (photos[found.photo], found.distance)

    found: dict[str, list[Wrong]] = {}
    for kind, rows in worst_rows(outcomes, scores, threshold, count).items():
        each = [nearest(row) for row in rows.tolist()]
        found[kind] = [Wrong(photo, named(other), named(own)) for photo, other, own in each]
    return found


def _wrong_dict(wrong: Wrong) -> dict[str, Any]:
    return {
        "photo_id": wrong.photo.photo_id,
        "item_id": wrong.photo.item_id,
        "other": _neighbour_dict(wrong.other),
        "own": _neighbour_dict(wrong.own),
    }


def _neighbour_dict(found: tuple[Photo, float] | None) -> dict[str, Any] | None:
    if found is None:
        return None
    return {"photo_id": found[0].photo_id, "item_id": found[0].item_id, "distance": found[1]}
