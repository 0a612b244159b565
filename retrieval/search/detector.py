"""Boxes of an ONNX object detector.

The model has one input, the photo as RGB, float32 (1, 3, height, width) with values from 0 to 1. If it fixes height and
width, the photo is resized to them; else its longer side is reduced to LONGEST_SIDE pixels if it is longer. The outputs
are `boxes`, (n, 4) left, upper, right, lower in pixels of the input, and `scores`, (n,). Other outputs are ignored.
"""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.bundle.embedder import session_options
from retrieval.bundle.providers import import_onnxruntime
from retrieval.errors import DetectorError, InvalidParameter
from retrieval.images import MIN_SIDE

from .boxes import MOST_WINDOWS, overlap
from .result import BBox

MOST_BYTES = 512 * 2**20  # of the model
LONGEST_SIDE, MOST_SIDE = 640, 2048  # pixels of an input with free sides, and the largest fixed side
MOST_ROWS = 10_000  # boxes that a model may return
LEAST_SCORE = 0.3
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
        onnxruntime = import_onnxruntime()
        try:
            if self.path.stat().st_size > MOST_BYTES:
                raise DetectorError(f"{self.path} has more than {MOST_BYTES:,} bytes", remedy="Use a smaller detector")
            content = self.path.read_bytes()
        except OSError as error:
            raise DetectorError(f"{self.path} cannot be read: {error.strerror}", remedy="Name an ONNX file") from error
        try:
            self._session = onnxruntime.InferenceSession(
                content, session_options(threads), providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # ONNX Runtime raises many types for a bad model
            raise DetectorError(f"{self.path} cannot be loaded: {error}", remedy=CONTRACT) from error
        self._input, self._size = self._input_of()

    def __repr__(self) -> str:
        return f"<Detector {self.path}>"

    def find(self, image: Image.Image) -> list[tuple[BBox, float]]:
        """Return up to 10 boxes of an upright RGB image with their scores, the highest score first.

        Boxes below 8 pixels and duplicates are left out. Raises DetectorError if the output is not as documented, or
        the model runs for longer than 10 seconds.
        """
        boxes, scores = self._boxes(image)
        found: list[tuple[BBox, float]] = []
        for row in np.argsort(-scores, kind="stable").tolist():
            if scores[row] < LEAST_SCORE or len(found) == MOST_WINDOWS:
                break
            left, upper, right, lower = np.round(boxes[row]).tolist()
            box = left, upper, right, lower
            if min(right - left, lower - upper) >= MIN_SIDE and all(overlap(box, other) < SAME for other, _ in found):
                found.append((box, float(scores[row])))
        return found

    def _boxes(self, image: Image.Image) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return boxes (n, 4) in pixels of an image, clipped to it, and their scores (n,)."""
        width, height = self._size or _reduced(image.size)
        resized = image if image.size == (width, height) else image.resize((width, height), Image.Resampling.BILINEAR)
        pixels = np.asarray(resized, dtype=np.float32).transpose(2, 0, 1)[None] / np.float32(255)
        boxes, scores = self._run(np.ascontiguousarray(pixels))
        if boxes.ndim != 2 or boxes.shape[1] != 4 or scores.shape != boxes.shape[:1]:
            raise self._bad(f"boxes of shape {boxes.shape} and scores of shape {scores.shape}")
        if len(boxes) > MOST_ROWS:
            raise self._bad(f"{len(boxes):,} boxes, more than {MOST_ROWS:,}")
        if not (np.isfinite(boxes).all() and np.isfinite(scores).all()):
            raise self._bad("numbers that are not finite")
        scale = np.array([image.width / width, image.height / height] * 2)
        return np.clip(boxes * scale, 0, [image.width, image.height] * 2), scores

    def _run(self, pixels: NDArray[np.float32]) -> list[NDArray[np.float64]]:
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
        return [output.astype(np.float64) for output in outputs]

    def _bad(self, returned: str) -> DetectorError:
        return DetectorError(f"the detector {self.path} returned {returned}", remedy=CONTRACT)

    def _input_of(self) -> tuple[str, tuple[int, int] | None]:
        """Return the name of the input, and its width and height if they are fixed."""
        inputs, outputs = self._session.get_inputs(), {output.name for output in self._session.get_outputs()}
        if len(inputs) != 1 or not {"boxes", "scores"} <= outputs:
            names = ", ".join(entry.name for entry in inputs)
            raise DetectorError(f"{self.path} maps {names} to {', '.join(sorted(outputs))}", remedy=CONTRACT)
        kind, shape = inputs[0].type, inputs[0].shape
        if kind != "tensor(float)" or len(shape) != 4 or shape[1] != 3 or shape[0] not in (1, None, str(shape[0])):
            raise DetectorError(f"{self.path} has the input {kind} {shape}", remedy=CONTRACT)
        height, width = shape[2:]
        if not (isinstance(height, int) and isinstance(width, int)):
            return inputs[0].name, None
        if not 1 <= min(height, width) <= max(height, width) <= MOST_SIDE:
            size = f"{self.path} has an input of {width}×{height} pixels"
            raise DetectorError(size, remedy=f"Sides of 1 to {MOST_SIDE} pixels are allowed")
        return inputs[0].name, (width, height)


def _reduced(size: tuple[int, int]) -> tuple[int, int]:
    scale = min(1.0, LONGEST_SIDE / max(size))
    return max(1, round(size[0] * scale)), max(1, round(size[1] * scale))
