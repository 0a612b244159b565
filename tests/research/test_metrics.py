"""Metrics of the papers against literal forms and values by hand."""

from __future__ import annotations

import numpy as np
import pytest

from research import metrics
from research.metrics import cluster_diversity, contextual_scorer, feature_diversity, nmi
from retrieval.metrics import ranks
from retrieval.metrics.ranks import recall_at_k

CORNERS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=np.float32)
AXES = np.eye(4, dtype=np.float32)


def unit(generator: np.random.Generator, n: int, d: int = 4) -> np.ndarray:
    vectors = generator.normal(size=(n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


@pytest.mark.parametrize("exact", [0, 1000])
def test_nmi_by_hand_and_the_same_for_one_seed(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters of four photos each; item 0 has three of the first and one of the second, item 1 the rest."""
    monkeypatch.setattr(metrics, "EXACT", exact)
    noise = np.random.default_rng(1).normal(0, 0.01, (8, 2)).astype(np.float32)
    vectors, labels = np.repeat(CORNERS[[0, 2]], 4, axis=0) + noise, np.array([0, 0, 0, 1, 0, 1, 1, 1])
    mutual = 2 * (3 / 8 * np.log(3 / 8 / (1 / 4)) + 1 / 8 * np.log(1 / 8 / (1 / 4)))
    assert nmi(vectors, labels, seed=3) == pytest.approx(mutual / np.log(2))
    assert nmi(vectors, labels, seed=3) == nmi(vectors, labels, seed=3)
    assert nmi(np.repeat(CORNERS[:1], 6, axis=0), np.array([0, 0, 1, 1, 2, 2]), seed=0) == pytest.approx(0, abs=1e-12)


def test_cluster_diversity_is_the_variance_of_the_distances_within() -> None:
    angles = np.deg2rad([0, 60, 180])  # distances 1, 2 and sqrt(3)
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    assert cluster_diversity(vectors, np.array([5, 5, 5])) == pytest.approx(np.var([1, 2, np.sqrt(3)]), abs=1e-6)
    assert np.isnan(cluster_diversity(AXES, np.arange(4)))


def test_feature_diversity_by_hand() -> None:
    assert feature_diversity(np.concatenate([AXES, AXES])) == pytest.approx(1)  # all directions alike
    shares = np.array([3, 1, 1, 1]) / 6  # singular values 3, 1, 1, 1
    vectors = np.concatenate([AXES, *[AXES[:1]] * 8])
    assert feature_diversity(vectors) == pytest.approx(np.exp(-np.mean(np.log(0.25 / shares))))
    assert 0 < feature_diversity(AXES[:2]) < feature_diversity(AXES)


def literal(queries: np.ndarray, gallery: np.ndarray, k: int, weight: float, alone: bool) -> np.ndarray:
    """Eq. 15, 16 and Appendix I.5 with sets; with queries of their own, each is the only stranger in its set."""
    n, m = len(queries), len(gallery)

    def near(vector: np.ndarray, own: object) -> set[object]:
        apart: dict[object, float] = {j: max(0.0, 2 - 2 * float(vector @ gallery[j])) for j in range(m)}
        apart[own] = 0.0
        edge = sorted(apart.values())[min(k, len(apart)) - 1]
        return {j for j, distance in apart.items() if distance <= edge}

    of_gallery = [near(gallery[j], j) for j in range(m)]
    scores = np.zeros((n, m))
    for i in range(n):
        mine = near(queries[i], i if alone else "query")
        for j in range(m):
            shared = len(mine & of_gallery[j]) / len(mine) if j in mine else 0.0
            scores[i, j] = weight * shared + (1 - weight) * np.exp(2 * float(queries[i] @ gallery[j]) - 2)
    return scores


@pytest.mark.parametrize("k", [1, 2, 5, 60])
@pytest.mark.parametrize("alone", [True, False])
def test_re_ranking_equals_the_literal_form(k: int, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(k)
    gallery = unit(generator, 30)
    queries = gallery if alone else unit(generator, 11)
    monkeypatch.setattr(ranks, "BLOCK", 100)
    scorer = contextual_scorer(queries, gallery, neighbours=k, weight=0.4, exclude_self=alone)
    got = np.concatenate([scorer(rows) for rows in ranks.blocks(len(queries), len(gallery))])
    assert got == pytest.approx(literal(queries, gallery, k, 0.4, alone), abs=1e-6)


def test_a_shared_neighbourhood_brings_the_mate_to_the_front() -> None:
    """The nearest photo, at -8.9 degrees, has its neighbours farther out: it shares 1 of 4 with the query at 0.

    The mate at 9 degrees shares 2, itself and the one at 10 degrees.
    """
    angles = np.deg2rad([0, 9, 10, 11, 12, -8.9, -15, -16, -17])
    vectors = np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)
    labels = np.array([0, 0, 0, 0, 0, 1, 1, 1, 1])
    arguments = (vectors[:1], labels[:1], vectors[1:], labels[1:])
    assert recall_at_k(*arguments)[1] == 0.0
    scores = contextual_scorer(vectors[:1], vectors[1:], neighbours=4, weight=0.5)
    assert recall_at_k(*arguments, scores=scores)[1] == 1.0
