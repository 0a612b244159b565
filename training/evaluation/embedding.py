"""Embedding of photos with a torch model: unit vectors and norms.

Shapes: n photos, d = embedding size, h and w = sides of the model's input.
"""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from retrieval.catalogue.read import Photo
from retrieval.images import Preprocessing
from training.data.reader import PhotoReader, evaluation_batches
from training.model import EmbeddingModel, FoldModels, PretrainedModel, choose_device

TRIM_THRESHOLD, TOP_PAD, MMAP_MAX = -1, -2, -4  # parameters of glibc's mallopt(3)
PAD = 64 * 2**20


def to_device(pixels: np.ndarray, preprocessing: Preprocessing, device: torch.device) -> Tensor:
    """Return uint8 (n, h, w, 3) as the model's float input (n, 3, h, w): `to_tensor`, computed on the device."""
    raw = torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2)
    offset, scale = (torch.from_numpy(values).to(device) for values in preprocessing.offset_and_scale())
    return (raw.float() - offset) * scale


def embed_photos(
    model: EmbeddingModel | PretrainedModel,
    reader: PhotoReader,
    count: int,
    preprocessing: Preprocessing,
    *,
    progress: bool = False,
) -> np.ndarray:
    """Return unit vectors (count, d) float32 of the reader's photos, in evaluation mode."""
    return embed_with_norms(model, reader, count, preprocessing, progress=progress)[0]


def embed_catalogue(
    model: EmbeddingModel | PretrainedModel,
    photos: Sequence[Photo],
    preprocessing: Preprocessing,
    *,
    progress: bool = True,
) -> np.ndarray:
    """Return unit vectors (photos, d) float32 of photos, on the first GPU or else the CPU."""
    model.to(choose_device()).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    return embed_photos(
        model, PhotoReader(photos, preprocessing, cache_bytes=0), len(photos), preprocessing, progress=progress
    )


def embed_with_norms(
    model: EmbeddingModel | FoldModels | PretrainedModel,
    reader: PhotoReader,
    count: int,
    preprocessing: Preprocessing,
    *,
    progress: bool = False,
) -> tuple[np.ndarray, np.ndarray]:
    """Return unit vectors (count, d) and norms of the raw embeddings (count,), float32, in evaluation mode."""
    was_training = model.training
    model.eval()
    device = next(model.parameters()).device
    if device.type == "cpu":
        keep_freed_memory()
    blocks, norms = [np.zeros((0, model.dim), np.float32)], [np.zeros(0, np.float32)]
    with torch.inference_mode():
        bar = tqdm(total=count, desc="embedding", unit="photo", disable=not progress)
        for pixels in evaluation_batches(reader, range(count)):
            raw = model(to_device(pixels, preprocessing, device))
            blocks.append(F.normalize(raw.float(), dim=1).cpu().numpy())
            norms.append(raw.float().norm(dim=1).cpu().numpy())
            bar.update(len(pixels))
        bar.close()
    model.train(was_training)
    return np.concatenate(blocks), np.concatenate(norms)


def keep_freed_memory() -> bool:
    """Make glibc keep freed memory, for the whole process; return whether that worked.

    A batch on a CPU allocates and frees hundreds of megabytes of activations. By default each large allocation is a
    separate mapping whose pages the kernel clears every time, which can take longer than the arithmetic. In exchange,
    the memory of the process does not fall after its peak.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):  # another C library
        return False
    return all(mallopt(parameter, value) for parameter, value in ((MMAP_MAX, 0), (TRIM_THRESHOLD, -1), (TOP_PAD, PAD)))
