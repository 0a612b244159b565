"""Which distance a bundle uses: plain, or corrected by local density; whitened or not. Judged on validation items.

The gallery is mixed, items that the loss saw beside validation items, and the validation items ask. The lowest FNIR
at the target FPIR is best; those within one standard error of it (over products) are equals, and among them the
lowest OPIS of searches wins, unless the plain distance, whitened or not, comes within a tenth of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from index.distance import PLAIN, Floats, Measure
from retrieval.bundle.local_density import ADDITIVE, LOCAL_SCALING, NEIGHBOURS, Cohort, LocalDensity
from retrieval.catalogue.read import Photo
from retrieval.metrics.consistency import search_curves, search_opis
from retrieval.metrics.identification import identification_rates, threshold_at_fpir
from training.data.splits import Protocol, Splits

from .evaluate import Scene, item_labels, make_scene, score_scene

SIMPLER = 0.1  # share of OPIS that a corrected distance must gain over the plain one to be worth its cost
SHRINKAGE = 1.0  # of the covariance towards a multiple of the identity, before its root is inverted


@dataclass(frozen=True)
class Whitening:
    """Unit vectors to unit vectors: (v - mean) @ matrix, scaled to length one (ZCA, with a shrunk covariance)."""

    mean: Floats  # (d,)
    matrix: Floats  # (d, d) symmetric

    @classmethod
    def fit(cls, vectors: np.ndarray) -> Whitening:
        """Fit it to unit vectors (n, d) of training photos."""
        exact = vectors.astype(np.float64)
        mean = exact.mean(axis=0)
        values, axes = np.linalg.eigh(np.cov((exact - mean).T))
        values = np.maximum(values, 0)
        matrix = (axes / np.sqrt(values + SHRINKAGE * max(values.mean(), 1e-12))) @ axes.T
        return cls(mean, matrix)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return whitened unit vectors (n, d) as float32."""
        moved = (vectors.astype(np.float64) - self.mean) @ self.matrix
        lengths = np.linalg.norm(moved, axis=1, keepdims=True)
        return np.asarray(moved / np.maximum(lengths, 1e-12), dtype=np.float32)


@dataclass(frozen=True)
class DistanceChoice:
    """A distance, and how all that were tried did."""

    measure: Measure
    whitening: Whitening | None
    tried: list[dict[str, Any]]  # the chosen one first, then equals by OPIS, then the rest


def choose_distance(
    photos: Sequence[Photo],
    vectors: np.ndarray,
    splits: Splits,
    protocol: Protocol,
    *,
    target_fpir: float,
    only_plain: bool = False,
    like: DistanceChoice | None = None,
) -> DistanceChoice:
    """Return the distance of the lowest FNIR at the target, or the one of another choice's form.

    Parameters
    ----------
    photos, vectors:
        The photos of fit and validation items, and their unit vectors (n, d) before any whitening.
    only_plain:
        Leave out the corrected ones, which mean nothing of two photos alone.
    like:
        Take this choice's form, whatever does best: what it is fitted by comes from these vectors all the same.
    """
    labels = item_labels(photos)
    seen = np.isin([photo.item_id for photo in photos], splits.fit)
    scene = validation_scene(photos, splits, protocol)
    found = []
    for whitening, measure in distances_of(vectors[seen], labels[seen]):
        if only_plain and measure is not PLAIN:
            continue
        used = vectors if whitening is None else whitening(vectors)
        scores = score_scene(scene, used, labels, measure=measure)
        threshold = threshold_at_fpir(scores, target_fpir)
        tpir = search_curves(scores, [threshold]).sensitivity[:, 0]  # of each product
        figures = {
            "FNIR": identification_rates(scores, threshold).fnir,
            "standard_error": float(tpir.std(ddof=1) / np.sqrt(len(tpir))) if len(tpir) > 1 else 0.0,
            "search_opis": search_opis(scores, target_fpir).value,
        }
        found.append((measure, whitening, _described(measure, whitening) | figures))
    best = min((figures for *_, figures in found), key=lambda figures: figures["FNIR"])
    limit = best["FNIR"] + best["standard_error"]
    found.sort(key=lambda entry: (entry[2]["FNIR"] > limit, entry[2]["search_opis"]))
    gained = found[0][2]["search_opis"] * (1 + SIMPLER)
    simple = [entry for entry in found if entry[0] is PLAIN and entry[2]["FNIR"] <= limit]
    chosen = next((entry for entry in simple if entry[2]["search_opis"] <= gained), found[0])
    if like is not None:
        chosen = next(entry for entry in found if _form(entry[2]) == _form(like.tried[0]))
    rest = [entry for entry in found if entry is not chosen]
    return DistanceChoice(*chosen[:2], [figures for *_, figures in (chosen, *rest)])


def validation_scene(photos: Sequence[Photo], splits: Splits, protocol: Protocol) -> Scene:
    """Return the validation items' queries, asked of fit and validation items together."""
    mixed = make_scene("validation", photos, [*splits.fit, *splits.validation], protocol)
    unseen = ~np.isin([photo.item_id for photo in photos], splits.fit)
    return Scene("validation", mixed.queries[unseen[mixed.queries]], mixed.gallery)


def distances_of(vectors: np.ndarray, labels: np.ndarray) -> Iterator[tuple[Whitening | None, Measure]]:
    """Yield every distance that is tried, fitted to unit vectors (n, d) of items that the loss saw."""
    for whitening in (None, Whitening.fit(vectors)):
        cohort = Cohort.of(vectors if whitening is None else whitening(vectors), labels)
        nearest = cohort.nearest(cohort.vectors)
        yield whitening, PLAIN
        for form, k in itertools.product((ADDITIVE, LOCAL_SCALING), NEIGHBOURS):
            if k < cohort.size:
                yield whitening, LocalDensity.fit(form, k, cohort, nearest=nearest)


def _form(described: dict[str, Any]) -> tuple[object, ...]:
    return described["form"], described.get("k"), described["whitened"]


def _described(measure: Measure, whitening: Whitening | None) -> dict[str, Any]:
    form = measure.to_dict() if isinstance(measure, LocalDensity) else {"form": PLAIN.key}
    return {**form, "whitened": whitening is not None}
