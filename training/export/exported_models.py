"""ONNX models of a run, one per variant, each with a distance fitted to its own vectors."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import torch

from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.catalogue.read import Photo
from training.data.reader import PhotoReader
from training.data.splits import photos_in_protocol
from training.evaluation.distance_selection import DistanceChoice, choose_distance
from training.evaluation.embedding import embed_with_norms
from training.loop.run import Run
from training.model import EmbeddingModel

from .onnx_embedding import embed_with_onnx
from .variants import REFERENCE, Variant, VariantWriter


@dataclass(frozen=True)
class ExportedModel:
    """An ONNX model of one variant."""

    variant: Variant
    method: str  # "fp32", "int8, static"
    onnx: Path
    embedder: Embedder
    fitted: Embeddings  # of the photos of fit and validation items, before whitening
    choice: DistanceChoice

    def whitened(self, vectors: np.ndarray) -> np.ndarray:
        """Return unit vectors (n, d) whitened, if the selected distance is."""
        return vectors if self.choice.whitening is None else self.choice.whitening(vectors)


class ModelExporter:
    """Writes the ONNX models of a run to a folder.

    Parameters
    ----------
    target_fpir:
        FPIR at which distances are compared.
    """

    def __init__(self, run: Run, folder: Path, *, target_fpir: float) -> None:
        self.run = run
        self.photos = photos_in_protocol(run.photos(), [*run.splits.fit, *run.splits.validation], run.protocol)
        self.model = run.best_model()
        self.target_fpir = target_fpir
        self._folder = folder
        seen = set(run.splits.fit)
        self._writer = VariantWriter(self.model, run.preprocessing, [p for p in self.photos if p.item_id in seen])
        self._threads = torch.get_num_threads()

    @cached_property
    def reference(self) -> ExportedModel:
        """The fp32 model for the CPU, with the best distance on the validation items."""
        return self.make(REFERENCE)

    def make(self, variant: Variant) -> ExportedModel:
        """Write a variant. Its distance has the form of the reference's, fitted to its own vectors."""
        onnx = self._folder / f"{variant.precision}-{variant.provider}.onnx"
        preprocessing = self.run.preprocessing
        if variant.is_reference:
            fitted = embed_with_torch(self.run, self.model, self.photos)
        else:
            self._writer.write(onnx, variant)
            embedder = variant.embedder(onnx, preprocessing, threads=self._threads)
            fitted = embed_with_onnx(embedder, self.photos)[0]
        choice = choose_distance(
            self.photos,
            fitted.vectors,
            self.run.splits,
            self.run.protocol,
            target_fpir=self.target_fpir,
            like=None if variant.is_reference else self.reference.choice,
        )
        method = self._writer.write(onnx, variant, whitening=choice.whitening)
        embedder = variant.embedder(onnx, preprocessing, threads=self._threads)
        return ExportedModel(variant, method, onnx, embedder, fitted, choice)


def embed_with_torch(run: Run, model: EmbeddingModel, photos: Sequence[Photo]) -> Embeddings:
    """Return the embeddings of photos by the torch model, without whitening."""
    reader = PhotoReader(photos, run.preprocessing, cache_bytes=0)
    return Embeddings(*embed_with_norms(model, reader, len(photos), run.preprocessing, progress=True))
