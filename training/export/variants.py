"""Exported models: an ONNX model per variant, which is a precision and an execution provider.

Each variant needs its own threshold.

fp32 on the CPU is the reference that other variants are compared with.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from tqdm import tqdm

from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.bundle.providers import CPU, FP16, FP32, INT8, PRECISIONS, find_provider
from retrieval.catalogue.read import Photo
from retrieval.catalogue.splits import photos_in_protocol
from retrieval.errors import InvalidParameter, RunError
from retrieval.images import Appearance, Preprocessing, to_tensor
from training.data.reader import PhotoReader, evaluation_batches
from training.evaluation.embedding import embed_with_norms
from training.loop.run import Run
from training.model import EmbeddingModel, FoldModels, PretrainedModel

from .onnx_writer import write_onnx
from .quantization import to_fp16, to_int8

PARITY = 1e-5  # largest difference between components of torch and of fp32 on the CPU
FLOORS = {FP32: 0.9999, FP16: 0.999, INT8: 0.99}  # smallest mean cosine to torch of the other variants
CALIBRATION_PHOTOS = 256  # training photos that decide the ranges of int8
BATCH = 16


@dataclass(frozen=True)
class Variant:
    """A precision and an execution provider; raises where the provider is not available."""

    precision: str = FP32
    provider: str = CPU

    def __post_init__(self) -> None:
        if self.precision not in PRECISIONS:
            raise InvalidParameter("precision", f"be one of {', '.join(PRECISIONS)}", self.precision)
        find_provider(self.provider)

    @property
    def is_reference(self) -> bool:
        """Return whether this is fp32 on the CPU."""
        return self == REFERENCE

    def describe(self) -> str:
        """Return a short description."""
        return f"{self.precision}, {self.provider}"

    def embedder(self, model: Path, preprocessing: Preprocessing, *, threads: int = 1) -> Embedder:
        """Return an embedder with the model of this variant."""
        return Embedder(model, preprocessing, threads=threads, provider=self.provider, precision=self.precision)


REFERENCE = Variant()


def write_variant(
    model: EmbeddingModel | PretrainedModel,
    path: Path,
    variant: Variant,
    *,
    preprocessing: Preprocessing,
    photos: Sequence[Photo],
) -> str:
    """Write a model as one ONNX file; return the method, such as "int8, static".

    `photos` decide the ranges of int8: they are of the items that the model was fitted on, if it was fitted.
    """
    if variant.precision == FP32:
        write_onnx(model, path, size=preprocessing.size)
        return FP32
    fp32 = path.with_suffix(".fp32")
    write_onnx(model, fp32, size=preprocessing.size)
    try:
        if variant.precision == FP16:
            to_fp16(fp32, path)
            return FP16
        positions = np.unique(np.linspace(0, len(photos) - 1, CALIBRATION_PHOTOS).round().astype(int))
        reader = PhotoReader([photos[position] for position in positions], preprocessing, cache_bytes=0)
        batches = evaluation_batches(reader, range(len(positions)), batch_size=BATCH)
        return f"{INT8}, {to_int8(fp32, path, [to_tensor(pixels, preprocessing) for pixels in batches])}"
    finally:
        fp32.unlink()


def check_parity(exported: NDArray[np.float32], trained: NDArray[np.float32], variant: Variant) -> dict[str, float]:
    """Return the deviation of unit vectors (n, d) from those of torch; raise RunError if it is too large."""
    difference, cosine = float(np.abs(exported - trained).max()), float((exported * trained).sum(axis=1).mean())
    if variant.is_reference and difference > PARITY:
        raise RunError(
            f"the ONNX model differs from torch by {difference:.1e} per component, more than {PARITY:g}",
            remedy="Train in fp32, or report that this backbone is not exported correctly",
        )
    if not variant.is_reference and not cosine >= FLOORS[variant.precision]:
        raise RunError(
            f"the mean cosine of {variant.describe()} to fp32 is {cosine:.4f}, less than {FLOORS[variant.precision]:g}",
            remedy="Export in fp16 or fp32: this backbone loses too much accuracy in a lower precision",
        )
    return {"largest_difference": difference, "mean_cosine": cosine}


def embed_with_onnx(
    embedder: Embedder, photos: Sequence[Photo], *, batch_size: int = 32
) -> tuple[Embeddings, np.ndarray]:
    """Return the embeddings of photos by the exported model, and their appearances (n, 3)."""
    reader = PhotoReader(photos, embedder.preprocessing, cache_bytes=0)
    blocks, appearances = [], []
    with tqdm(total=len(photos), desc="embedding with ONNX", unit="photo") as bar:
        for pixels in evaluation_batches(reader, range(len(photos)), batch_size=batch_size):
            blocks.append(embedder.embed_pixels(pixels))
            appearances += [astuple(Appearance.of(square)) for square in pixels]
            bar.update(len(pixels))
    embeddings = Embeddings(
        np.concatenate([block.vectors for block in blocks]), np.concatenate([block.certainties for block in blocks])
    )
    return embeddings, np.array(appearances, dtype=np.float32)


@dataclass(frozen=True)
class ExportedModel:
    """An ONNX model of one variant."""

    variant: Variant
    method: str  # "fp32", "int8, static"
    onnx: Path
    embedder: Embedder


class ModelExporter:
    """Writes the ONNX models of a run to a folder."""

    def __init__(self, run: Run, folder: Path) -> None:
        self.run = run
        self.photos = photos_in_protocol(run.photos(), [*run.splits.fit, *run.splits.validation], run.protocol)
        self.model = run.best_model()
        self._folder = folder

    def make(self, variant: Variant) -> ExportedModel:
        """Write a variant."""
        path = self._folder / f"{variant.precision}-{variant.provider}.onnx"
        seen, preprocessing = set(self.run.splits.fit), self.run.preprocessing
        photos = [photo for photo in self.photos if photo.item_id in seen]
        method = write_variant(self.model, path, variant, preprocessing=preprocessing, photos=photos)
        return ExportedModel(
            variant, method, path, variant.embedder(path, preprocessing, threads=torch.get_num_threads())
        )


def embed_with_torch(run: Run, model: EmbeddingModel | FoldModels, photos: Sequence[Photo]) -> Embeddings:
    """Return the embeddings of photos by the torch model."""
    reader = PhotoReader(photos, run.preprocessing, cache_bytes=0)
    return Embeddings(*embed_with_norms(model, reader, len(photos), run.preprocessing, progress=True))
