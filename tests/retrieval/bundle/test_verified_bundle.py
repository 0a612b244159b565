"""Bundles that verify matches."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

from index.search.distance import PLAIN
from index.search.verified import VerifiedDistance
from retrieval.bundle.bundle import CALIBRATION_FEATURES, Bundle, pack_features
from retrieval.bundle.density import ADDITIVE, Cohort, LocalDensity
from retrieval.errors import BundleError, MissingDependency
from retrieval.images import open_image
from retrieval.verification import detector

from ...index.search.fake_verifier import FakeVerifier
from ...prints import cover_distance, cover_verifier, draw_cover
from ...world import DIM, make_bundle


@pytest.fixture(scope="module")
def form() -> VerifiedDistance:
    return cover_distance()


def test_the_verifier_is_in_the_bundle(form: VerifiedDistance, tmp_path: Path) -> None:
    bundle = make_bundle(tmp_path, distance_form=form)
    opened = Bundle.open(bundle.path)
    assert opened.distance_form.key == form.key
    assert opened.base_form is PLAIN
    assert opened.features_key == form.verifier.features_key
    image = open_image(draw_cover(3, 0))
    features = opened.embedder().describe(image)
    assert features == cover_verifier().describe(image)
    assert features is not None
    assert len(features) > 1000
    plain = make_bundle(tmp_path, name="plain")
    assert (plain.verifier, plain.features_key, plain.embedder().describe(image)) == (None, "", None)
    assert plain.embedding_id == opened.embedding_id
    assert plain.bundle_id != opened.bundle_id
    assert plain.draws_id != opened.draws_id
    stronger = make_bundle(tmp_path, name="stronger", distance_form=cover_distance(strength=2.0))
    assert stronger.features_key == opened.features_key
    assert stronger.draws_id != opened.draws_id


def test_a_density_corrected_distance_can_be_verified(form: VerifiedDistance, tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(40, DIM)).astype(np.float32)
    vectors /= np.linalg.norm(vectors, axis=1, keepdims=True)
    base = LocalDensity.fit(ADDITIVE, 4, Cohort.of(vectors, np.arange(40)))
    opened = make_bundle(tmp_path, distance_form=VerifiedDistance(base, form.verifier))
    assert isinstance(opened.base_form, LocalDensity)
    assert opened.base_form.key == base.key
    assert opened.distance_form.key == VerifiedDistance(base, form.verifier).key


def test_without_opencv_the_bundle_does_not_open(
    form: VerifiedDistance, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bundle = make_bundle(tmp_path, distance_form=form)
    detector.import_opencv.cache_clear()
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingDependency, match=r"\.\[verify\]"):
        Bundle.open(bundle.path)
    detector.import_opencv.cache_clear()


def test_only_a_geometric_verifier_can_be_stored(tmp_path: Path) -> None:
    with pytest.raises(BundleError, match="cannot store the verifier FakeVerifier"):
        make_bundle(tmp_path, distance_form=VerifiedDistance(PLAIN, FakeVerifier()))


def test_features_of_calibration_photos_decide_the_draws(form: VerifiedDistance, tmp_path: Path) -> None:
    features = {"a": b"first", "b": b"", "ü": b"third"}
    files = {CALIBRATION_FEATURES: pack_features(features)}
    bundle = make_bundle(tmp_path, distance_form=form, files=files)
    assert bundle.calibration_features == features
    other = make_bundle(tmp_path, name="other", distance_form=form, files={CALIBRATION_FEATURES: pack_features({})})
    assert other.calibration_features == {}
    assert bundle.draws_id != other.draws_id
    assert make_bundle(tmp_path, name="plain").calibration_features == {}
