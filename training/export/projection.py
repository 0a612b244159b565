"""Projections fitted to the features of a pretrained backbone, which bring photos of one item closer together.

A projection takes the signed power of the features, subtracts their mean, and whitens them by the covariance within
items (Hatch et al. 2006, "Within-class covariance normalization"), so directions in which photos of one item differ
count less. The covariance is shrunk towards a multiple of the identity. Power and shrinkage are selected by
cross-validation over items, and the projection is kept only if it finds significantly more items than the features
alone do. Fitted items cannot be used to set a threshold, so it is fitted on a part of a catalogue.
Shapes: n photos, c = width of the features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.catalogue.read import Photo
from retrieval.encoders.adapt import Projection, powered
from retrieval.errors import DataError, InvalidParameter, counted
from training.data.folds import item_folds

POWERS = (1.0, 0.5)
SHRINKAGES = (0.2, 0.4, 0.6, 0.8)
FOLDS = 3
LEAST_ITEMS = 30  # items with several photos; with fewer, nothing is fitted
CONFIDENCE = 1.645  # standard errors that the gain must exceed: 95 %, one-sided

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class ProjectionChoice:
    """The outcome of a fit."""

    projection: Projection | None
    reason: str  # why there is none, else ""
    unfitted: float = 0.0  # R@1 of the features alone
    gain: float = 0.0  # in R@1, by the best candidate


def choose_projection(
    photos: Sequence[Photo], features: NDArray[np.floating[Any]], *, seed: int = 0
) -> ProjectionChoice:
    """Fit a projection to the features (n, c) of photos, if it finds more items.

    Each candidate is fitted without one fold of the items, whose photos then search each other. Items with a single
    photo are left out, and a `group` is never split between folds.
    """
    if len(features) != len(photos):
        raise InvalidParameter("features", f"have one row for each of the {len(photos)} photos", len(features))
    counts = Counter(photo.item_id for photo in photos)
    several = np.array([counts[photo.item_id] > 1 for photo in photos], dtype=bool)
    items = np.array([photo.item_id for photo in photos], dtype=str)[several]
    names = sorted(set(items.tolist()))
    if len(names) < LEAST_ITEMS:
        reason = f"{counted(len(names), 'item')} with several photos: too few to fit on (minimum {LEAST_ITEMS})"
        return ProjectionChoice(None, reason)
    usable = np.asarray(features[several], dtype=np.float64)
    try:
        folds = item_folds([p for p, s in zip(photos, several, strict=True) if s], names, folds=FOLDS, seed=seed)
    except DataError as error:  # too few groups
        return ProjectionChoice(None, str(error))
    plain, rates = _cross_validated(usable, items, [held for _, held in folds])
    best = max(rates, key=lambda setting: rates[setting].mean())
    gains = rates[best] - plain
    gain, error_of_gain = float(gains.mean()), float(gains.std(ddof=1) / np.sqrt(len(gains)))
    if gain > CONFIDENCE * error_of_gain:
        return ProjectionChoice(fit_projection(usable, items, *best), "", float(plain.mean()), gain)
    reason = (
        f"fitting it changes the share of photos that find their item first by {100 * gain:+.1f} points, which may "
        f"be chance (standard error {100 * error_of_gain:.1f})"
    )
    return ProjectionChoice(None, reason, float(plain.mean()), gain)


def fit_projection(features: Floats, items: NDArray[np.str_], power: float, shrinkage: float) -> Projection:
    """Return the projection fitted to the features (n, c) of items with several photos."""
    return _fit_all(features, items, power, [shrinkage])[0]


def found_by_item(vectors: Floats, items: NDArray[np.str_]) -> Floats:
    """Return the share of each item's photos whose nearest other photo shows the same item: (items,)."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    similar = unit @ unit.T
    np.fill_diagonal(similar, -np.inf)
    right = items[similar.argmax(axis=1)] == items
    _, codes, counts = np.unique(items, return_inverse=True, return_counts=True)
    return np.asarray(np.bincount(codes, weights=right) / counts)


def _cross_validated(
    features: Floats, items: NDArray[np.str_], folds: Sequence[Sequence[str]]
) -> tuple[Floats, dict[tuple[float, float], Floats]]:
    """Return the R@1 of each item (items,), by the centred features alone and by each power and shrinkage."""
    plain: list[Floats] = []
    rates: dict[tuple[float, float], list[Floats]] = {}
    for names in folds:
        held = np.isin(items, list(names))
        plain.append(found_by_item(features[held] - features[~held].mean(axis=0), items[held]))
        for power in POWERS:
            fitted = _fit_all(features[~held], items[~held], power, SHRINKAGES)
            for shrinkage, projection in zip(SHRINKAGES, fitted, strict=True):
                found = found_by_item(projection(features[held]), items[held])
                rates.setdefault((power, shrinkage), []).append(found)
    return np.concatenate(plain), {setting: np.concatenate(found) for setting, found in rates.items()}


def _fit_all(features: Floats, items: NDArray[np.str_], power: float, shrinkages: Sequence[float]) -> list[Projection]:
    """Return a projection for each shrinkage of the covariance within items, which are weighted equally.

    Shrinkage does not turn the eigenvectors of the covariance.
    """
    raised = powered(features, power)
    mean = raised.mean(axis=0)
    _, codes, counts = np.unique(items, return_inverse=True, return_counts=True)
    centres = np.zeros((len(counts), raised.shape[1]))
    np.add.at(centres, codes, raised)
    centres /= counts[:, None]
    rest = raised - centres[codes]
    values, vectors = np.linalg.eigh((rest / (counts - 1)[codes][:, None]).T @ rest / len(counts))
    values = np.maximum(values, 0)
    scales = [np.sqrt((1 - shrinkage) * values + shrinkage * values.mean()) for shrinkage in shrinkages]
    return [Projection(power, mean, vectors / scale) for scale in scales]
