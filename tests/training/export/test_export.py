import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from index.search.item_distance import NEAREST_PHOTO, ItemDistance
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.embedder import Embedder
from retrieval.catalogue.photos import Photo
from retrieval.errors import BundleError, CalibrationError, InvalidParameter, RunError
from retrieval.measuring.sentences import describe_briefly
from training.data.reader import PhotoReader
from training.evaluation.embedding import embed_photos
from training.evaluation.report import evaluate_run, render
from training.export import export as exporting
from training.export import variants
from training.export.export import export
from training.loop.run import Run

pytestmark = pytest.mark.usefixtures("empty_pictures", "onnx_written_once")


@pytest.fixture(scope="module")
def bundle(run: Run, onnx_written_once: None, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return the bundle of a run with too few calibration items for a threshold."""
    return export(run, tmp_path_factory.mktemp("bundles") / "tiny", target_fpir=0.2)


@pytest.fixture(scope="module")
def deciding(calibrated: Run, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    """Return the bundle of a run with enough calibration items for a threshold."""
    return export(calibrated, tmp_path_factory.mktemp("bundles") / "deciding", target_fpir=0.2)


@pytest.mark.end_to_end
def test_onnx_equals_torch_for_any_batch(run: Run, tmp_path: Path) -> None:
    model = run.best_model()
    variants.write_onnx(model, tmp_path / "model.onnx", size=32)
    written = (tmp_path / "model.onnx").read_bytes()
    for told in (b"File ", str(Path(variants.__file__).parents[2]).encode(), b"forward", torch.__version__.encode()):
        assert told not in written  # of our code, this machine or its libraries: the same model is the same file
    assert [p.name for p in tmp_path.iterdir()] == ["model.onnx"]  # one self-contained file
    embedder = Embedder(tmp_path / "model.onnx", run.preprocessing)
    photos = run.photos()[:33]
    reader = PhotoReader(photos, run.preprocessing)
    expected = embed_photos(model, reader, len(photos), run.preprocessing)
    for batch in (1, 8, 33):
        got = embedder.embed([photo.path for photo in photos[:batch]])
        assert np.abs(got.vectors - expected[:batch]).max() < 1e-5
        assert np.allclose(np.linalg.norm(got.vectors, axis=1), 1, atol=1e-6)
        assert (got.certainties > 0).all()


def test_a_bundle_says_what_it_is(bundle: Bundle, run: Run) -> None:
    assert (bundle.operating_point.status, bundle.operating_point.target_fpir) == ("uncalibrated", 0.2)
    assert not (bundle.path / "report.html").exists()
    assert bundle.preprocessing == run.preprocessing
    manifest = json.loads((bundle.path / "manifest.json").read_text())
    assert manifest["evidence"]["parity"]["largest_difference"] <= 1e-5
    assert manifest["evidence"]["calibration_items"] == list(run.splits.calibration)
    with np.load(bundle.path / "calibration.npz", allow_pickle=False) as saved:
        assert set(saved["item_id"]) == set(run.splits.calibration)


def test_enough_calibration_items_set_a_threshold_that_keeps_the_target(deciding: Bundle) -> None:
    point = deciding.operating_point
    assert point.status == "estimated"
    with np.load(deciding.path / "calibration.npz", allow_pickle=False) as saved:
        assert (saved["impostor"] <= point.threshold).mean() <= 0.2
    assert point.rates.tpir is not None
    assert point.rates.tpir > 0
    assert f"{point.threshold:.4f}" in (deciding.path / "report.html").read_text()
    assert f"is estimated for 24 items, at most {point.rates.fpir_upper:.2g} with 95 %" in describe_briefly(point)


def test_a_run_on_all_items_certifies_nothing(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Run, "folds", [run])
    with pytest.raises(InvalidParameter, match="--certify must be left out for a run on all items"):
        export(run, tmp_path / "bundle", certify=True)
    assert not (tmp_path / "bundle").exists()


def test_a_threshold_is_certified_on_request(calibrated: Run, deciding: Bundle, tmp_path: Path) -> None:
    point = export(calibrated, tmp_path / "certified", target_fpir=0.2, certify=True).operating_point
    assert point.status == "certified"
    assert point.threshold <= deciding.threshold
    assert point.rates.fpir_upper is not None
    assert point.rates.fpir_upper <= 0.2


def test_a_bundle_decides_by_the_item_distance_unless_it_is_told_otherwise(
    calibrated: Run, deciding: Bundle, tmp_path: Path
) -> None:
    assert deciding.item_distance == ItemDistance()
    plain = export(calibrated, tmp_path / "plain", target_fpir=0.2, item_distance=NEAREST_PHOTO)
    assert plain.item_distance == NEAREST_PHOTO
    assert plain.threshold < deciding.threshold
    assert plain.operating_point.rates.consistency != deciding.operating_point.rates.consistency


def test_a_vocabulary_is_fitted_to_photos_of_training_items_alone(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    asked: list[Photo] = []

    def fit(photos: list[Photo], *_: object, catalogue_photos: int) -> None:
        asked.extend(photos)
        assert catalogue_photos == len(run.photos())

    monkeypatch.setattr(exporting, "fit_verifier", fit)
    exporting._verifier(variants.ModelExporter(run, tmp_path))
    assert {photo.item_id for photo in asked} == set(run.splits.fit)
    held_out = {*run.splits.validation, *run.splits.calibration, *run.splits.test}
    assert held_out
    assert not held_out & {photo.item_id for photo in asked}


def test_a_threshold_names_the_least_items_of_its_galleries(deciding: Bundle) -> None:
    assert deciding.operating_point.basis.least_items == 24 < 50


def test_a_run_exported_again_has_the_same_ids_whatever_the_training_took(
    bundle: Bundle, run: Run, tmp_path: Path
) -> None:
    shutil.copytree(run.path, tmp_path / "run")
    slower = Run.open(tmp_path / "run")
    best = dict(slower.progress["best"])
    best["metrics"] = {**best["metrics"], "seconds": 1000 + best["metrics"]["seconds"]}
    slower.write_progress({**slower.progress, "best": best})
    again = export(slower, tmp_path / "again", target_fpir=0.2)
    assert again.manifest["evidence"] != bundle.manifest["evidence"]
    assert (again.bundle_id, again.embedding_id) == (bundle.bundle_id, bundle.embedding_id)


def test_a_bundle_is_never_overwritten(bundle: Bundle, run: Run) -> None:
    with pytest.raises(BundleError, match="immutable"):
        export(run, bundle.path)


def test_a_run_that_is_worse_than_its_start_is_refused_before_anything_is_embedded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    worse = Run(shutil.copytree(run.path, tmp_path / "run"))
    progress = worse.progress
    both = progress["best"]["comparison"]["both"]
    both["R@1"] |= {"before": 0.5, "after": 0.4, "low": -0.2, "high": 0.01}
    both["TPIR"] |= {"before": 0.322, "after": 0.281, "low": -0.07, "high": -0.01}
    progress["best"]["comparison"]["unfitted"]["items"] = 12
    worse.write_progress(progress)
    with monkeypatch.context() as patch:
        patch.setattr("training.export.export.ModelExporter", None)
        with pytest.raises(RunError) as caught:
            export(worse, tmp_path / "bundle", target_fpir=0.2)
    assert "TPIR is 0.281 and was 0.322 before training (95 % interval of the change -0.070 to -0.010)" in str(
        caught.value
    )
    assert "R@1 is" not in str(caught.value)
    assert "retrieval export --pretrained auto -o bundles/run" in caught.value.remedy
    assert "--even-if-worse" in caught.value.remedy
    assert not (tmp_path / "bundle").exists()
    export(worse, tmp_path / "bundle", target_fpir=0.2, even_if_worse=True)


def test_too_few_items_to_certify_are_refused_before_anything_is_embedded(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("training.export.export.ModelExporter", None)
    with pytest.raises(CalibrationError, match=r"4 items for calibration cannot .* 0\.2: it takes 14") as caught:
        export(run, tmp_path / "bundle", target_fpir=0.2, certify=True)
    assert "leave --certify out" in caught.value.remedy
    assert not (tmp_path / "bundle").exists()


@pytest.mark.parametrize("part", ["fit", "validation"])
def test_items_that_decided_something_never_calibrate(
    part: str, run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Parameters are fitted on the one, checkpoint and distance form are chosen on the other."""
    splits = run.splits
    item = getattr(splits, part)[0]
    mixed = type(splits)(splits.fit, splits.validation, (*splits.calibration, item), splits.test)
    monkeypatch.setattr(Run, "splits", mixed)
    with pytest.raises(CalibrationError, match=f"1 calibration item was seen in training, such as {item}"):
        export(run, tmp_path / "bundle", target_fpir=0.2)
    assert not (tmp_path / "bundle").exists()


def test_a_model_that_changes_on_export_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = variants.write_onnx

    def unfaithful(model: torch.nn.Module, path: Path, *, size: int) -> None:
        real(model, path, size=size)  # type: ignore[arg-type]
        with torch.no_grad():
            model.head.bias += 0.01  # type: ignore[union-attr, operator]

    monkeypatch.setattr(variants, "write_onnx", unfaithful)
    with pytest.raises(RunError, match="differs from torch"):
        export(run, tmp_path / "bundle", target_fpir=0.2)
    assert not (tmp_path / "bundle").exists()


def test_evaluation_compares_with_the_model_before_training_in_a_mixed_gallery(run: Run) -> None:
    report = evaluate_run(run)
    assert {"R@1", "MAP@R", "OPIS"} <= report["unseen"].keys()
    mixed = report["mixed"]
    assert mixed["fitted"]["queries"] == mixed["fitted"]["items"] == len(run.held_out) == len(run.splits.fit)
    assert mixed["unfitted"]["items"] == len(run.splits.test)
    assert mixed["both"]["queries"] == mixed["fitted"]["queries"] + mixed["unfitted"]["queries"]
    assert json.loads((run.path / "evaluation.json").read_text()) == report
    text = render(report)
    assert text.index("New photos in a mixed gallery") < text.index("Test items alone, by the nearest photo")
    assert "random weights → this run" in text
    assert "photos of 'b' are the queries" in text
    lines = text.splitlines()
    (heading,) = (at for at, line in enumerate(lines) if line.startswith("OPIS   "))
    by_chance = re.split(" {2,}", lines[heading + 2])[1]
    assert by_chance == f"{mixed['unfitted']['OPIS by chance']['after']:.3f}", "the same for both models: no change"
    mixed["unfitted"]["never found"] = {"before": 0.1, "after": 0.2, "low": 0.1, "high": 0.1}  # in every resample
    assert "0.100 → 0.200 [+0.100, +0.100]" in render(report)
