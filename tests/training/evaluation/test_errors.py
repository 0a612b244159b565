"""Wrong answers of a split, against figures by hand and `identification_rates`."""

import numpy as np
import pytest

from index.search.distance import plain_distance
from retrieval.metrics.identification import identification_rates
from training.evaluation.errors import (
    FALSE_MATCH,
    FOUND,
    MISIDENTIFIED,
    MISSED,
    UNMATED,
    Outcomes,
    nearest_photos,
    worst_rows,
)
from training.evaluation.evaluate import EvaluationSplit, score_split

THRESHOLD = float(2 * np.sin(np.radians(10) / 2))  # ten degrees apart


def circle(*degrees: float) -> np.ndarray:
    angles = np.radians(np.array(degrees))
    return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


# positions 0 to 4 are the gallery: items 0, 0, 1, 2, 3; positions 5 to 10 ask for items 0, 1, 1, 2, 3, 4
LABELS = np.array([0, 0, 1, 2, 3, 0, 1, 1, 2, 3, 4])
SPLIT = EvaluationSplit("unseen", np.arange(5, 11), np.arange(5))
VECTORS = circle(0, 20, 45, 90, 170, 2, 23, 38, 130, 165, 86)
SCORES = score_split(SPLIT, VECTORS, LABELS)


def test_outcomes_and_worst_rows_equal_those_by_hand() -> None:
    outcomes = Outcomes.of(SCORES, THRESHOLD)
    assert outcomes.kind.tolist() == [FOUND, MISIDENTIFIED, FOUND, MISSED, FOUND, UNMATED]
    assert outcomes.false_match.tolist() == [False, True, False, False, False, True]
    worst = {kind: rows.tolist() for kind, rows in worst_rows(outcomes, SCORES, THRESHOLD, 8).items()}
    assert worst == {MISIDENTIFIED: [1], MISSED: [3], FALSE_MATCH: [5]}


def test_distance_equal_to_the_threshold_is_a_match() -> None:
    exact = float(plain_distance(VECTORS[[6]], VECTORS[[1]])[0])
    for threshold, outcome in ((exact, MISIDENTIFIED), (float(np.nextafter(exact, 0)), MISSED)):
        assert Outcomes.of(SCORES, threshold).kind[1] == outcome


def test_nearest_photos_of_other_and_own_item() -> None:
    other, own = nearest_photos(SPLIT, VECTORS, LABELS, 1)  # 23°: item 0 at 20°, its own at 45°
    assert (other.photo, own.photo) == (1, 2)
    assert other.distance == pytest.approx(2 * np.sin(np.radians(3) / 2), abs=1e-6)
    other, own = nearest_photos(SPLIT, VECTORS, LABELS, 5)
    assert other.photo == 3
    assert own is None


def test_nearest_photos_leave_out_other_items_of_the_group() -> None:
    """The query of item 1 is nearest to item 0, its own photo and then item 2."""
    twins = np.where(LABELS <= 1, "twins", "")
    other, own = nearest_photos(SPLIT, VECTORS, LABELS, 1, twins)
    assert (other.photo, own.photo) == (3, 2)
    other, own = nearest_photos(SPLIT, VECTORS, LABELS, 3, twins)  # items 2 and 3 are in no group
    assert (other.photo, own.photo) == (4, 3)


@pytest.mark.parametrize("seed", [0, 1, 2])
def test_outcomes_count_as_identification_rates_and_no_photo_finds_itself(seed: int) -> None:
    generator = np.random.default_rng(seed)
    labels = np.repeat(np.arange(12), 5)
    points = generator.normal(size=(12, 6))[labels] + 0.5 * generator.normal(size=(60, 6))
    vectors = (points / np.linalg.norm(points, axis=1, keepdims=True)).astype(np.float32)
    split = EvaluationSplit("unseen", np.arange(60), np.arange(60))
    scores = score_split(split, vectors, labels)
    threshold = float(np.median(scores.impostor))
    counts, rates = Outcomes.of(scores, threshold).counts(), identification_rates(scores, threshold)
    mated = counts[FOUND] + counts[MISIDENTIFIED] + counts[MISSED]
    assert counts[MISIDENTIFIED] / mated == pytest.approx(rates.misidentification)
    assert counts[FOUND] / mated == pytest.approx(rates.tpir)
    assert counts[FALSE_MATCH] / 60 == pytest.approx(rates.fpir)
    for row in range(60):
        other, own = nearest_photos(split, vectors, labels, row)
        assert other.distance == pytest.approx(scores.impostor[row], abs=1e-6)
        assert own.distance == pytest.approx(scores.own[row], abs=1e-6)
        assert own.photo != row
