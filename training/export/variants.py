"""The forms that a trained model is served in: a precision and a provider, each a numeric path with its own threshold.

fp32 on the CPU is the form that all others are laid beside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from retrieval.bundle.embedder import Embedder
from retrieval.bundle.providers import CPU, FP16, FP32, INT8, PRECISIONS, find_provider
from retrieval.catalogue.read import Photo
from retrieval.errors import InvalidParameter, RunError
from retrieval.images import Preprocessing, to_tensor
from training.data.reader import PhotoReader, evaluation_batches
from training.evaluation.distance_selection import Whitening
from training.model import EmbeddingModel

from .fp16 import to_fp16
from .onnx_writer import write_onnx
from .quantization import to_int8

PARITY = 1e-5  # largest difference of a component between torch and fp32 on the CPU
FLOORS: Mapping[str, float] = {FP32: 0.9999, FP16: 0.999, INT8: 0.99}  # mean cosine to fp32, of any other form
CALIBRATION_PHOTOS = 256  # of training, which give the ranges of int8
BATCH = 16


@dataclass(frozen=True)
class Variant:
    """A precision and what runs it; refused where this machine cannot."""

    precision: str = FP32
    provider: str = CPU

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InvalidParameter("precision", f"be one of {', '.join(PRECISIONS)}", self.precision)
        find_provider(self.provider)

    @property
    def is_reference(self) -> bool:
        """Whether it is what the others are laid beside."""
        return self == REFERENCE

    def describe(self) -> str:
        """Say it in a word or two."""
        return f"{self.precision}, {self.provider}"

    def embedder(self, model: Path, preprocessing: Preprocessing, *, threads: int = 1) -> Embedder:
        """Return the model, ready to run."""
        return Embedder(model, preprocessing, threads=threads, provider=self.provider, precision=self.precision)


REFERENCE = Variant()


@dataclass(frozen=True)
class Maker:
    """Writes a trained model in any form."""

    model: EmbeddingModel
    preprocessing: Preprocessing
    photos: Sequence[Photo]  # that the loss saw

    def write(self, path: Path, variant: Variant, *, whitening: Whitening | None = None) -> str:
        """Write one self-contained ONNX file and say how it was made; evenly spread photos give int8 its ranges."""
        if variant.precision == FP32:
            write_onnx(self.model, path, size=self.preprocessing.size, whitening=whitening)
            return FP32
        whole = path.with_suffix(".fp32")
        write_onnx(self.model, whole, size=self.preprocessing.size, whitening=whitening)
        try:
            if variant.precision == FP16:
                to_fp16(whole, path)
                return FP16
            return f"{INT8}, {to_int8(whole, path, self._batches())}"
        finally:
            whole.unlink()

    def _batches(self) -> list[NDArray[np.float32]]:
        places = np.unique(np.linspace(0, len(self.photos) - 1, CALIBRATION_PHOTOS).round().astype(int))
        reader = PhotoReader([self.photos[place] for place in places], self.preprocessing, cache_bytes=0)
        made = evaluation_batches(reader, len(places), batch_size=BATCH)
        return [to_tensor(pixels, self.preprocessing) for pixels in made]


def check_faithful(made: NDArray[np.float32], trained: NDArray[np.float32], variant: Variant) -> dict[str, float]:
    """Return how far unit vectors (n, d) are from those of torch, whitened alike; RunError where that is too far."""
    difference = float(np.abs(made - trained).max())
    cosines = (made * trained).sum(axis=1)
    found = {
        "largest_difference": difference,
        "mean_cosine": float(cosines.mean()),
        "first_percentile_of_cosine": float(np.percentile(cosines, 1)),
    }
    if variant.is_reference:
        if difference > PARITY:
            raise RunError(
                f"the ONNX model differs from torch by {difference:.1e} a component, more than {PARITY:g}",
                remedy="Train in fp32, or report the backbone: its export is not faithful",
            )
    elif not found["mean_cosine"] >= FLOORS[variant.precision]:
        raise RunError(
            f"the mean cosine of {variant.describe()} to fp32 is {found['mean_cosine']:.4f}, less than "
            f"{FLOORS[variant.precision]:g}",
            remedy="Export in fp16 or fp32: this backbone loses too much in fewer bits",
        )
    return found
