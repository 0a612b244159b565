"""The benchmark of geometric verification: errors, choices and copies of photos."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from research.benchmarks.verification import Searched, choose, searched, shortlisted, spread
from research.benchmarks.verification_anchoring import Remembered
from research.benchmarks.verification_cost import copied
from research.benchmarks.verification_data import Photos
from research.benchmarks.verification_photos import measured, queries_of
from retrieval.catalogue.read import Photo
from retrieval.verification.detector import DetectorSettings, detect
from retrieval.verification.matching import inlier_pairs
from retrieval.verification.verifier import GeometricVerifier
from tests.retrieval.verification.pictures import photographed, picture


def photos(images: list[Image.Image], seed: int) -> Photos:
    generator = np.random.default_rng(seed)
    vectors = generator.normal(size=(len(images), 16)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    listed = [Photo(photo_id=f"{seed} {i}", path=Path(), item_id=f"item {i}") for i in range(len(images))]
    return Photos(listed, vectors, [detect(image, DetectorSettings(points=150)) for image in images])


@pytest.fixture(scope="module")
def asked() -> Photos:
    return photos([photographed(picture(i), i) for i in range(6)], 1)


@pytest.fixture(scope="module")
def searches(asked: Photos) -> Searched:
    shown = photos([picture(i) for i in range(6)], 0)
    verifier = GeometricVerifier.fit(shown.local, words=64)
    return searched(asked.described(verifier), shown.described(verifier), verifier)


def test_verification_is_chosen_where_it_gains(searches: Searched, asked: Photos) -> None:
    assert shortlisted(searches) == 1
    strength = choose(searches, asked)
    assert strength > 0
    scores = searches.scores(strength)
    assert (scores.own < scores.impostor).all()
    assert searches.scores(0) is searches.base


def test_photos_without_key_points_are_not_verified() -> None:
    blank = [Image.new("RGB", (64, 64))] * 6
    verifier = GeometricVerifier.fit([detect(picture(i), DetectorSettings()) for i in range(2)], words=64)
    asked, shown = (photos(blank, seed).described(verifier) for seed in (0, 1))
    assert choose(searched(asked, shown, verifier), asked) == 0


def test_rows_are_spread_evenly() -> None:
    assert spread(np.arange(10, 21), 3).tolist() == [10, 15, 20]
    assert spread(np.arange(2), 5).tolist() == [0, 1]


def test_a_copy_agrees_with_its_photo(searches: Searched) -> None:
    features = detect(picture(0), DetectorSettings())
    copy = copied(features, np.random.default_rng(0))
    assert 0.8 * len(features) - 1 <= len(copy) <= len(features)
    assert len(inlier_pairs(features, copy, searches.verifier.matching)) > 30


def test_remembered_pairs_are_the_same() -> None:
    local = [detect(picture(i), DetectorSettings(points=100)) for i in range(3)]
    verifier = GeometricVerifier.fit(local, words=16)
    packed = [verifier.packed(features) for features in local]
    remembered = Remembered(verifier)
    for _ in range(2):
        assert np.array_equal(remembered.inliers(packed[0], packed), verifier.inliers(packed[0], packed))
    assert len(remembered.known) == 3
    assert (remembered.key, remembered.items) == (verifier.key, verifier.items)


@pytest.mark.slow
def test_queries_of_several_photos_are_all_combinations_and_searched_in_a_gallery(searches: Searched) -> None:
    verifier = searches.verifier.with_fusion(replace(searches.verifier.fusion, strength=1.0))
    shown = photos([picture(i) for i in range(4)], 0).described(verifier)
    asked = photos([photographed(picture(i % 4), i) for i in range(12)], 1).described(verifier)
    asked = replace(asked, photos=[replace(p, item_id=f"item {i % 4}") for i, p in enumerate(asked.photos)])
    two = queries_of(asked, 2)
    assert (two.vectors.shape, len(two.features)) == ((12, 16), 12)
    assert two.features[0] == (asked.packed[0], asked.packed[4])
    rows = list(measured("pictures", shown, asked, verifier))
    assert [row[:3] for row in rows] == [["pictures", "1", "12"], ["pictures", "2", "12"], ["pictures", "3", "4"]]
    assert [row[4] for row in rows] == ["1.000"] * 3  # every query finds its picture
