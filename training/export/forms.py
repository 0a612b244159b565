"""A run's model in the forms that it may be served in, each with the distance fitted by its own vectors."""

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
from training.data.splits import protocol_photos
from training.evaluation.distance_selection import DistanceChoice, choose_distance
from training.evaluation.embedding import embed_with_norms
from training.loop.run import Run
from training.model import EmbeddingModel

from .onnx_embedding import embed_with_onnx
from .variants import REFERENCE, Maker, Variant


@dataclass(frozen=True)
class Form:
    """A model in one form."""

    variant: Variant
    made: str  # how: "fp32", "int8, static"
    onnx: Path
    embedder: Embedder
    fitted: Embeddings  # of the photos of fit and validation items, before any whitening
    choice: DistanceChoice

    def whitened(self, vectors: np.ndarray) -> np.ndarray:
        """Return unit vectors (n, d) as the model gives them, where it whitens."""
        return vectors if self.choice.whitening is None else self.choice.whitening(vectors)


class Forms:
    """Makes a run's forms, in a folder.

    Parameters
    ----------
    target_fpir:
        The FPIR at which distances are compared.
    only_plain:
        Leave out the corrected distances.
    """

    def __init__(self, run: Run, folder: Path, *, target_fpir: float, only_plain: bool = False) -> None:
        self.run = run
        self.model = run.best_model()
        self.photos = protocol_photos(run.photos(), [*run.splits.fit, *run.splits.validation], run.protocol)
        self.target_fpir = target_fpir
        self._folder = folder
        self._only_plain = only_plain
        seen = set(run.splits.fit)
        self._maker = Maker(self.model, run.preprocessing, [p for p in self.photos if p.item_id in seen])
        self._threads = torch.get_num_threads()

    @cached_property
    def reference(self) -> Form:
        """Fp32 on the CPU, with the distance that does best on the validation items."""
        return self.make(REFERENCE)

    def make(self, variant: Variant) -> Form:
        """Write the model in this form, with the distance of the reference's form, fitted by its own vectors."""
        onnx = self._folder / f"{variant.precision}-{variant.provider}.onnx"
        preprocessing = self.run.preprocessing
        if variant.is_reference:
            fitted = embed_with_torch(self.run, self.model, self.photos)
        else:
            self._maker.write(onnx, variant)
            embedder = variant.embedder(onnx, preprocessing, threads=self._threads)
            fitted = embed_with_onnx(embedder, self.photos)[0]
        choice = choose_distance(
            self.photos,
            fitted.vectors,
            self.run.splits,
            self.run.protocol,
            target_fpir=self.target_fpir,
            only_plain=self._only_plain,
            like=None if variant.is_reference else self.reference.choice,
        )
        made = self._maker.write(onnx, variant, whitening=choice.whitening)
        embedder = variant.embedder(onnx, preprocessing, threads=self._threads)
        return Form(variant, made, onnx, embedder, fitted, choice)


def embed_with_torch(run: Run, model: EmbeddingModel, photos: Sequence[Photo]) -> Embeddings:
    """Return the embeddings of photos by the model that was trained, without whitening."""
    reader = PhotoReader(photos, run.preprocessing, cache_bytes=0)
    return Embeddings(*embed_with_norms(model, reader, len(photos), run.preprocessing, progress=True))
