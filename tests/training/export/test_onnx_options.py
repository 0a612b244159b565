"""The command `retrieval export` with an ONNX file: what it prints, and arguments that do not go together."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from index.search.item_distance import NEAREST_PHOTO
from retrieval.bundle.bundle import Bundle
from retrieval.cli.main import group
from retrieval.errors import InvalidParameter

from ...retrieval.encoders.models import write
from ...world import write_folder

SCALE = ("--mean", "0.5", "0.5", "0.5", "--std", "0.5", "0.5", "0.5")


def export(*words: object) -> Result:
    return CliRunner().invoke(group, ["export", *map(str, words)])


def test_the_output_and_photos_that_are_named_are_used(tmp_path: Path) -> None:
    path = write(tmp_path / "e.onnx", outputs={"flat": ("n", 8), "output": ("n", 8)})
    photos = write_folder(tmp_path / "photos", items=range(2), photos=range(2))
    done = export("--onnx", path, *SCALE, "--output", "flat", "--photos", photos, "--bgr", "-o", tmp_path / "bundle")
    assert done.exit_code == 0, done.output
    assert (
        "e.onnx: input (n, 3, 32, 32) float32, blue, green, red; the vector is the output flat (n, 8)." in done.output
    )
    evidence = Bundle.open(tmp_path / "bundle").manifest["evidence"]["onnx"]
    assert (evidence["file"], len(evidence["sha256"])) == ("e.onnx", 64)


def test_the_item_distance_and_the_target_are_as_given(tmp_path: Path) -> None:
    words = ["--item-distance", "nearest", "--target-fpir", 0.1]
    done = export("--onnx", write(tmp_path / "e.onnx"), *SCALE, *words, "-o", tmp_path / "bundle")
    assert done.exit_code == 0, done.output
    bundle = Bundle.open(tmp_path / "bundle")
    assert (bundle.item_distance, bundle.operating_point.target_fpir) == (NEAREST_PHOTO, 0.1)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["run", "--onnx", "e.onnx"], "--onnx must be used without RUN"),
        (["--onnx", "e.onnx", "--pretrained", "auto"], "--onnx must be used without --pretrained"),
        (["--onnx", "e.onnx", "--certify", "--even-if-worse"], "without --even-if-worse and --certify"),
        (["--onnx", "e.onnx", "--precision", "int8"], "--onnx must be used without --precision"),
        (["--onnx", "e.onnx", "--provider", "cuda"], "--onnx must be used without --provider"),
        (["--onnx", "e.onnx", "--and", "auto"], "--onnx must be used without --and"),
        (["--onnx", "e.onnx", "--verify"], "--verify must be used with photos"),
        (["run", "--output", "vector"], "RUN must be used without --output"),
        (["--pretrained", "auto", "--bgr", "--size", "64"], "--pretrained must be used without --size and --bgr"),
        (["--pretrained", "auto", "--certify"], "--pretrained must be used without --certify"),
    ],
)
def test_arguments_that_do_not_go_together_are_refused_by_name(tmp_path: Path, words: list[str], message: str) -> None:
    done = export(*words, "-o", tmp_path / "bundle")
    assert isinstance(done.exception, InvalidParameter), done.output
    assert message in str(done.exception)


def test_an_existing_bundle_is_refused_before_the_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "bundle").mkdir()
    done = export("--onnx", tmp_path / "missing.onnx", "-o", tmp_path / "bundle")
    assert "bundles are immutable" in str(done.exception)
