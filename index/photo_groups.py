"""The mean vector of photos of one item that are searched together, as one query.

Shapes: g groups, m photos of a group, d = embedding size.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

SHORTEST = 1e-6  # length of a mean that has a direction


def mean_vectors(vectors: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return the mean of each group of unit vectors (g, m, d), scaled to length one (g, d).

    The order of the photos makes no difference. Where vectors cancel out, the smallest one stands for the group.
    """
    if vectors.shape[1] == 1:
        return vectors[:, 0]
    exact = vectors.astype(np.float64)
    total = np.sort(exact, axis=1).sum(axis=1)
    lengths = np.linalg.norm(total, axis=1, keepdims=True)
    first = np.array([min(group.tolist()) for group in exact]) if (lengths < SHORTEST).any() else total
    scaled = np.where(lengths < SHORTEST, first, total / np.maximum(lengths, SHORTEST))
    return np.asarray(scaled, dtype=np.float32)
