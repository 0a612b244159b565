"""Selection of the distance form of a bundle on the validation items: plain or density-corrected, whitened or not.

Validation photos are searched in a gallery of fit and validation items. Forms whose FNIR at the target FPIR lies within
one standard error (over items) of the lowest count as equal. Among them the lowest OPIS of searches wins, unless the
plain distance, whitened or not, comes within a tenth of it.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from index.search.distance import PLAIN, DistanceForm, Floats
from retrieval.bundle.density import ADDITIVE, LOCAL_SCALING, NEIGHBOURS, Cohort, LocalDensity
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import EvaluationProtocol, Splits
from retrieval.metrics.consistency import search_curves, search_opis
from retrieval.metrics.identification import identification_rates, threshold_at_fpir

from .evaluate import EvaluationSplit, item_labels, make_evaluation_split, score_split

MIN_GAIN = 0.1  # relative OPIS gain over the plain distance that justifies the cost of a corrected one
SHRINKAGE = 1.0  # shrinkage of the covariance towards a multiple of the identity


@dataclass(frozen=True)
class Whitening:
    """Whitening of unit vectors: (v - mean) @ matrix, scaled to length one (ZCA with a shrunk covariance)."""

    mean: Floats  # (d,)
    matrix: Floats  # (d, d) symmetric

    @classmethod
    def fit(cls, vectors: np.ndarray) -> Whitening:
        """Fit the whitening to unit vectors (n, d) of training photos."""
        exact = vectors.astype(np.float64)
        mean = exact.mean(axis=0)
        values, axes = np.linalg.eigh(np.cov((exact - mean).T))
        values = np.maximum(values, 0)
        matrix = (axes / np.sqrt(values + SHRINKAGE * max(values.mean(), 1e-12))) @ axes.T
        return cls(mean, matrix)

    def __call__(self, vectors: np.ndarray) -> np.ndarray:
        """Return whitened unit vectors (n, d) as float32."""
        whitened = (vectors.astype(np.float64) - self.mean) @ self.matrix
        lengths = np.linalg.norm(whitened, axis=1, keepdims=True)
        return np.asarray(whitened / np.maximum(lengths, 1e-12), dtype=np.float32)


@dataclass(frozen=True)
class DistanceChoice:
    """The selected distance form, and the metrics of all candidates."""

    distance_form: DistanceForm
    whitening: Whitening | None
    tried: list[dict[str, Any]]  # the selected one first, then its equals by OPIS, then the rest


def choose_distance(
    photos: Sequence[Photo],
    vectors: np.ndarray,
    splits: Splits,
    protocol: EvaluationProtocol,
    *,
    target_fpir: float,
    like: DistanceChoice | None = None,
) -> DistanceChoice:
    """Return the best distance form at the target, or the same form as another choice.

    Parameters
    ----------
    photos, vectors:
        Photos of the fit and validation items, and their unit vectors (n, d) before whitening.
    like:
        Use the form of this choice, fitted to these vectors.
    """
    labels = item_labels(photos)
    seen = np.isin([photo.item_id for photo in photos], splits.fit)
    split = validation_split(photos, splits, protocol)
    candidates = []
    for whitening, distance_form in distances_of(vectors[seen], labels[seen]):
        whitened = vectors if whitening is None else whitening(vectors)
        scores = score_split(split, whitened, labels, distance_form=distance_form)
        threshold = threshold_at_fpir(scores, target_fpir)
        tpir = search_curves(scores, [threshold]).sensitivity[:, 0]  # of each item
        metrics = {
            "FNIR": identification_rates(scores, threshold).fnir,
            "standard_error": float(tpir.std(ddof=1) / np.sqrt(len(tpir))) if len(tpir) > 1 else 0.0,
            "search_opis": search_opis(scores, target_fpir).value,
        }
        candidates.append((distance_form, whitening, _described(distance_form, whitening) | metrics))
    best = min((metrics for *_, metrics in candidates), key=lambda metrics: metrics["FNIR"])
    limit = best["FNIR"] + best["standard_error"]
    candidates.sort(key=lambda entry: (entry[2]["FNIR"] > limit, entry[2]["search_opis"]))
    opis_limit = candidates[0][2]["search_opis"] * (1 + MIN_GAIN)
    plain = [entry for entry in candidates if entry[0] is PLAIN and entry[2]["FNIR"] <= limit]
    chosen = next((entry for entry in plain if entry[2]["search_opis"] <= opis_limit), candidates[0])
    if like is not None:
        chosen = next(entry for entry in candidates if _form(entry[2]) == _form(like.tried[0]))
    rest = [entry for entry in candidates if entry is not chosen]
    return DistanceChoice(*chosen[:2], [metrics for *_, metrics in (chosen, *rest)])


def validation_split(photos: Sequence[Photo], splits: Splits, protocol: EvaluationProtocol) -> EvaluationSplit:
    """Return the queries of the validation items with a gallery of fit and validation items."""
    mixed = make_evaluation_split("validation", photos, [*splits.fit, *splits.validation], protocol)
    unseen = ~np.isin([photo.item_id for photo in photos], splits.fit)
    return EvaluationSplit("validation", mixed.queries[unseen[mixed.queries]], mixed.gallery)


def distances_of(vectors: np.ndarray, labels: np.ndarray) -> Iterator[tuple[Whitening | None, DistanceForm]]:
    """Yield every candidate distance, fitted to unit vectors (n, d) of items that the loss was trained on."""
    for whitening in (None, Whitening.fit(vectors)):
        cohort = Cohort.of(vectors if whitening is None else whitening(vectors), labels)
        nearest = cohort.nearest(cohort.vectors)
        yield whitening, PLAIN
        for form, k in itertools.product((ADDITIVE, LOCAL_SCALING), NEIGHBOURS):
            if k < cohort.size:
                yield whitening, LocalDensity.fit(form, k, cohort, nearest=nearest)


def _form(described: dict[str, Any]) -> tuple[object, ...]:
    return described["form"], described.get("k"), described["whitened"]


def _described(distance_form: DistanceForm, whitening: Whitening | None) -> dict[str, Any]:
    form = distance_form.to_dict() if isinstance(distance_form, LocalDensity) else {"form": PLAIN.key}
    return {**form, "whitened": whitening is not None}
