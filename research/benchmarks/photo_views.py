"""Unit vectors of photos, their mirror images and their centre crops, by a pretrained model exported as ONNX."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from retrieval.bundle.embedder import Embedder
from retrieval.bundle.providers import CPU
from retrieval.catalogue.read import Photo
from training.data.reader import PhotoReader, evaluation_batches
from training.export.onnx_writer import write_onnx
from training.export.pretrained import Pretrained

CROP_SHARES = (0.875, 0.75)  # sides of the centre crops, as shares of the photo's side


def mirrored(pixels: np.ndarray) -> np.ndarray:
    """Return the mirror images of preprocessed pixels, uint8 (n, size, size, 3)."""
    return np.ascontiguousarray(pixels[:, :, ::-1])


def centre_crop(pixels: np.ndarray, share: float) -> np.ndarray:
    """Return the centre crops of preprocessed pixels, enlarged to their size."""
    size = pixels.shape[1]
    edge = round(size * (1 - share) / 2)
    box = (edge, edge, size - edge, size - edge)
    return np.stack(
        [np.asarray(Image.fromarray(p).resize((size, size), Image.Resampling.BICUBIC, box)) for p in pixels]
    )


VIEWS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "photo": lambda pixels: pixels,
    "mirror": mirrored,
    **{f"crop {share}": lambda pixels, share=share: centre_crop(pixels, share) for share in CROP_SHARES},  # type: ignore[misc]
}


def embedder_of(model: Pretrained, path: Path) -> Embedder:
    """Return an embedder with one thread, from the ONNX file at `path`, written if it does not exist."""
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        write_onnx(model.model, path, size=model.preprocessing.size)
    return Embedder(path, model.preprocessing, provider=CPU)


def views_of(photos: Sequence[Photo], embedder: Embedder, path: Path) -> dict[str, np.ndarray]:
    """Return unit vectors (n, d) of each view of the photos, from the file at `path` if it exists."""
    if not path.exists():
        reader = PhotoReader(photos, embedder.preprocessing, cache_bytes=0)
        found: dict[str, list[np.ndarray]] = {name: [] for name in VIEWS}
        for pixels in tqdm(evaluation_batches(reader, len(photos), batch_size=16), total=len(photos) // 16):
            for name, view in VIEWS.items():
                found[name].append(embedder.embed_pixels(view(pixels)).vectors)
        np.savez(path, **{name: np.concatenate(vectors) for name, vectors in found.items()})  # type: ignore[arg-type]
    with np.load(path, allow_pickle=False) as file:
        return {name: file[name] for name in VIEWS}


def seconds_per_photo(embedder: Embedder, *, rounds: int = 30) -> float:
    """Return the median time to embed one preprocessed photo alone."""
    size = embedder.preprocessing.size
    pixels = np.random.default_rng(0).integers(256, size=(1, size, size, 3), dtype=np.uint8)
    times = []
    for _ in range(rounds):
        started = time.perf_counter()
        embedder.embed_pixels(pixels)
        times.append(time.perf_counter() - started)
    return float(np.median(times))


def unit_mean(*vectors: np.ndarray) -> np.ndarray:
    """Return the means of unit vectors (n, d), scaled to length one."""
    total = np.sum(vectors, axis=0, dtype=np.float64)
    return np.asarray(total / np.linalg.norm(total, axis=-1, keepdims=True), dtype=np.float32)
