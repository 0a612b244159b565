"""Bundles that verify matches."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from index.search.item_distance import DETAILS, ItemDistance
from retrieval.bundle.bundle import CALIBRATION_FEATURES, VERIFICATION, Bundle, pack_features, write_bundle
from retrieval.errors import BundleCorrupt, MissingDependency
from retrieval.images import open_image
from retrieval.verification import detector

from ...prints import BY_DETAILS, cover_verifier, draw_cover
from ...world import make_bundle


def verified(folder: Path, name: str = "bundle", **files: bytes) -> Bundle:
    """Write a bundle that verifies matches."""
    contents = {VERIFICATION: cover_verifier().pack(), **files}
    return make_bundle(folder, name=name, files=contents, item_distance=BY_DETAILS)


def test_the_verifier_is_in_the_bundle(tmp_path: Path) -> None:
    opened = Bundle.open(verified(tmp_path).path)
    assert opened.verifier is not None
    assert opened.verifier.key == cover_verifier().key
    assert opened.item_distance == BY_DETAILS
    assert opened.features_key == cover_verifier().features_key
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


def test_draws_depend_on_the_weight_of_details_and_on_what_decides_inliers(tmp_path: Path) -> None:
    opened, verifier = verified(tmp_path), cover_verifier()
    stricter = replace(verifier, settings=replace(verifier.settings, ratio=0.6))
    others = [
        make_bundle(
            tmp_path,
            name="heavier",
            files={VERIFICATION: verifier.pack()},
            item_distance=replace(BY_DETAILS, details=2 * BY_DETAILS.details),
        ),
        make_bundle(tmp_path, name="stricter", files={VERIFICATION: stricter.pack()}, item_distance=BY_DETAILS),
    ]
    assert {bundle.features_key for bundle in others} == {opened.features_key}
    assert len({bundle.draws_id for bundle in (opened, *others)}) == 3


def test_details_count_by_default_only_in_a_bundle_with_a_verifier(tmp_path: Path) -> None:
    plain = make_bundle(tmp_path)
    given = {"model": plain.path / "model.onnx", "preprocessing": plain.preprocessing, "dim": plain.dim}
    for files, weight in (({VERIFICATION: cover_verifier().pack()}, DETAILS), ({}, 0)):
        written = write_bundle(
            tmp_path / f"default {weight}",
            operating_point=plain.operating_point,
            files=files,
            **given,  # type: ignore[arg-type]
        )
        assert Bundle.open(written.path).item_distance == ItemDistance(details=weight)


def test_without_opencv_the_bundle_does_not_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    bundle = verified(tmp_path)
    detector.import_opencv.cache_clear()
    monkeypatch.setitem(sys.modules, "cv2", None)
    with pytest.raises(MissingDependency, match=r"\.\[verify\]"):
        Bundle.open(bundle.path)
    detector.import_opencv.cache_clear()


def test_a_verifier_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BundleCorrupt, match="the verification cannot be read"):
        make_bundle(tmp_path, files={VERIFICATION: b"no verifier"})


def test_features_of_calibration_photos_decide_the_draws(tmp_path: Path) -> None:
    features = {"a": b"first", "b": b"", "ü": b"third"}
    bundle = verified(tmp_path, **{CALIBRATION_FEATURES: pack_features(features)})
    assert bundle.calibration_features == features
    other = verified(tmp_path, "other", **{CALIBRATION_FEATURES: pack_features({})})
    assert other.calibration_features == {}
    assert bundle.draws_id != other.draws_id
    assert make_bundle(tmp_path, name="plain").calibration_features == {}
