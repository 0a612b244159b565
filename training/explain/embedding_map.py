"""Two-dimensional map of embeddings: principal components, refined by t-SNE.

Shapes: n photos, k of them on the map, d = embedding size.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from retrieval.errors import MissingDependency

TSNE, PCA = "t-SNE", "PCA"
MOST = 5000  # photos on a map; with more, t-SNE takes minutes, and a sample does not keep the neighbours
FEWEST_TSNE = 8
PERPLEXITY = 30.0
START = 1e-4  # standard deviation of the points that t-SNE starts from

Floats = NDArray[np.float64]
Places = NDArray[np.int64]


@dataclass(frozen=True)
class EmbeddingMap:
    """Positions of photos in the unit square; x and y have the same scale."""

    photos: Places  # (k,) positions, ascending
    points: Floats  # (k, 2)
    method: str  # TSNE or PCA
    variance: float  # share that the first two principal components explain
    left_out: int  # number of photos that did not fit


def embedding_map(
    vectors: NDArray[np.float32], photos: Places, *, first: Places | None = None, seed: int = 0
) -> EmbeddingMap:
    """Return a map of some photos.

    Parameters
    ----------
    vectors:
        Unit vectors (n, d) of all photos.
    photos, first:
        Positions of the photos to draw, and of those among them to keep if not all fit.
    seed:
        Seed of the sample and of t-SNE, which runs in one thread so that the map is reproducible.
    """
    chosen = chosen_photos(photos, np.zeros(0, np.int64) if first is None else first, most=MOST, seed=seed)
    rows = vectors[chosen].astype(np.float64)
    points, variance = principal_components(rows)
    method = PCA
    left_out = len(np.unique(photos)) - len(chosen)
    if len(chosen) >= FEWEST_TSNE and not left_out and points[:, 0].std() > 0:
        points, method = _tsne(rows, points, seed), TSNE
    return EmbeddingMap(chosen, _into_unit_square(points), method, variance, left_out)


def chosen_photos(photos: Places, first: Places, *, most: int, seed: int) -> Places:
    """Return at most `most` photos, ascending: those of `first` (k,), then a random sample of the rest."""
    generator = np.random.default_rng(seed)
    members = np.unique(photos)
    important = np.isin(members, first)
    queue = np.concatenate([generator.permutation(members[important]), generator.permutation(members[~important])])
    return np.sort(queue[:most])


def principal_components(rows: Floats) -> tuple[Floats, float]:
    """Return the first two principal components of rows (k, d) as (k, 2), and their share of the variance."""
    centred = rows - rows.mean(axis=0)
    _, values, axes = np.linalg.svd(centred, full_matrices=False)
    axes = axes[:2] * np.sign(axes[np.arange(len(axes[:2])), np.abs(axes[:2]).argmax(axis=1)])[:, None]
    points = np.zeros((len(rows), 2))
    points[:, : len(axes)] = centred @ axes.T
    total = float((values**2).sum())
    return points, float((values[:2] ** 2).sum() / total) if total else 1.0


def _tsne(rows: Floats, start: Floats, seed: int) -> Floats:
    try:
        from sklearn import manifold
    except ImportError as error:
        raise MissingDependency.of_extra("scikit-learn", "train") from error
    with threadpool_limits(1):  # sums in a fixed order
        fitted = manifold.TSNE(
            perplexity=min(PERPLEXITY, (len(rows) - 1) / 3),
            init=(start / start[:, 0].std() * START).astype(np.float32),
            random_state=seed,
        ).fit_transform(rows.astype(np.float32))
    return np.asarray(fitted, dtype=np.float64)


def _into_unit_square(points: Floats) -> Floats:
    low, high = points.min(axis=0), points.max(axis=0)
    span = float((high - low).max()) or 1.0
    return np.asarray(0.5 + (points - (low + high) / 2) / span)
