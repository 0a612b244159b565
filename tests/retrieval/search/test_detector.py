"""Detectors: inputs, outputs, and invalid output."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from retrieval.errors import DetectorError, InvalidParameter
from retrieval.search import detector as module
from retrieval.search.detector import Detector

from .scenes import scene, write_detector

F = np.float32


def test_boxes_are_in_pixels_of_the_photo_best_first(tmp_path: Path) -> None:
    boxes = F([[0, 0, 20, 10], [20, 10, 60, 30], [0, 0, 21, 10], [1, 1, 3, 3], [30, 20, 400, 300]])
    found = write_detector(tmp_path / "d.onnx", boxes, F([0.9, 0.95, 0.8, 0.99, 0.4]), shape=(1, 3, 40, 80))
    regions = Detector(found).find(Image.new("RGB", (160, 120)))
    assert [box for box, _ in regions] == [(40, 30, 120, 90), (0, 0, 40, 30), (60, 60, 160, 120)]
    assert [score for _, score in regions] == pytest.approx([0.95, 0.9, 0.4])  # twice the same, and a tiny one, are out


def test_at_most_ten_boxes_of_a_score_of_0_3_are_found(tmp_path: Path) -> None:
    boxes = F([[8 * n, 0, 8 * n + 8, 8] for n in range(12)])
    found = Detector(write_detector(tmp_path / "d.onnx", boxes, F([0.9] * 12))).find(Image.new("RGB", (100, 100)))
    assert len(found) == 10
    low = write_detector(tmp_path / "low.onnx", boxes, F([0.3] * 2 + [0.29] * 10))
    assert len(Detector(low).find(Image.new("RGB", (100, 100)))) == 2


def test_a_photo_larger_than_a_free_input_is_reduced(tmp_path: Path) -> None:
    found = write_detector(tmp_path / "d.onnx", F([[64, 64, 128, 128]]), F([0.9]))
    ((box, _),) = Detector(found).find(Image.new("RGB", (1280, 640)))
    assert box == (128, 128, 256, 256)


@pytest.mark.parametrize(
    ("boxes", "scores", "said"),
    [
        (F([[0, 0, np.nan, 10]]), F([0.9]), "not finite"),
        (F([[0, 0, 10, 10]]), F([np.inf]), "not finite"),
        (F([[0, 0, 10, 10, 1]]), F([0.9]), "shape"),
        (F([[0, 0, 10, 10]]), F([0.9, 0.8]), "shape"),
        (F([0, 0, 10, 10]), F([0.9]), "shape"),
        (np.zeros((10_001, 4), F), np.zeros(10_001, F), "10,001 boxes"),
        (np.zeros((1, 4), np.int64), F([0.9]), "floating-point"),
    ],
)
def test_output_that_breaks_the_contract_is_refused(
    tmp_path: Path, boxes: np.ndarray, scores: np.ndarray, said: str
) -> None:
    detector = Detector(write_detector(tmp_path / "d.onnx", boxes, scores))
    with pytest.raises(DetectorError, match=said):
        detector.find(scene())


def test_boxes_out_of_the_photo_are_clipped_and_empty_ones_left_out(tmp_path: Path) -> None:
    boxes = F([[-50, -50, 50, 50], [200, 200, 300, 300], [60, 60, 40, 40], [-9e9, -9e9, 9e9, 9e9]])
    detector = Detector(write_detector(tmp_path / "d.onnx", boxes, F([0.9, 0.8, 0.7, 0.6])))
    assert [box for box, _ in detector.find(scene())] == [(0, 0, 50, 50)]  # the whole photo has it inside


@pytest.mark.parametrize(
    ("shape", "names", "said"),
    [
        ((1, 1, 64, 64), ("boxes", "scores"), "input"),
        ((1, 3, 64), ("boxes", "scores"), "input"),
        ((1, 3, 64, 4096), ("boxes", "scores"), "4096×64"),
        ((1, 3, 0, 64), ("boxes", "scores"), "64×0 pixels"),
        ((1, 3, 64, 64), ("dets", "scores"), "maps image to dets, scores"),
    ],
)
def test_models_of_another_form_are_refused(
    tmp_path: Path, shape: tuple[int, ...], names: tuple[str, str], said: str
) -> None:
    path = write_detector(tmp_path / "d.onnx", F([[0, 0, 10, 10]]), F([0.9]), shape=shape, names=names)
    with pytest.raises(DetectorError, match=said):
        Detector(path)


def test_files_that_are_no_models_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "d.onnx").write_bytes(b"no model")
    with pytest.raises(DetectorError, match="cannot be loaded"):
        Detector(tmp_path / "d.onnx")
    with pytest.raises(DetectorError, match="cannot be read"):
        Detector(tmp_path / "missing.onnx")
    monkeypatch.setattr(module, "MOST_BYTES", 4)
    with pytest.raises(DetectorError, match="more than 4 bytes"):
        Detector(tmp_path / "d.onnx")
    with pytest.raises(InvalidParameter, match="threads"):
        Detector(tmp_path / "d.onnx", threads=0)


def test_a_model_that_fails_is_named(tmp_path: Path) -> None:
    path = write_detector(tmp_path / "d.onnx", F([[0, 0, 10, 10]]), F([0.9]), shape=(1, 3, 64, 64))
    detector = Detector(path)
    detector._size = 32, 32  # not what the model takes
    with pytest.raises(DetectorError, match=r"d\.onnx failed"):
        detector.find(scene())
