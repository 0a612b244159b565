"""One picture made of numbers, and the vector that a bundle's model gave of it where its threshold was measured.

The same file may compute otherwise elsewhere, without a word: a processor that lacks the right instructions clips the
products of int8, another version of a provider rounds at other places. A threshold is worth nothing there.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import BundleError

from .embedder import Embedder

AGREES = 0.999  # cosine from which two vectors of the picture are the same
PATCHES = 8


def golden_pixels(size: int) -> NDArray[np.uint8]:
    """Return the picture, uint8 (1, size, size, 3): a pattern of coloured patches."""
    patches = np.random.default_rng(0).integers(0, 256, (PATCHES, PATCHES, 3), dtype=np.uint8)
    places = np.arange(size) * PATCHES // size
    return patches[places][:, places][None]


def pack_golden(embedder: Embedder) -> bytes:
    """Return what a model makes of the picture, as npz."""
    file = io.BytesIO()
    vectors = embedder.embed_pixels(golden_pixels(embedder.preprocessing.size)).vectors
    np.savez_compressed(file, vector=vectors[0])
    return file.getvalue()


def check_golden(embedder: Embedder, packed: bytes) -> float:
    """Return the cosine of the picture's vector here and there; BundleError where this machine computes otherwise."""
    with np.load(io.BytesIO(packed), allow_pickle=False) as file:
        expected = file["vector"]
    found = embedder.embed_pixels(golden_pixels(embedder.preprocessing.size)).vectors[0]
    cosine = float(found @ expected)
    if not cosine >= AGREES:
        raise BundleError(
            f"this machine computes otherwise than where the threshold was measured: the golden vector's cosine is "
            f"{cosine:.4f}, and needs {AGREES:g}",
            remedy="Export the run on a machine like this one, or in fp32",
        )
    return cosine
