import numpy as np
import pytest

from research.metrics import reranking
from research.metrics.reranking import contextual_scorer
from retrieval.errors import InvalidParameter
from retrieval.metrics import ranks as ranking
from retrieval.metrics.ranks import mean_average_precision, recall_at_k


def unit(generator: np.random.Generator, n: int, d: int = 4) -> np.ndarray:
    vectors = generator.normal(size=(n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


def literal(queries: np.ndarray, gallery: np.ndarray, k: int, weight: float, margin: float, alone: bool) -> np.ndarray:
    """Eq. 15, 16 and Appendix I.5 with sets; with queries of their own, each is the only stranger in its set."""
    n, m = len(queries), len(gallery)

    def near(vector: np.ndarray, own: object) -> set[object]:
        apart: dict[object, float] = {j: max(0.0, 2 - 2 * float(vector @ gallery[j])) for j in range(m)}
        apart[own] = 0.0
        edge = sorted(apart.values())[min(k, len(apart)) - 1]
        return {j for j, distance in apart.items() if distance <= edge + margin}

    of_gallery = [near(gallery[j], j) for j in range(m)]
    scores = np.zeros((n, m))
    for i in range(n):
        mine = near(queries[i], i if alone else "query")
        for j in range(m):
            shared = len(mine & of_gallery[j]) / len(mine) if j in mine else 0.0
            scores[i, j] = weight * shared + (1 - weight) * np.exp(2 * float(queries[i] @ gallery[j]) - 2)
    return scores


@pytest.mark.parametrize("margin", [0.0, 0.3])
@pytest.mark.parametrize("k", [1, 2, 5, 60])
@pytest.mark.parametrize("alone", [True, False])
def test_it_equals_the_literal_form(k: int, margin: float, alone: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(k)
    gallery = unit(generator, 30)
    queries = gallery if alone else unit(generator, 11)
    monkeypatch.setattr(ranking, "BLOCK", 100)
    scorer = contextual_scorer(queries, gallery, neighbours=k, weight=0.4, margin=margin, exclude_self=alone)
    got = np.concatenate([scorer(rows) for rows in ranking.blocks(len(queries), len(gallery))])
    assert got == pytest.approx(literal(queries, gallery, k, 0.4, margin, alone), abs=1e-6)


def test_without_weight_the_order_is_the_cosine_s() -> None:
    generator = np.random.default_rng(0)
    vectors, labels = unit(generator, 50), generator.integers(0, 8, 50)
    arguments = (vectors, labels, vectors, labels)
    scores = contextual_scorer(vectors, vectors, weight=0.0, exclude_self=True)
    plain = mean_average_precision(*arguments, exclude_self=True)
    assert mean_average_precision(*arguments, exclude_self=True, scores=scores) == pytest.approx(plain, abs=1e-12)


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


def test_hopeless_arguments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    vectors = unit(np.random.default_rng(0), 20)
    for name, values in (("neighbours", (0,)), ("weight", (-0.1, 1.1)), ("margin", (-1.0, float("nan")))):
        for value in values:
            with pytest.raises(InvalidParameter, match=name):
                contextual_scorer(vectors, vectors, **{name: value})
    with pytest.raises(InvalidParameter, match="one list"):
        contextual_scorer(vectors[:3], vectors, exclude_self=True)
    monkeypatch.setattr(reranking, "MOST_MEMBERS", 399)
    with pytest.raises(InvalidParameter, match="Lower margin"):
        contextual_scorer(vectors, vectors, margin=4.0)
