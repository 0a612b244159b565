"""Inputs of the training steps: augmented pixels, or precomputed features.

Symbols: n = training photos, m = validation photos, r = this process's share of a batch, c = channels of the backbone,
V = views of each photo.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from retrieval.catalogue.read import Photo
from retrieval.images import Preprocessing
from training.config import Settings
from training.evaluation.embedding import embed_photos, to_device
from training.loop.distributed import ProcessGroup
from training.model import EmbeddingModel

from .augmentation import Augmentation
from .reader import PhotoReader, evaluation_batches, training_batches

FEATURES = "features.safetensors"
GIB = 2**30
BLOCK = 64  # photos whose features are computed at a time


class Source(Protocol):
    """Yields the inputs of one process's steps, and embeds the validation photos."""

    def inputs(self, planned: Sequence[np.ndarray], epoch: int) -> Iterator[np.ndarray]:
        """Yield this process's share of the inputs of each planned batch."""

    def prepare(self, inputs: np.ndarray) -> Tensor:
        """Return inputs as a tensor for the model, on the device."""

    def validation_vectors(self, model: EmbeddingModel) -> np.ndarray:
        """Return unit vectors (m, d) of the validation photos."""


class PixelSource:
    """Decodes photos in the background and augments them for every use."""

    def __init__(
        self,
        fit: Sequence[Photo],
        validation: Sequence[Photo],
        settings: Settings,
        preprocessing: Preprocessing,
        *,
        process_group: ProcessGroup,
    ) -> None:
        self.reader = PhotoReader(fit, preprocessing)
        share = [validation[i] for i in process_group.share(np.arange(len(validation)))]
        self._validation = PhotoReader(share, preprocessing, cache_bytes=GIB)
        self._validation_count = len(share)
        self.count = len(fit)
        self._augmentation = Augmentation(settings)
        self._settings = settings
        self._preprocessing = preprocessing
        self._process_group = process_group

    def inputs(self, planned: Sequence[np.ndarray], epoch: int) -> Iterator[np.ndarray]:
        """Yield uint8 pixels (r, size, size, 3), augmented as (seed, epoch) and the place in the batch decide."""
        for _, pixels in self.crops(planned, seed=(self._settings.seed, epoch)):
            yield pixels

    def crops(self, batches: Iterable[np.ndarray], *, seed: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield this process's positions (r,) of each batch, and its augmented pixels (r, size, size, 3)."""
        part = (self._process_group.rank, self._process_group.size)
        return training_batches(self.reader, self._augmentation, batches, seed=seed, part=part)

    def prepare(self, inputs: np.ndarray) -> Tensor:
        """Return normalised pixels (r, 3, size, size)."""
        return to_device(inputs, self._preprocessing, self._process_group.device)

    def features(self, model: EmbeddingModel, positions: np.ndarray) -> np.ndarray:
        """Return the pooled features (n, c) of unaugmented training photos, computed by this process."""
        blocks = np.split(positions, range(BLOCK, len(positions), BLOCK))
        return np.concatenate([pooled_features(model, self, self.reader.pixels(block.tolist())) for block in blocks])

    def validation_pixels(self) -> Iterator[np.ndarray]:
        """Yield this process's share of the validation photos, uint8 (≤ 64, size, size, 3)."""
        return evaluation_batches(self._validation, range(self._validation_count))

    def validation_vectors(self, model: EmbeddingModel) -> np.ndarray:
        """Return unit vectors (m, d), of which each process embeds its share."""
        return self._process_group.gather_rows(
            embed_photos(model, self._validation, self._validation_count, self._preprocessing)
        )


class FeatureSource:
    """Pooled features of a frozen backbone, computed once and stored in the run, to train only the head.

    The first view of a photo has the preprocessing that serves; the others are augmented.
    """

    def __init__(
        self, path: Path, pixels: PixelSource, model: EmbeddingModel, settings: Settings, process_group: ProcessGroup
    ) -> None:
        from safetensors.torch import load_file, save_file

        self._process_group = process_group
        self._seed = settings.seed
        if not (path / FEATURES).exists():
            features = _features(pixels, model, settings, process_group)
            if process_group.is_main:
                save_file(
                    {name: torch.from_numpy(value) for name, value in features.items()}, path / "features.partial"
                )
                (path / "features.partial").replace(path / FEATURES)
            process_group.barrier()
        stored = load_file(path / FEATURES)
        self._fit: np.ndarray = stored["fit"].numpy()  # (V, n, c)
        self._validation = stored["validation"]  # (m, c)

    @property
    def unaugmented(self) -> np.ndarray:
        """The features (n, c) of the unaugmented training photos."""
        plain: np.ndarray = self._fit[0]
        return plain

    def inputs(self, planned: Sequence[np.ndarray], epoch: int) -> Iterator[np.ndarray]:
        """Yield features (r, c), of a random view of each photo."""
        generator = np.random.default_rng((self._seed, epoch))
        for positions in planned:
            views = generator.integers(len(self._fit), size=len(positions))
            yield self._fit[self._process_group.share(views), self._process_group.share(positions)]

    def prepare(self, inputs: np.ndarray) -> Tensor:
        """Return features (r, c)."""
        return torch.from_numpy(inputs).to(self._process_group.device)

    def validation_vectors(self, model: EmbeddingModel) -> np.ndarray:
        """Return unit vectors (m, d)."""
        with torch.inference_mode():
            vectors: np.ndarray = (
                F.normalize(model.head(self._validation.to(self._process_group.device)), dim=1).cpu().numpy()
            )
        return vectors


def pooled_features(model: EmbeddingModel, pixels: PixelSource, block: np.ndarray) -> np.ndarray:
    """Return the pooled features (n, c) float32 of pixels, in evaluation mode."""
    was_training = model.training
    model.eval()
    with torch.inference_mode():
        features: np.ndarray = model.pool(model.backbone(pixels.prepare(block))).float().cpu().numpy()
    model.train(was_training)
    return features


def _features(
    pixels: PixelSource, model: EmbeddingModel, settings: Settings, process_group: ProcessGroup
) -> dict[str, np.ndarray]:
    """Return the pooled features of the training photos (V, n, c) and of the validation photos (m, c), float32."""

    def view(number: int) -> np.ndarray:
        """Return the features of all training photos (n, c): unaugmented for view 0, else augmented."""
        if number:
            blocks = np.split(np.arange(pixels.count), range(BLOCK, pixels.count, BLOCK))
            batches = pixels.crops(blocks, seed=(settings.seed, number))
        else:
            share = process_group.share(np.arange(pixels.count))
            parts = [share[start : start + BLOCK] for start in range(0, len(share), BLOCK)]
            batches = zip(parts, evaluation_batches(pixels.reader, share.tolist(), batch_size=BLOCK), strict=True)
        positions, features = [np.zeros(0, np.int64)], [empty]
        for share, crops in batches:
            positions.append(share)
            features.append(pooled_features(model, pixels, crops))
        whole = np.empty((pixels.count, model.backbone.width), np.float32)
        whole[process_group.gather_rows(np.concatenate(positions))] = process_group.gather_rows(
            np.concatenate(features)
        )
        return whole

    empty = np.zeros((0, model.backbone.width), np.float32)
    numbers = tqdm(range(settings.precompute), desc="features", unit="view", disable=not process_group.is_main)
    views = np.stack([view(number) for number in numbers])
    validation = process_group.gather_rows(
        np.concatenate([empty, *(pooled_features(model, pixels, block) for block in pixels.validation_pixels())])
    )
    return {"fit": views, "validation": validation}
