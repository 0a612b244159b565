"""The verifier: what the gallery asks of it, from images to fused distances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from index.verified import Verifier
from retrieval.errors import BundleCorrupt, GalleryCorrupt, InvalidParameter
from retrieval.verification.detector import DetectorSettings
from retrieval.verification.fusion import Fusion
from retrieval.verification.matching import MatchingSettings
from retrieval.verification.verifier import GeometricVerifier

from .pictures import photographed, picture

BLANK = Image.new("RGB", (100, 80))


def test_the_own_picture_comes_first(verifier: GeometricVerifier) -> None:
    form: Verifier = verifier
    photos = [verifier.describe(picture(seed)) for seed in range(4)] + [verifier.describe(BLANK)]
    inliers = form.inliers(verifier.describe(photographed(picture(2))), photos)
    assert inliers.dtype == np.int64
    assert inliers.argmax() == 2
    assert inliers[4] == 0
    fused = form.fused(np.full(5, 1.0), inliers)
    assert fused.argmin() == 2
    assert fused[2] < 0.5
    assert fused[4] == 1
    assert len(form.inliers(photos[0], [])) == 0


def test_words_come_from_the_vocabulary(verifier: GeometricVerifier) -> None:
    words = verifier.words(verifier.describe(picture(0)))
    assert len(words) > 100
    assert words.max() < len(verifier.weights) <= 64
    assert len(verifier.words(verifier.describe(BLANK))) == 0


def test_counts_do_not_depend_on_threads_order_or_other_photos(verifier: GeometricVerifier) -> None:
    photos = [verifier.describe(photographed(picture(seed), seed)) for seed in range(6)]
    query = verifier.describe(picture(3))
    together = verifier.inliers(query, photos)
    assert np.array_equal(verifier.inliers(query, photos[::-1]), together[::-1])
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda photo: verifier.inliers(query, [photo])[0], photos * 5))
    assert alone == together.tolist() * 5


def test_matched_points_lie_on_both_photos(verifier: GeometricVerifier) -> None:
    shown = verifier.describe(picture(1))
    points = verifier.matches(verifier.describe(picture(1)), shown)
    assert len(points) > 100
    assert np.array_equal(points.query, points.photo)
    assert (points.query >= 0).all()
    assert (points.query <= 1).all()
    photo = verifier.describe(photographed(picture(1)))
    assert len(verifier.matches(photo, shown)) == verifier.inliers(photo, [shown])[0]
    assert len(verifier.matches(verifier.describe(picture(2)), shown)) == 0


def test_keys_tell_what_changes(verifier: GeometricVerifier) -> None:
    stronger = verifier.with_fusion(Fusion(strength=2.0))
    matched = replace(verifier, matching=MatchingSettings(error=3.0))
    voted = replace(verifier, voted=7)
    detected = replace(verifier, detector=DetectorSettings(points=100))
    variants = (stronger, matched, voted, detected)
    assert len({each.key for each in (verifier, *variants)}) == 5
    assert [each.features_key == verifier.features_key for each in variants] == [True, True, True, False]


def test_a_verifier_survives_packing(verifier: GeometricVerifier) -> None:
    given = replace(verifier, items=7, photos=2, voted=11, matching=MatchingSettings(error=3.0))
    packed = given.pack()
    again = GeometricVerifier.unpack(packed)
    assert (again.key, again.features_key) == (given.key, given.features_key)
    assert again.to_dict() == given.to_dict()
    assert again.describe(picture(0)) == given.describe(picture(0))
    assert again.pack() == packed


def test_damaged_bytes_are_refused(verifier: GeometricVerifier) -> None:
    packed = verifier.pack()
    for wrong in (b"", b"PK", packed[: len(packed) // 2]):
        with pytest.raises(BundleCorrupt):
            GeometricVerifier.unpack(wrong)
    query = verifier.describe(picture(0))
    with pytest.raises(GalleryCorrupt, match="damaged"):
        verifier.inliers(query, [query, query[:-1]])


@pytest.mark.parametrize("name", ["items", "photos", "voted"])
def test_shortlists_are_checked(name: str, verifier: GeometricVerifier) -> None:
    with pytest.raises(InvalidParameter, match=name):
        replace(verifier, **{name: -1})
