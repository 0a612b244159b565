"""The mixed gallery that a model is judged in, beside the model that its training started from.

As in a served gallery, some items were fitted and others were not. New photos of both are searched: a photo of each
fitted item that is held out of training, and the photos of unfitted items, each of which is left out of the gallery
while it is searched. The item distance decides. The threshold comes from searches for unknown items: unfitted items,
each left out as a whole. Items count equally.
Shapes: n queries, T items, B resamples of the items.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.search.item_distance import ItemDistance
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import MOST_ITEMS, EvaluationProtocol, photos_by_hash, require_mates, side
from retrieval.metrics.consistency import opis_by_chance, search_curves, threshold_at_tpir, weighted_consistency
from retrieval.metrics.identification import SearchScores

from .evaluate import EvaluationSplit, item_groups, item_labels, score_split

FITTED, UNFITTED, BOTH = "fitted", "unfitted", "both"
CALIBRATION = "calibration"
MOST_PHOTOS = 8  # gallery photos of an item
MOST_QUERIES = 1600  # of a part; more only where items have fewer than MOST_PHOTOS each
RESAMPLES, INTERVAL = 1000, (2.5, 97.5)  # bootstrap over items, and the ends of its interval in percent
LEAST_JUDGED = 5  # unfitted items, below which nothing is called worse
RANGE, POINTS = (5, 4), 9  # the mean TPIR is over FPIR from target / 5 to 4 · target, at 9 points
GREATEST_OPIS = 0.25  # the greatest variance of a utility

Floats = NDArray[np.float64]
Measures = dict[str, dict[str, Floats]]  # values (B,) by part and metric
Comparison = Mapping[str, Mapping[str, Any]]  # by part: items, queries, and of each metric before, after, low, high


@dataclass(frozen=True)
class MixedGallery:
    """Gallery and queries among `photos`."""

    photos: Sequence[Photo]
    split: EvaluationSplit
    parts: NDArray[np.str_]  # (n,) FITTED, UNFITTED or CALIBRATION

    @classmethod
    def of(
        cls,
        photos: Sequence[Photo],
        *,
        held_out: Collection[str],
        unfitted: Sequence[str],
        protocol: EvaluationProtocol,
        calibration: Sequence[str] = (),
    ) -> MixedGallery:
        """Return a sample of at most 200 items of each part, with at most 8 gallery photos each.

        Parameters
        ----------
        held_out:
            Ids of photos that training left out (`photos_to_hold_out`): the queries of their items, which were fitted.
        unfitted, calibration:
            Items that were not fitted. The threshold comes from calibration items if there are any.

        Raises DataError if no photo of the unfitted items has another one of its item, such as in a changed catalogue.
        """
        require_mates("unfitted", photos, unfitted, protocol)
        by_item, new = photos_by_hash(photos), set(held_out)
        used: dict[str, Photo] = {}
        queries, gallery, parts = [], [], []
        fitted = [photo.item_id for photo in photos if photo.photo_id in new]
        for part, items in ((FITTED, fitted), (UNFITTED, unfitted), (CALIBRATION, calibration)):
            wanted = set(items)
            chosen = [item for item in by_item if item in wanted][:MOST_ITEMS]
            most = max(MOST_PHOTOS, MOST_QUERIES // max(1, len(chosen)))
            for item in chosen:
                own = [photo for photo in by_item[item] if photo.photo_id not in new]
                asked = [photo for photo in by_item[item] if photo.photo_id in new] if part == FITTED else own
                asked = [photo for photo in asked if side(photo) == protocol.query_source][:most]
                shown = [photo for photo in own if side(photo) == protocol.gallery_source][:MOST_PHOTOS]
                used |= {photo.photo_id: photo for photo in (*asked, *shown)}
                queries += [photo.photo_id for photo in asked]
                gallery += [photo.photo_id for photo in shown]
                parts += [part] * len(asked)
        place = {photo_id: position for position, photo_id in enumerate(used)}
        asked_at, shown_at = (np.array([place[name] for name in names]) for names in (queries, gallery))
        return cls(list(used.values()), EvaluationSplit("mixed", asked_at, shown_at), np.array(parts))

    def search(self, vectors: NDArray[np.float32]) -> SearchScores:
        """Return the searches with unit vectors of the photos (photos, d), by the item distance."""
        labels, groups = item_labels(self.photos), item_groups(self.photos)
        return score_split(self.split, vectors, labels, groups=groups, item_distance=ItemDistance.default())

    def metrics(self, scores: SearchScores, target_fpir: float, before: SearchScores | None = None) -> dict[str, float]:
        """Return R@1, TPIR and others by name: of both parts, and of each with its name in front.

        "mean TPIR" is over FPIR around the target, evenly spaced on a logarithmic scale. It varies less between samples
        than the TPIR at a point. OPIS and the rest of the consistency are those of unfitted items where the model finds
        as many of their photos as the model `before` does at its threshold. If it never does, OPIS is the greatest.
        """
        even = np.ones((1, len(np.unique(scores.labels))))
        measured = self._measures(scores, target_fpir, even)
        start = measured if before is None else self._measures(before, target_fpir, even)
        equal = float(start[UNFITTED]["TPIR"][0])
        measured[UNFITTED] |= self._consistency(scores, equal, even)
        values = {
            name if part == BOTH else f"{part} {name}": float(value[0])
            for part, measures in measured.items()
            for name, value in measures.items()
        }
        if values["unfitted equal TPIR"] < equal - 1e-9:
            values["unfitted OPIS"] = GREATEST_OPIS
        points = np.geomspace(target_fpir / RANGE[0], min(0.999, target_fpir * RANGE[1]), POINTS).tolist()
        found = [self._found(scores, self._thresholds(scores, point, even), even)[BOTH] for point in points]
        return values | {"mean TPIR": float(np.mean(found))}

    def compare(self, before: SearchScores, after: SearchScores, target_fpir: float) -> Comparison:
        """Return the metrics of two models, and the 95 % interval of their difference over resampled items.

        Consistency (`Consistency`) is that of unfitted items where both models find equally many of their photos.
        """
        weights, both = self._resamples(before), (before, after)
        first, second = (self._measures(scores, target_fpir, weights) for scores in both)
        equal = min(float(measures[UNFITTED]["TPIR"][0]) for measures in (first, second))
        for measures, scores in zip((first, second), both, strict=True):
            measures[UNFITTED] |= self._consistency(scores, equal, weights)
        return {
            part: {
                "items": len(np.unique(before.labels[self._queries_of(part)])),
                "queries": int(self._queries_of(part).sum()),
                **{name: _change(value, second[part][name]) for name, value in values.items()},
            }
            for part, values in first.items()
        }

    def _queries_of(self, part: str) -> NDArray[np.bool_]:
        return np.isin(self.parts, (FITTED, UNFITTED)) if part == BOTH else np.asarray(self.parts == part)

    @property
    def _unknown(self) -> NDArray[np.bool_]:
        """Whether the search without its own item sets the threshold (n,)."""
        return self._queries_of(CALIBRATION if CALIBRATION in self.parts else UNFITTED)

    def _measures(self, scores: SearchScores, target_fpir: float, weights: Floats) -> Measures:
        """Return the metrics with items weighted by each row of weights (B, T), in the order of their labels."""
        thresholds = self._thresholds(scores, target_fpir, weights)
        first, found = (self._found(scores, ends, weights) for ends in (np.full(1, np.inf), thresholds))
        measures: Measures = {part: {"R@1": first[part], "TPIR": found[part]} for part in found}
        returned = scores.impostor <= thresholds[:, None]
        measures[UNFITTED]["FPIR"] = _share(returned, self.parts == UNFITTED, scores.labels, weights)
        return measures

    def _found(self, scores: SearchScores, thresholds: Floats, weights: Floats) -> dict[str, Floats]:
        """Return the share of mated searches whose own item is first and within thresholds (B,), by part (B,)."""
        found, shares = np.isfinite(scores.correct) & (scores.correct <= thresholds[:, None]), {}
        for part in (FITTED, UNFITTED):
            among = (self.parts == part) & scores.mated
            if among.any():
                shares[part] = _share(found, among, scores.labels, weights)
        return shares | {BOTH: np.mean(list(shares.values()), axis=0)}

    def _thresholds(self, scores: SearchScores, fpir: float, weights: Floats) -> Floats:
        """Return the largest threshold with a FPIR of unknown items of at most `fpir`, for each row of weights (B,)."""
        rows = np.flatnonzero(self._unknown)
        rows = rows[np.argsort(scores.impostor[rows], kind="stable")]
        each = _query_weights(scores.labels, self._unknown, weights)[:, rows]
        rates = np.cumsum(each, axis=1) / each.sum(axis=1, keepdims=True)
        allowed = (rates <= fpir + 1e-9).sum(axis=1)  # never all of them: the last rate is 1
        return np.asarray(np.nextafter(scores.impostor[rows][allowed], -np.inf))

    def _consistency(self, scores: SearchScores, tpir: float, weights: Floats) -> dict[str, Floats]:
        """Return the consistency of unfitted items at the threshold with this TPIR, for each row of weights (B,)."""
        unfitted = scores.where(self.parts == UNFITTED)
        curves = search_curves(unfitted, [threshold_at_tpir(unfitted, tpir)])
        found = weighted_consistency(curves, weights[:, np.searchsorted(np.unique(scores.labels), curves.classes)])
        chance = np.full(len(weights), opis_by_chance(unfitted, curves))
        return {
            "equal TPIR": found["tpir"],
            "OPIS": found["opis"],
            "OPIS by chance": chance,
            "TPIR of the worse half": found["worse_half"],
            "never found": found["never_found"],
        }

    def _resamples(self, scores: SearchScores) -> Floats:
        """Return how often each resample has each item (1 + B, T). The first row is the sample itself."""
        items, first = np.unique(scores.labels, return_index=True)
        weights, generator = np.ones((1 + RESAMPLES, len(items))), np.random.default_rng(0)
        for part in np.unique(self.parts):
            own = np.flatnonzero(self.parts[first] == part)
            weights[1:, own] = generator.multinomial(len(own), np.full(len(own), 1 / len(own)), RESAMPLES)
        return weights


def worse(comparison: Comparison) -> list[str]:
    """Return sentences on what is worse than before beyond chance, in both parts together; [] if nothing is.

    Nothing is called worse by fewer than 5 unfitted items.
    """
    if not comparison or comparison[UNFITTED]["items"] < LEAST_JUDGED:
        return []
    return [
        f"{name} is {values['after']:.3f} and was {values['before']:.3f} before training (95 % interval of the change "
        f"{values['low']:+.3f} to {values['high']:+.3f})"
        for name in ("R@1", "TPIR")
        if (values := comparison[BOTH][name])["high"] < 0
    ]


def _query_weights(labels: NDArray[np.generic], among: NDArray[np.bool_], weights: Floats) -> Floats:
    """Return the weight of each query (B, n): that of its item (B, T), divided among its queries; 0 for others."""
    codes = np.unique(labels, return_inverse=True)[1]
    counts = np.bincount(codes[among], minlength=weights.shape[1])
    return np.asarray(np.where(among, weights[:, codes] / np.maximum(counts[codes], 1), 0))


def _share(hits: NDArray[np.bool_], among: NDArray[np.bool_], labels: NDArray[np.generic], weights: Floats) -> Floats:
    """Return the weighted share of hits (B, n) among some queries, where items are weighted (B,)."""
    each = _query_weights(labels, among, weights)
    return np.asarray((each * hits).sum(axis=1) / np.maximum(each.sum(axis=1), 1e-12))


def _change(before: Floats, after: Floats) -> dict[str, float]:
    """Return the values of the sample and the interval of the change over its resamples, all (1 + B,)."""
    low, high = np.percentile((after - before)[1:], INTERVAL).tolist()
    return {"before": float(before[0]), "after": float(after[0]), "low": low, "high": high}
