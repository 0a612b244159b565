"""Embedding of photos with the exported ONNX model, for calibration."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple

import numpy as np
from tqdm import tqdm

from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.catalogue.read import Photo
from retrieval.images import Appearance
from training.data.reader import PhotoReader, evaluation_batches


def embed_with_onnx(
    embedder: Embedder, photos: Sequence[Photo], *, batch_size: int = 32
) -> tuple[Embeddings, np.ndarray]:
    """Return the embeddings of photos by the exported model, and their appearances (n, 3)."""
    reader = PhotoReader(photos, embedder.preprocessing, cache_bytes=0)
    blocks, appearances = [], []
    with tqdm(total=len(photos), desc="embedding with ONNX", unit="photo") as bar:
        for pixels in evaluation_batches(reader, len(photos), batch_size=batch_size):
            blocks.append(embedder.embed_pixels(pixels))
            appearances += [astuple(Appearance.of(square)) for square in pixels]
            bar.update(len(pixels))
    embeddings = Embeddings(
        np.concatenate([block.vectors for block in blocks]), np.concatenate([block.certainties for block in blocks])
    )
    return embeddings, np.array(appearances, dtype=np.float32)
