import numpy as np
import pytest

from retrieval.errors import InvalidParameter
from retrieval.metrics import ranks as ranking
from retrieval.metrics.ranks import first, map_at_r, mean_average_precision, r_precision, recall_at_k


def on_a_circle(*degrees: float) -> np.ndarray:
    angles = np.deg2rad(degrees)
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def random_unit(generator: np.random.Generator, n: int, d: int = 5) -> np.ndarray:
    vectors = generator.normal(size=(n, d)).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=1, keepdims=True)


GALLERY, LABELS = on_a_circle(0, 10, 20, 30, 40), np.array([0, 1, 0, 1, 0])
QUERY = on_a_circle(-5)  # ranks 0, 1, 2, 3, 4: relevant for item 0 are ranks 1, 3, 5


def test_by_hand() -> None:
    assert recall_at_k(QUERY, [0], GALLERY, LABELS, ks=(1, 2)) == {1: 1.0, 2: 1.0}
    assert recall_at_k(QUERY, [1], GALLERY, LABELS, ks=(1, 2)) == {1: 0.0, 2: 1.0}
    assert r_precision(QUERY, [0], GALLERY, LABELS) == pytest.approx(2 / 3)
    assert map_at_r(QUERY, [0], GALLERY, LABELS) == pytest.approx((1 + 2 / 3) / 3)
    assert mean_average_precision(QUERY, [0], GALLERY, LABELS) == pytest.approx((1 + 2 / 3 + 3 / 5) / 3)


def test_map_at_a_rank_by_hand() -> None:
    arguments = (QUERY, [0], GALLERY, LABELS)
    assert mean_average_precision(*arguments, at=2) == pytest.approx(1 / 2)  # of two ranks, one is a mate
    assert mean_average_precision(*arguments, at=3) == pytest.approx((1 + 2 / 3) / 3)
    assert mean_average_precision(*arguments, at=1000) == mean_average_precision(*arguments)
    assert mean_average_precision(*arguments, at=1000, count_query=True) == pytest.approx((1 + 2 / 3 + 3 / 5) / 4)
    with pytest.raises(InvalidParameter, match="at least 1"):
        mean_average_precision(*arguments, at=0)


def test_a_query_without_a_mate_is_left_out() -> None:
    two = np.concatenate([QUERY, QUERY])
    assert recall_at_k(two, [0, 7], GALLERY, LABELS)[1] == 1.0
    with pytest.raises(InvalidParameter, match="in the gallery"):
        recall_at_k(QUERY, [7], GALLERY, LABELS)


@pytest.mark.parametrize("value", [np.nan, np.inf])
@pytest.mark.parametrize("place", [0, 1])
def test_vectors_that_are_not_finite_are_refused(place: int, value: float) -> None:
    lists = [np.eye(3, dtype=np.float32), np.eye(3, dtype=np.float32)]
    lists[place][2, 1] = value
    for metric in (recall_at_k, map_at_r, r_precision, mean_average_precision):
        with pytest.raises(InvalidParameter, match="vectors must be finite, got 'NaN or infinity'"):
            metric(lists[0], [0, 1, 2], lists[1], [0, 1, 2])


def test_exclude_self_leaves_the_own_photo_out() -> None:
    assert recall_at_k(GALLERY, LABELS, GALLERY, LABELS)[1] == 1.0
    assert recall_at_k(GALLERY, LABELS, GALLERY, LABELS, exclude_self=True)[1] == 0.0
    with pytest.raises(InvalidParameter, match="one list"):
        recall_at_k(QUERY, [0], GALLERY, LABELS, exclude_self=True)
    scores = GALLERY @ GALLERY.T
    kept = scores.copy()
    assert recall_at_k(GALLERY, LABELS, GALLERY, LABELS, exclude_self=True, scores=scores.__getitem__)[1] == 0.0
    np.testing.assert_array_equal(scores, kept)


@pytest.mark.parametrize("seed", range(3))
def test_blocks_change_nothing_and_a_loop_agrees(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    generator = np.random.default_rng(seed)
    vectors = random_unit(generator, 50)
    labels = generator.integers(0, 6, 50)
    scores = []
    for q in range(50):
        order = [i for i in np.argsort(-(vectors @ vectors[q]), kind="stable") if i != q]
        relevant = labels[order] == labels[q]
        if relevant.any():
            r = relevant.sum()
            hits = [relevant[: i + 1].mean() for i in range(r) if relevant[i]]
            at7 = [relevant[: i + 1].mean() for i in range(7) if relevant[i]]
            scores.append((relevant[0], sum(hits) / r, relevant[:r].mean(), sum(at7) / min(r, 7)))
    want = np.mean(scores, axis=0)
    for block in (50, 10**6):
        monkeypatch.setattr(ranking, "BLOCK", block)
        arguments = (vectors, labels, vectors, labels)
        got = (
            recall_at_k(*arguments, exclude_self=True)[1],
            map_at_r(*arguments, exclude_self=True),
            r_precision(*arguments, exclude_self=True),
            mean_average_precision(*arguments, at=7, exclude_self=True),
        )
        assert got == pytest.approx(tuple(want), abs=1e-12)


@pytest.mark.parametrize("kind", [np.float32, np.float64])
def test_the_first_ranks_are_those_of_a_full_sort_with_ties_in_the_order_of_the_columns(kind: type) -> None:
    generator = np.random.default_rng(4)
    scores = generator.integers(-3, 3, (200, 40)).astype(kind)  # ties everywhere
    scores[:100:2, 3::5] *= -0.0  # and zeros of both signs
    scores[100:] += generator.normal(size=(100, 40)).astype(kind)  # and no ties
    scores[50:60, 7] = -np.inf
    for depth in (1, 2, 9, 10, 11, 40):
        assert (first(scores, depth) == np.argsort(-scores, axis=1, kind="stable")[:, :depth]).all()


def test_scores_of_another_kind_rank_instead_of_the_cosine() -> None:
    def farthest_first(rows: slice) -> np.ndarray:
        return -(QUERY[rows] @ GALLERY.T)

    assert recall_at_k(QUERY, [1], GALLERY[:4], LABELS[:4], scores=lambda rows: farthest_first(rows)[:, :4])[1] == 1.0
    assert map_at_r(QUERY, [0], GALLERY, LABELS, scores=farthest_first) == pytest.approx((1 + 2 / 3) / 3)
