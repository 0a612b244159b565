"""The verifier: what the gallery asks of it, from images to fused distances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from index.search.verified import Verifier
from index.search.votes import InvertedLists, PhotoPoints
from retrieval.errors import BundleCorrupt, GalleryCorrupt, InvalidParameter
from retrieval.verification.detector import DetectorSettings
from retrieval.verification.features import LocalFeatures
from retrieval.verification.fusion import Fusion
from retrieval.verification.matching import MatchingSettings
from retrieval.verification.signatures import SignatureSettings
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


def test_points_come_from_the_vocabulary(verifier: GeometricVerifier) -> None:
    features = verifier.describe(picture(0))
    points, asked = verifier.points(features), verifier.asked(features)
    assert len(points.words) > 100
    assert points.words.max() < len(verifier.voting.weights) <= 64
    assert asked.words.shape == asked.signatures.shape == (len(points.words), 3)
    assert np.array_equal(asked.words[:, 0], points.words)
    assert np.array_equal(asked.signatures[:, 0], points.signatures)
    blank = verifier.describe(BLANK)
    assert (len(verifier.points(blank).words), verifier.asked(blank).words.shape) == (0, (0, 3))


def test_the_pictured_photo_has_the_most_votes(verifier: GeometricVerifier) -> None:
    shown = [verifier.points(verifier.describe(picture(seed))) for seed in range(8)]
    lists = InvertedLists.of(PhotoPoints.of(shown), verifier.voting)
    for seed in range(8):
        asked = verifier.asked(verifier.describe(photographed(picture(seed))))
        scores = lists.scores(asked, verifier.voting)
        assert scores.argmax() == seed
        assert scores[seed] > 1.5 * np.sort(scores)[-2]


def test_a_bundle_without_signatures_votes_by_distinct_words(verifier: GeometricVerifier) -> None:
    old = replace(verifier, signatures=None)
    again = GeometricVerifier.unpack(old.pack())
    assert (again.signatures, again.key, again.to_dict()["format"]) == (None, old.key, 1)
    features = old.describe(picture(0))
    points, asked = again.points(features), again.asked(features)
    assert points.words.tolist() == sorted(set(LocalFeatures.unpack(features).words.tolist()))
    assert np.array_equal(asked.words, points.words[:, None])
    votes = InvertedLists.of(PhotoPoints.of([points]), again.voting).scores(asked, again.voting)
    assert votes == pytest.approx(np.sqrt(again.voting.weights[points.words].sum()))


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
    signed = replace(verifier, signatures=SignatureSettings(bits=12))
    unsigned = replace(verifier, signatures=None)
    detected = replace(verifier, detector=DetectorSettings(points=100))
    variants = (stronger, matched, voted, signed, unsigned, detected)
    assert len({each.key for each in (verifier, *variants)}) == 7
    assert [each.features_key == verifier.features_key for each in variants] == [True] * 5 + [False]
    assert [each.voting.key == verifier.voting.key for each in variants] == [True] * 3 + [False] * 3


def test_a_verifier_survives_packing(verifier: GeometricVerifier) -> None:
    signatures = SignatureSettings(asked=2, bits=20, scale=9.0)
    given = replace(verifier, items=7, photos=2, voted=11, signatures=signatures, matching=MatchingSettings(error=3.0))
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
