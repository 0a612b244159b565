"""A run in another precision, the whole way: export, index, search; and what is refused."""

import re
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

from retrieval.bundle.bundle import Bundle
from retrieval.bundle.providers import PROVIDERS, import_onnxruntime
from retrieval.catalogue.read import Photo
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter, MissingDependency, RunError
from retrieval.images import to_tensor
from retrieval.indexing.pipeline import index_catalogue
from retrieval.metrics.consistency import consistency, threshold_at_tpir
from retrieval.metrics.identification import identification_rates, threshold_at_fpir
from retrieval.retriever import Retriever
from training.data.reader import PhotoReader
from training.export import variants
from training.export.calibration_items import render_comparison
from training.export.export import export
from training.export.variants import FLOORS, REFERENCE, Variant, check_parity
from training.loop.run import Run

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("empty_pictures")]
HERE = import_onnxruntime().get_available_providers()


def exported(run: Run, path: Path, precision: str, provider: str = "cpu") -> Bundle:
    return export(run, path, target_fpir=0.2, variant=Variant(precision, provider))


@pytest.fixture(scope="module")
def bundle(run: Run, tmp_path_factory: pytest.TempPathFactory) -> Bundle:
    return exported(run, tmp_path_factory.mktemp("bundles") / "int8", "int8")


@pytest.fixture(scope="module")
def shop(run: Run) -> list[Photo]:
    """Return the photos of the calibration items: the model never saw them."""
    return [photo for photo in run.photos() if photo.item_id in run.splits.calibration]


def test_a_variant_is_compared_with_the_distance_that_serves(run: Run, tmp_path: Path) -> None:
    options = {"target_fpir": 0.2}
    made = export(run, tmp_path / "b", variant=Variant("int8", "cpu"), verify="on", **options)  # type: ignore[arg-type]
    assert made.verifier is not None
    assert made.calibration is not None
    scores, evidence = made.calibration.scores, made.manifest["evidence"]
    rates = identification_rates(scores, threshold_at_fpir(scores, 0.2))
    fp32, int8 = evidence["beside_fp32"]
    assert (int8["tpir"], int8["fpir"]) == pytest.approx((rates.tpir, rates.fpir))
    found = consistency(scores, rates.threshold).tpir
    at_int8, at_less = (consistency(scores, threshold_at_tpir(scores, share)).opis for share in (found, fp32["tpir"]))
    assert int8["search_opis"] in {at_int8, at_less}  # at equal TPIR


def test_an_int8_bundle_says_what_it_is_beside_fp32(bundle: Bundle, run: Run) -> None:
    assert (bundle.precision, bundle.provider) == ("int8", "cpu")
    evidence = bundle.manifest["evidence"]
    assert evidence["form"] == {"precision": "int8", "provider": "cpu", "made": "int8, static"}
    assert FLOORS["int8"] <= evidence["parity"]["mean_cosine"] < 1
    assert evidence["parity"]["largest_difference"] > variants.PARITY  # it is another numeric path
    fp32, int8 = evidence["beside_fp32"]
    assert (fp32["form"], int8["form"]) == ("fp32, cpu", "int8, cpu")
    for row in (fp32, int8):
        assert row["fpir"] <= 0.2
    scores = bundle.calibration.scores
    assert int8["fpir"] >= identification_rates(scores, bundle.threshold).fpir


def test_the_report_of_an_int8_bundle_compares_it_with_fp32(calibrated: Run, tmp_path: Path) -> None:
    report = (exported(calibrated, tmp_path / "int8", "int8").path / "report.html").read_text()
    assert "This form of the model beside fp32" in report
    assert ">int8, cpu</th>" in report


def test_the_threshold_and_all_searches_come_through_the_int8_model(
    bundle: Bundle, run: Run, shop: list[Photo]
) -> None:
    kept = bundle.calibration
    by_id = {photo.photo_id: photo for photo in shop}
    asked = [by_id[photo_id].read() for photo_id in kept.photo_ids]
    again = bundle.embedder().embed(asked)
    assert np.allclose(again.vectors, kept.vectors, atol=1e-6)
    assert np.allclose(again.certainties, kept.certainties, rtol=1e-5)


def test_export_index_and_search_with_an_int8_bundle(
    bundle: Bundle, run: Run, shop: list[Photo], tmp_path: Path
) -> None:
    report = index_catalogue(bundle, shop, tmp_path / "gallery", progress=False)
    assert report.added == len(shop)
    found = Retriever.open(bundle.path, tmp_path / "gallery").search(shop[0].read())
    assert found.ranked[0].photo_id == shop[0].photo_id  # without a decision: the gallery has few items
    assert found.ranked[0].distance < 1e-3
    told = CliRunner().invoke(group, ["doctor", str(bundle.path), str(tmp_path / "gallery")])
    assert told.exit_code == 0, told.output
    assert "16 values, int8, cpu" in told.output


def test_ranges_come_from_photos_of_training_alone(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[np.ndarray] = []
    real = variants.to_int8

    def spied(source: Path, target: Path, batches: list[np.ndarray]) -> str:
        seen.extend(batches)
        return real(source, target, batches)

    monkeypatch.setattr(variants, "to_int8", spied)
    exported(run, tmp_path / "bundle", "int8")
    photos = [photo for photo in run.photos() if photo.item_id in run.splits.fit]
    squares = to_tensor(PhotoReader(photos, run.preprocessing).pixels(range(len(photos))), run.preprocessing)
    known = {square.tobytes() for square in squares}
    given = {square.tobytes() for batch in seen for square in batch}
    assert given
    assert given <= known


@pytest.mark.parametrize("name", [name for name in PROVIDERS if name != "cpu"])
def test_a_run_is_exported_for_every_provider_that_is_here(name: str, run: Run, tmp_path: Path) -> None:
    if PROVIDERS[name].engine not in HERE:
        with pytest.raises(MissingDependency, match=f"runs by {name}"):
            exported(run, tmp_path / name, "fp32", name)
        pytest.skip(f"this ONNX Runtime has no {name}")
    for precision in ("fp32", "int8"):
        made = exported(run, tmp_path / precision, precision, name)
        assert made.embedder().providers[0] == PROVIDERS[name].engine
        assert made.manifest["evidence"]["parity"]["mean_cosine"] >= FLOORS[precision]


def test_fp16_is_another_embedding_and_as_good(run: Run, tmp_path: Path) -> None:
    made = exported(run, tmp_path / "fp16", "fp16")
    assert made.manifest["evidence"]["parity"]["mean_cosine"] >= FLOORS["fp16"]
    fp32, fp16 = made.manifest["evidence"]["beside_fp32"]
    assert fp16["tpir"] == pytest.approx(fp32["tpir"], abs=0.1)


def test_a_model_that_loses_too_much_is_refused(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "FLOORS", {"int8": 1.1})
    with pytest.raises(RunError, match=r"the mean cosine of int8, cpu to fp32 is 0\.99\d\d, less than 1\.1"):
        exported(run, tmp_path / "bundle", "int8")
    assert not (tmp_path / "bundle").exists()


def test_each_form_is_held_to_its_own_bar() -> None:
    vectors = np.eye(4, dtype=np.float32)
    turned = np.roll(vectors, 1, axis=0)
    assert check_parity(vectors, vectors, REFERENCE)["mean_cosine"] == 1
    with pytest.raises(RunError, match="differs from torch"):
        check_parity(vectors + np.float32(2e-5), vectors, REFERENCE)
    assert check_parity(vectors + np.float32(2e-5), vectors, Variant("int8"))["largest_difference"] > 1e-5
    with pytest.raises(RunError, match="int8, cpu"):
        check_parity(turned, vectors, Variant("int8"))
    with pytest.raises(InvalidParameter, match="fp32, fp16, int8"):
        Variant("int4")


def test_the_command_line_shows_both_forms(run: Run, tmp_path: Path) -> None:
    words = ["export", str(run.path), "-o", str(tmp_path / "b"), "--precision", "int8", "--target-fpir", "0.2"]
    done = CliRunner().invoke(group, words, catch_exceptions=False)
    assert done.exit_code == 0, done.output
    rows = Bundle.open(tmp_path / "b").manifest["evidence"]["beside_fp32"]
    assert render_comparison(rows) in done.stdout
    assert re.search(r"^variant +OPIS of pairs +OPIS of searches +FPIR +TPIR$", done.stdout, re.MULTILINE)
    assert re.search(r"^Mean cosine to fp32: 0\.99\d\d\.$", done.stdout, re.MULTILINE)
