"""Simulated items and searches."""

import numpy as np

from retrieval.metrics.identification import SearchScores, search_scores


def simulated(items: int, photos: int, *, seed: int, crowds: int = 40, dim: int = 24) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors and labels of items in crowds of different width."""
    generator = np.random.default_rng(seed)
    crowd = generator.integers(crowds, size=items)
    width = generator.uniform(0.5, 1.2, size=(crowds, 1))
    centres = generator.normal(size=(crowds, dim))[crowd] + width[crowd] * generator.normal(size=(items, dim))
    labels = np.repeat(np.arange(items), photos)
    spread = generator.uniform(0.2, 0.5, size=(items, 1))
    vectors = centres[labels] + spread[labels] * generator.normal(size=(len(labels), dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32), labels


def searches(vectors: np.ndarray, labels: np.ndarray, items: np.ndarray, photos: int) -> SearchScores:
    """Return what photos of some items find: the last photo of each is in the gallery, the others ask."""
    mine, last = np.isin(labels, items), np.arange(len(labels)) % photos == photos - 1
    return search_scores(vectors[mine & ~last], labels[mine & ~last], vectors[mine & last], labels[mine & last])
