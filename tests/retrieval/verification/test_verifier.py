"""The verifier: what the gallery asks of it, from images to fused distances."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest
from PIL import Image

from index.search.details import Verifier
from index.search.item_distance import DETAILS, ItemDistance
from index.search.votes import InvertedLists, PhotoPoints
from retrieval.errors import BundleCorrupt, GalleryCorrupt
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
    own = ItemDistance(details=DETAILS).own(np.full(5, 1.0), np.full(5, 1.0), inliers)
    assert own.argmin() == 2
    assert own[2] < 0.5
    assert own[4] == 1
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


def test_counts_do_not_depend_on_threads_order_or_other_photos(verifier: GeometricVerifier) -> None:
    photos = [verifier.describe(photographed(picture(seed), seed)) for seed in range(6)]
    query = verifier.describe(picture(3))
    together = verifier.inliers(query, photos)
    assert np.array_equal(verifier.inliers(query, photos[::-1]), together[::-1])
    with ThreadPoolExecutor(4) as pool:
        alone = list(pool.map(lambda photo: verifier.inliers(query, [photo])[0], photos * 5))
    assert alone == together.tolist() * 5


def changed(verifier: GeometricVerifier, **values: float) -> GeometricVerifier:
    return replace(verifier, settings=replace(verifier.settings, **values))


def test_keys_tell_what_changes(verifier: GeometricVerifier) -> None:
    values = ({"ratio": 0.5}, {"error": 3.0}, {"voted": 7}, {"bits": 12}, {"points": 100})
    variants = [changed(verifier, **each) for each in values]
    assert len({each.key for each in (verifier, *variants)}) == 6
    assert [each.features_key == verifier.features_key for each in variants] == [True] * 4 + [False]
    assert [each.voting.key == verifier.voting.key for each in variants] == [True] * 3 + [False] * 2


def test_a_verifier_survives_packing(verifier: GeometricVerifier) -> None:
    given = changed(verifier, items=7, photos=2, voted=11, asked=2, bits=20, bit_scale=9.0, error=3.0)
    packed = given.pack()
    again = GeometricVerifier.unpack(packed)
    assert (again.key, again.features_key) == (given.key, given.features_key)
    assert again.settings == given.settings
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
