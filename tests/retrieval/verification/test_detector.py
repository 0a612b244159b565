"""Detection: the same key points each time, and hostile photos are safe."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor

import cv2
import numpy as np
import pytest
from PIL import Image

from retrieval.errors import MissingDependency
from retrieval.verification.detector import detect, import_opencv
from retrieval.verification.features import UNIT
from retrieval.verification.settings import VerifierSettings

from .pictures import photographed, picture

SETTINGS = VerifierSettings()


def test_key_points_are_the_strongest_ones() -> None:
    image = picture(0)
    many, few = detect(image, VerifierSettings(points=400)), detect(image, VerifierSettings(points=50))
    assert len(few) == 50 < len(many) <= 400
    all_rows = {row.tobytes() for row in many.descriptors}
    strongest = {row.tobytes() for row in many.descriptors[:60]}  # some are equally strong
    assert {row.tobytes() for row in few.descriptors} <= strongest < all_rows
    assert (few.width, few.height) == (480, 360)
    assert (few.positions >= 0).all()
    assert (few.positions <= (480, 360)).all()


def test_descriptors_have_one_length() -> None:
    lengths = np.linalg.norm(detect(picture(0), SETTINGS).descriptors.astype(float), axis=1)
    assert lengths == pytest.approx(UNIT, rel=0.02)


def test_threads_and_repetitions_change_nothing() -> None:
    images = [photographed(picture(seed), seed) for seed in range(8)]
    once = [detect(image, SETTINGS).pack() for image in images]
    with ThreadPoolExecutor(4) as pool:
        assert list(pool.map(lambda image: detect(image, SETTINGS).pack(), images)) == once
    assert len(set(once)) == 8


@pytest.mark.parametrize("sides", [(1, 1), (1, 5000), (5000, 1), (15, 15), (8, 400), (40, 9)])
def test_tiny_and_narrow_photos_have_no_key_points(sides: tuple[int, int]) -> None:
    noise = np.random.default_rng(0).integers(0, 256, (sides[1], sides[0], 3), dtype=np.uint8)
    features = detect(Image.fromarray(noise), SETTINGS)
    assert len(features) == 0 or min(features.width, features.height) >= 16


@pytest.mark.parametrize("colour", ["black", "white", "red"])
def test_blank_photos_have_no_key_points(colour: str) -> None:
    assert len(detect(Image.new("RGB", (640, 480), colour), SETTINGS)) == 0


def test_a_huge_photo_is_scaled_first() -> None:
    noise = np.random.default_rng(0).integers(0, 256, (500, 800), dtype=np.uint8)
    huge = Image.fromarray(noise).resize((8000, 5000))  # 40 megapixels
    features = detect(huge.convert("RGB"), SETTINGS)
    assert (features.width, features.height) == (480, 300)
    assert 0 < len(features) <= SETTINGS.points


def test_small_photos_are_enlarged_up_to_the_limit() -> None:
    assert detect(picture(0).resize((100, 80)), SETTINGS).width == 200
    assert detect(picture(0).resize((100, 80)), VerifierSettings(enlargement=1)).width == 100


def test_opencv_runs_without_threads_of_its_own() -> None:
    assert import_opencv() is cv2
    assert cv2.getNumThreads() == 1


def test_without_opencv_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    import_opencv.cache_clear()
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingDependency, match=r"pip install -c constraints.txt '\.\[verify\]'"):
        detect(picture(0), SETTINGS)
