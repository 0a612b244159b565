"""Golden vector: the embedding of a synthetic image, recorded where the threshold was measured.

The same model file can silently compute different values on another machine: a processor without the required
instructions saturates int8 products, and another provider version rounds differently. The threshold is invalid there.
"""

from __future__ import annotations

import io

import numpy as np
from numpy.typing import NDArray

from index.files import load_arrays
from retrieval.errors import BundleError

from .embedder import Embedder

AGREES = 0.999  # minimum cosine between the expected and the computed vector
PATCHES = 8


def golden_pixels(size: int, *, seed: int = 0) -> NDArray[np.uint8]:
    """Return a synthetic image, a pattern of coloured patches that depends on the seed, uint8 (1, size, size, 3)."""
    patches = np.random.default_rng(seed).integers(0, 256, (PATCHES, PATCHES, 3), dtype=np.uint8)
    places = np.arange(size) * PATCHES // size
    return patches[places][:, places][None]


def pack_golden(embedder: Embedder) -> bytes:
    """Return the golden vector of a model as npz."""
    file = io.BytesIO()
    vectors = embedder.embed_pixels(golden_pixels(embedder.preprocessing.size)).vectors
    np.savez_compressed(file, vector=vectors[0])
    return file.getvalue()


def check_golden(embedder: Embedder, packed: bytes) -> float:
    """Return the cosine between the expected and the computed golden vector; raise BundleError if they differ."""
    expected = load_arrays(packed)["vector"]
    found = embedder.embed_pixels(golden_pixels(embedder.preprocessing.size)).vectors[0]
    cosine = float(found @ expected)
    if not cosine >= AGREES:
        raise BundleError(
            f"this machine computes otherwise than where the threshold was measured: the golden vector's cosine is "
            f"{cosine:.4f}, and needs {AGREES:g}",
            remedy="Export the run on a machine like this one, or in fp32",
        )
    return cosine
