"""Regions `detector`: boxes of an ONNX object detector.

The model has one input, the photo as RGB, float32 (1, 3, height, width) with values from 0 to 1. If it fixes height and
width, the photo is resized to them; else its longer side is reduced to LONGEST_SIDE pixels if it is longer. The outputs
are `boxes`, (n, 4) left, upper, right, lower in pixels of the input, and `scores`, (n,). Other outputs are ignored.
"""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.bundle.embedder import session_options
from retrieval.bundle.providers import import_onnxruntime
from retrieval.errors import DetectorError, InvalidParameter
from retrieval.images import MIN_SIDE

from .boxes import MOST_BBOXES, overlap
from .policy import DETECTOR, Region

if TYPE_CHECKING:
    import onnxruntime

MOST_BYTES = 512 * 2**20  # of the model
LONGEST_SIDE, MOST_SIDE = 640, 2048  # pixels of an input with free sides, and the largest fixed side
MOST_ROWS = 10_000  # boxes that a model may return
SAME = 0.8  # overlap from which two boxes show the same object
SECONDS = 10.0  # time limit of one run
CONTRACT = "It needs one float32 input (1, 3, height, width) and the outputs boxes (n, 4) and scores (n)"


class Detector:
    """An ONNX object detector. Thread-safe.

    Parameters
    ----------
    model:
        File of the model. Raises DetectorError if it cannot be loaded or has other inputs or outputs.
    threads:
        Number of threads of one run.
    """

    def __init__(self, model: str | Path, *, threads: int = 1) -> None:
        if threads < 1:
            raise InvalidParameter("threads", "be at least 1", threads)
        self.path = Path(model)
        content = _read(self.path)
        self.model_id = hashlib.sha256(content).hexdigest()
        self._session = _open(self.path, content, threads)
        self._input, self._size = _input_of(self._session, self.path)

    def __repr__(self) -> str:
        return f"<Detector {self.path}>"

    def boxes(self, image: Image.Image) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return boxes (n, 4) in pixels of an upright RGB image, clipped to it, and their scores (n,).

        Raises DetectorError if the output is not as documented, or the model runs for longer than 10 seconds.
        """
        width, height = self._size or _reduced(image.size)
        resized = image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(resized, dtype=np.float32).transpose(2, 0, 1)[None] / np.float32(255)
        boxes, scores = self._run(np.ascontiguousarray(pixels))
        if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
            raise self._bad(f"boxes of shape {boxes.shape} and scores of shape {scores.shape}")
        if len(boxes) > MOST_ROWS:
            raise self._bad(f"{len(boxes):,} boxes, more than {MOST_ROWS:,}")
        boxes, scores = boxes.astype(np.float64), scores.astype(np.float64)
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
            raise self._bad("numbers that are not finite")
        scale = np.array([image.width / width, image.height / height] * 2)
        return np.clip(boxes * scale, 0, [image.width, image.height] * 2), scores

    def _run(self, pixels: NDArray[np.float32]) -> list[NDArray[Any]]:
        options = import_onnxruntime().RunOptions()
        timer = threading.Timer(SECONDS, setattr, (options, "terminate", True))
        timer.daemon = True
        timer.start()
        try:
            outputs = self._session.run(["boxes", "scores"], {self._input: pixels}, options)
        except Exception as error:  # ONNX Runtime raises many types
            raise DetectorError(f"the detector {self.path} failed: {error}", remedy=CONTRACT) from error
        finally:
            timer.cancel()
        if not all(isinstance(output, np.ndarray) and output.dtype.kind == "f" for output in outputs):
            raise self._bad("outputs that are not floating-point numbers")
        return list(outputs)

    def _bad(self, returned: str) -> DetectorError:
        return DetectorError(f"the detector {self.path} returned {returned}", remedy=CONTRACT)


@dataclass(frozen=True)
class DetectorRegions:
    """The boxes of a detector with the highest scores, without duplicates."""

    detector: Detector
    least_score: float = 0.3
    most: int = 16
    name: str = DETECTOR

    def __post_init__(self) -> None:
        if not 0 <= self.least_score <= 1:
            raise InvalidParameter("min_score", "lie between 0 and 1", self.least_score)
        if not 1 <= self.most <= MOST_BBOXES:
            raise InvalidParameter("max_windows", f"lie between 1 and {MOST_BBOXES}", self.most)

    def find(self, image: Image.Image) -> list[Region]:
        """Return the boxes of an upright image, the highest score first; boxes below 8 pixels are left out."""
        boxes, scores = self.detector.boxes(image)
        found: list[Region] = []
        for row in np.argsort(-scores, kind="stable").tolist():
            left, upper, right, lower = np.round(boxes[row]).tolist()
            if scores[row] < self.least_score or len(found) == self.most:
                break
            region = Region((left, upper, right, lower), float(scores[row]))
            if min(right - left, lower - upper) < MIN_SIDE:
                continue
            if all(overlap(region.bbox, other.bbox) < SAME for other in found):
                found.append(region)
        return found

    def to_dict(self) -> dict[str, Any]:
        """Return the settings of the policy as plain JSON values."""
        model = {"model_id": self.detector.model_id, "min_score": self.least_score}
        return {"regions": self.name, **model, "max_windows": self.most}

    @classmethod
    def from_dict(cls, values: Mapping[str, Any], detector: Detector) -> DetectorRegions:
        """Create DetectorRegions from the output of `to_dict`."""
        return cls(detector, float(values["min_score"]), int(values["max_windows"]))


def _reduced(size: tuple[int, int]) -> tuple[int, int]:
    scale = min(1.0, LONGEST_SIDE / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))


def _read(path: Path) -> bytes:
    try:
        if path.stat().st_size > MOST_BYTES:
            raise DetectorError(f"{path} has more than {MOST_BYTES:,} bytes", remedy="Use a smaller detector")
        return path.read_bytes()
    except OSError as error:
        raise DetectorError(f"{path} cannot be read: {error.strerror}", remedy="Name an ONNX file") from error


def _open(path: Path, content: bytes, threads: int) -> onnxruntime.InferenceSession:
    onnxruntime = import_onnxruntime()
    try:
        return onnxruntime.InferenceSession(content, session_options(threads), providers=["CPUExecutionProvider"])
    except Exception as error:  # ONNX Runtime raises many types for a bad model
        raise DetectorError(f"{path} cannot be loaded: {error}", remedy=CONTRACT) from error


def _input_of(session: onnxruntime.InferenceSession, path: Path) -> tuple[str, tuple[int, int] | None]:
    """Return the name of the input, and its width and height if they are fixed."""
    inputs, outputs = session.get_inputs(), {output.name for output in session.get_outputs()}
    if len(inputs) != 1 or not {"boxes", "scores"} <= outputs:
        names = ", ".join(entry.name for entry in inputs)
        raise DetectorError(f"{path} maps {names} to {', '.join(sorted(outputs))}", remedy=CONTRACT)
    shape = inputs[0].shape
    if (
        inputs[0].type != "tensor(float)"
        or len(shape) != 4
        or shape[1] != 3
        or shape[0] not in (1, None, str(shape[0]))
    ):
        raise DetectorError(f"{path} has the input {inputs[0].type} {shape}", remedy=CONTRACT)
    height, width = shape[2:]
    if not (isinstance(height, int) and isinstance(width, int)):
        return inputs[0].name, None
    if not 1 <= min(height, width) <= max(height, width) <= MOST_SIDE:
        raise DetectorError(
            f"{path} has an input of {width}×{height} pixels", remedy=f"Sides of 1 to {MOST_SIDE} pixels are allowed"
        )
    return inputs[0].name, (width, height)
