"""Start of the embedding layer: a projection fitted to the features of training photos.

It whitens the features by the covariance within items, as `export --pretrained --fit` does. Training then starts from
the fitted pretrained model rather than from random weights. Two rules keep new photos and other items as near as the
fitted photos (`research.benchmarks.head_start`): the covariance is that of several views of each photo, because few
photos have no variance at all in most directions, and no direction is dropped unless the layer is narrower than the
features, because those in which the fitted photos vary most are theirs alone.
Shapes: V views, n photos, c channels of the backbone, d = embedding size.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from training.config import AUTO, SMALL, Settings
from training.export.projection import fit_projection

FIT, RANDOM = "fit", "random"
SHRINKAGE = 0.6  # of the covariance within items
MOST_ITEMS, MOST_PHOTOS = 1000, 12  # items of the fit, and photos per item
MOST_VECTORS = 24_000  # views of photos

Floats = NDArray[np.float64]


def starts_fitted(settings: Settings) -> bool:
    """Return whether the embedding layer starts at a fitted projection."""
    return settings.head_start == FIT or (settings.head_start == AUTO and settings.backbone != SMALL)


def photos_to_fit(labels: NDArray[np.int64], *, seed: int) -> NDArray[np.int64]:
    """Return the positions of the photos that the projection is fitted to, by labels of all training photos (n,)."""
    items = np.random.default_rng(seed).permutation(np.unique(labels))[:MOST_ITEMS]
    positions = first_of_each(labels, MOST_PHOTOS)
    return positions[np.isin(labels[positions], items)]


def first_of_each(labels: NDArray[np.int64], most: int) -> NDArray[np.int64]:
    """Return the positions of the first `most` photos of each item, ascending, by labels (n,)."""
    order = np.argsort(labels, kind="stable")
    _, starts, counts = np.unique(labels[order], return_index=True, return_counts=True)
    return np.sort(order[np.arange(len(labels)) - np.repeat(starts, counts) < most])


def start_head(head: nn.Linear, features: NDArray[np.floating[Any]], items: NDArray[np.generic]) -> None:
    """Set an embedding layer to the projection fitted to features (V, n, c) of views of photos of items (n,).

    If a layer has more outputs than the features have channels, the others are zero. If no item has several photos, the
    layer does not change.
    """
    _, codes, counts = np.unique(items, return_inverse=True, return_counts=True)
    several = counts[codes] > 1
    if not several.any():
        return
    views = features[: max(1, MOST_VECTORS // int(several.sum())), several]
    weight, bias = _fitted(views.astype(np.float64), items[several], head.out_features)
    with torch.no_grad():
        head.weight.zero_()
        head.bias.zero_()
        head.weight[: len(weight)] = torch.from_numpy(weight).to(head.weight)
        head.bias[: len(bias)] = torch.from_numpy(bias).to(head.bias)


def _fitted(features: Floats, items: NDArray[np.generic], dim: int) -> tuple[Floats, Floats]:
    """Return the weight (≤ d, c) and the bias (≤ d,) of the projection fitted to features (V, n, c)."""
    names = np.tile(items.astype(str), len(features))
    vectors = features.reshape(len(names), -1)
    projection = fit_projection(vectors, names, 1.0, SHRINKAGE)
    projected = projection(vectors)
    _, directions = np.linalg.eigh(projected.T @ projected / len(projected))  # ascending
    matrix = projection.matrix @ directions[:, ::-1][:, :dim]
    return matrix.T, -projection.mean @ matrix
