"""Simulated items and searches, and the points that these set."""

import numpy as np

from retrieval.measuring.draws import PROBE
from retrieval.measuring.point import BUNDLE, Point
from retrieval.metrics.identification import SearchScores, search_scores

from .samples import sample, set_point


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


def point_of(scores: SearchScores, *, certify: bool = False) -> Point:
    """Return the point that searches with calibration photos set for a bundle."""
    own = {"own": scores.own, "own_plain": scores.own, "wrong": scores.misled}
    draws = sample(scores.labels, scores.impostor, **own)
    return set_point({PROBE: draws}, 0.05, items=scores.gallery_items, certify=certify, origin=BUNDLE)
