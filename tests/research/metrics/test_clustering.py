import numpy as np
import pytest

from research.metrics import clustering
from research.metrics.clustering import nmi
from retrieval.errors import InvalidParameter

CORNERS = np.array([[1, 0], [0, 1], [-1, 0], [0, -1]], dtype=np.float32)


def test_separate_items_have_one_cluster_each() -> None:
    noise = np.random.default_rng(0).normal(0, 0.01, (40, 2)).astype(np.float32)
    assert nmi(np.repeat(CORNERS, 10, axis=0) + noise, np.repeat(["a", "b", "c", "d"], 10), seed=1) == pytest.approx(1)


@pytest.mark.parametrize("exact", [0, 1000])
def test_by_hand_and_the_same_for_one_seed(exact: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two clusters of four photos each; item 0 has three of the first and one of the second, item 1 the rest."""
    monkeypatch.setattr(clustering, "EXACT", exact)
    noise = np.random.default_rng(1).normal(0, 0.01, (8, 2)).astype(np.float32)
    vectors, labels = np.repeat(CORNERS[[0, 2]], 4, axis=0) + noise, [0, 0, 0, 1, 0, 1, 1, 1]
    mutual = 2 * (3 / 8 * np.log(3 / 8 / (1 / 4)) + 1 / 8 * np.log(1 / 8 / (1 / 4)))
    assert nmi(vectors, labels, seed=3) == pytest.approx(mutual / np.log(2))
    assert nmi(vectors, labels, seed=3) == nmi(vectors, labels, seed=3)


def test_fewer_places_than_items_are_measured_all_the_same() -> None:
    assert nmi(np.repeat(CORNERS[:1], 6, axis=0), [0, 0, 1, 1, 2, 2], seed=0) == pytest.approx(0, abs=1e-12)


def test_labels_that_do_not_fit_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="one value per vector"):
        nmi(CORNERS, [0, 1], seed=0)
