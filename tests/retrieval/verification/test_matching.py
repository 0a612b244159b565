"""Inliers: many between a picture and its photo, none between two pictures, and always the same ones."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from retrieval.verification.detector import detect
from retrieval.verification.features import UNIT, LocalFeatures
from retrieval.verification.matching import MOST_ZOOM, _plausible, inlier_pairs, tentative_pairs
from retrieval.verification.settings import VerifierSettings

from .pictures import photographed, picture

DETECTOR = VerifierSettings()


@pytest.fixture(scope="module")
def shown() -> list[LocalFeatures]:
    return [detect(picture(seed), DETECTOR) for seed in range(5)]


@pytest.fixture(scope="module")
def asked() -> list[LocalFeatures]:
    return [detect(photographed(picture(seed), seed), DETECTOR) for seed in range(5)]


def test_a_photo_agrees_with_its_own_picture_alone(shown: list[LocalFeatures], asked: list[LocalFeatures]) -> None:
    settings = VerifierSettings()
    counts = np.array([[len(inlier_pairs(query, photo, settings)) for photo in shown] for query in asked])
    others = counts[~np.eye(5, dtype=bool)]
    assert counts.diagonal().min() >= 30
    assert others.max() < 10


def test_inliers_lie_where_the_transformation_maps_them(shown: list[LocalFeatures], asked: list[LocalFeatures]) -> None:
    pairs = inlier_pairs(asked[0], shown[0], VerifierSettings())
    places = [side.positions[rows].astype(float) for side, rows in zip((asked[0], shown[0]), pairs.T, strict=True)]
    known = np.column_stack([places[0], np.ones(len(pairs))])
    fitted, *_ = np.linalg.lstsq(known, places[1], rcond=None)
    assert np.linalg.norm(known @ fitted - places[1], axis=1).max() < VerifierSettings().error + 1
    angle = np.degrees(np.arctan2(fitted[0, 1], fitted[0, 0]))
    assert abs(angle) == pytest.approx(12, abs=1)  # as it was turned


def test_a_photo_agrees_with_itself_everywhere(shown: list[LocalFeatures]) -> None:
    pairs = inlier_pairs(shown[0], shown[0], VerifierSettings())
    assert (pairs[:, 0] == pairs[:, 1]).all()
    places = len(np.unique(shown[0].positions, axis=0))
    assert 0.9 * places <= len(pairs) <= places < len(shown[0])  # each place once, drawn repetitions left out


def test_pairs_match_a_slow_count(shown: list[LocalFeatures], asked: list[LocalFeatures]) -> None:
    a, b = asked[1], shown[1]
    expected = []
    for row, one in enumerate(a.descriptors.astype(float)):
        apart = np.sqrt(np.maximum(0, UNIT**2 - b.descriptors.astype(float) @ one))  # of vectors of one length
        nearest, second = np.argsort(apart, kind="stable")[:2]
        back = a.descriptors.astype(float) @ b.descriptors[nearest]
        if apart[nearest] < 0.85 * apart[second] and np.argmax(back) == row:
            expected.append((row, nearest))
    assert tentative_pairs(a, b, 0.85).tolist() == [list(map(int, pair)) for pair in expected]


def test_the_order_of_key_points_hardly_matters(shown: list[LocalFeatures], asked: list[LocalFeatures]) -> None:
    order = np.random.default_rng(0).permutation(len(shown[0]))
    mixed = replace(
        shown[0], descriptors=shown[0].descriptors[order], positions=shown[0].positions[order], words=shown[0].words
    )
    straight = {tuple(pair) for pair in tentative_pairs(asked[0], shown[0], 0.85)}
    assert {(a, order[b]) for a, b in tentative_pairs(asked[0], mixed, 0.85)} == straight
    counts = [len(inlier_pairs(asked[0], photo, VerifierSettings())) for photo in (shown[0], mixed)]
    assert counts[0] == pytest.approx(counts[1], rel=0.2)


def test_key_points_at_one_place_are_no_agreement(shown: list[LocalFeatures]) -> None:
    crowded = replace(shown[0], positions=np.full_like(shown[0].positions, 7))
    assert len(inlier_pairs(crowded, shown[0], VerifierSettings())) == 0
    line = replace(shown[0], positions=shown[0].positions * np.float16([1, 0]))
    assert len(inlier_pairs(shown[0], line, VerifierSettings())) == 0  # everything squeezed into a line


def test_a_mirrored_photo_does_not_agree(shown: list[LocalFeatures]) -> None:
    mirrored = replace(shown[0], positions=(shown[0].positions * (-1, 1) + (480, 0)).astype(np.float16))
    assert len(inlier_pairs(shown[0], mirrored, VerifierSettings())) < 10


def test_photos_with_few_key_points_have_none(shown: list[LocalFeatures]) -> None:
    for count in range(5):
        few = LocalFeatures(shown[0].descriptors[:count], shown[0].positions[:count], shown[0].words[:count], 480, 360)
        for pair in ((few, shown[0]), (shown[0], few), (few, few)):
            assert len(inlier_pairs(*pair, VerifierSettings())) <= count


@pytest.mark.parametrize(("zoom", "agrees"), [(1 / 20, False), (1 / 5, True), (5, True), (20, False)])
def test_a_photo_agrees_at_another_size_up_to_tenfold_alone(
    shown: list[LocalFeatures], zoom: float, agrees: bool
) -> None:
    def scaled(by: float) -> LocalFeatures:
        return replace(shown[0], positions=(shown[0].positions.astype(float) * by).astype(np.float16))

    count = len(inlier_pairs(scaled(zoom**-0.5), scaled(zoom**0.5), VerifierSettings()))
    assert (count >= 30) == agrees
    assert agrees or count == 0


PLACES = np.float32([[0, 0], [400, 0], [0, 300], [400, 300], [150, 80]])


@pytest.mark.parametrize(
    ("matrix", "plausible"),
    [
        (np.diag([1.0, 1.0, 1.0]), True),
        (np.diag([MOST_ZOOM - 0.01, MOST_ZOOM - 0.01, 1.0]), True),
        (np.diag([MOST_ZOOM + 0.01, MOST_ZOOM + 0.01, 1.0]), False),
        (np.diag([1 / (MOST_ZOOM - 0.01), 1 / (MOST_ZOOM - 0.01), 1.0]), True),
        (np.diag([1 / (MOST_ZOOM + 0.01), 1 / (MOST_ZOOM + 0.01), 1.0]), False),
        (np.diag([1.0, 0.0, 1.0]), False),  # everything on a line
        (np.array([[-1.0, 0, 400], [0, 1, 0], [0, 0, 1]]), False),  # mirrored
        (np.array([[-1.0, 0, 400], [0, -1, 300], [0, 0, 1]]), True),  # upside down
        (np.array([[1.0, 0, 0], [0, 1, 0], [-1 / 900, 0, 1]]), True),  # seen from the side
        (np.array([[1.0, 0, 0], [0, 1, 0], [-1 / 350, 0, 1]]), False),  # some places lie behind the camera
        (np.diag([-1.0, -1.0, -1.0]), False),  # and all of them
        (np.array([[1.0, 0, 0], [0, 1, 0], [-1 / 440, 0, 1]]), False),  # blown up at one side, 1,331-fold
        (np.array([[1.0, 0, 0], [0, 1, 0], [-0.75 / 400, 0, 1]]), True),  # 64-fold
        (np.array([[2.0, 0, 0], [0, 2, 0], [-0.7 / 400, 0, 1]]), False),  # 148-fold
    ],
)
def test_a_transformation_that_mirrors_folds_or_zooms_too_much_is_implausible(
    matrix: np.ndarray, plausible: bool
) -> None:
    assert _plausible(matrix, PLACES) == plausible
    assert not _plausible(matrix, PLACES[:0])
