"""What a step is fed with: augmented pixels, or features that were computed once.

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
from training.loop.distributed import Team
from training.model import EmbeddingModel

from .reader import Augmentation, PhotoReader, ahead, evaluation_batches, training_batches

FEATURES = "features.safetensors"
GIB = 2**30


class Source(Protocol):
    """Feeds the steps of one process, and embeds the validation photos."""

    def inputs(self, planned: Sequence[np.ndarray], epoch: int) -> Iterator[np.ndarray]:
        """Yield this process's share of the inputs of each planned batch."""

    def prepare(self, inputs: np.ndarray) -> Tensor:
        """Return inputs as the model takes them, on the device."""

    def validation_vectors(self, model: EmbeddingModel) -> np.ndarray:
        """Return unit vectors (m, d) of the validation photos."""


class PixelSource:
    """Photos that are decoded ahead and augmented anew each time."""

    def __init__(
        self,
        fit: Sequence[Photo],
        validation: Sequence[Photo],
        settings: Settings,
        preprocessing: Preprocessing,
        *,
        team: Team,
    ) -> None:
        room, folder = int(settings.cache_gib * GIB), settings.cache_dir
        self.reader = PhotoReader(fit, preprocessing, cache_bytes=room, cache_dir=folder)
        mine = [validation[i] for i in team.mine(np.arange(len(validation)))]
        self._validation = PhotoReader(mine, preprocessing, cache_bytes=room // 4, cache_dir=folder)
        self._mine = len(mine)
        self.count = len(fit)
        self._augmentation = Augmentation(settings)
        self._settings = settings
        self._preprocessing = preprocessing
        self._team = team

    def inputs(self, planned: Sequence[np.ndarray], epoch: int) -> Iterator[np.ndarray]:
        """Yield uint8 pixels (r, size, size, 3); augmentation depends on (seed, epoch) and the place in the batch."""
        for _, pixels in self.crops(planned, seed=(self._settings.seed, epoch)):
            yield pixels

    def crops(self, batches: Iterable[np.ndarray], *, seed: tuple[int, ...]) -> Iterator[tuple[np.ndarray, np.ndarray]]:
        """Yield this process's positions (r,) of each batch, and its augmented pixels (r, size, size, 3)."""
        part = (self._team.rank, self._team.size)
        threads = self._settings.decoders
        return training_batches(self.reader, self._augmentation, batches, seed=seed, part=part, threads=threads)

    def prepare(self, inputs: np.ndarray) -> Tensor:
        """Return normalised pixels (r, 3, size, size)."""
        return to_device(inputs, self._preprocessing, self._team.device)

    def augment(self, position: int, generator: np.random.Generator) -> np.ndarray:
        """Return a training photo as a step may see it, uint8 (size, size, 3)."""
        return self._augmentation(self.reader[position], generator)

    def validation_pixels(self) -> Iterator[np.ndarray]:
        """Yield this process's share of the validation photos, uint8 (≤ 64, size, size, 3)."""
        return evaluation_batches(self._validation, self._mine, threads=self._settings.decoders)

    def validation_vectors(self, model: EmbeddingModel) -> np.ndarray:
        """Return unit vectors (m, d), embedded by all processes together."""
        return self._team.collect(embed_photos(model, self._validation, self._mine, self._preprocessing))


class FeatureSource:
    """Pooled features of a frozen backbone, computed once and kept in the run: a head is trained in minutes.

    The first view of a photo is the one that is served, the others are augmented.
    """

    def __init__(self, path: Path, pixels: PixelSource, model: EmbeddingModel, settings: Settings, team: Team) -> None:
        from safetensors.torch import load_file, save_file

        self._team = team
        self._seed = settings.seed
        if not (path / FEATURES).exists():
            made = _features(pixels, model, settings, team)
            if team.leads:
                save_file({name: torch.from_numpy(value) for name, value in made.items()}, path / "features.partial")
                (path / "features.partial").replace(path / FEATURES)
            team.wait()
        kept = load_file(path / FEATURES)
        self._fit: np.ndarray = kept["fit"].numpy()  # (V, n, c)
        self._validation = kept["validation"]  # (m, c)

    def inputs(self, planned: Sequence[np.ndarray], epoch: int) -> Iterator[np.ndarray]:
        """Yield features (r, c), of a view that is drawn for each photo of the batch."""
        generator = np.random.default_rng((self._seed, epoch))
        for positions in planned:
            views = generator.integers(len(self._fit), size=len(positions))
            yield self._fit[self._team.mine(views), self._team.mine(positions)]

    def prepare(self, inputs: np.ndarray) -> Tensor:
        """Return features (r, c)."""
        return torch.from_numpy(inputs).to(self._team.device)

    def validation_vectors(self, model: EmbeddingModel) -> np.ndarray:
        """Return unit vectors (m, d)."""
        with torch.inference_mode():
            vectors: np.ndarray = F.normalize(model.head(self._validation.to(self._team.device)), dim=1).cpu().numpy()
        return vectors


def _features(pixels: PixelSource, model: EmbeddingModel, settings: Settings, team: Team) -> dict[str, np.ndarray]:
    """Return the pooled features of the training photos (V, n, c) and of the validation photos (m, c), float32."""
    was_training = model.training
    model.eval()

    def pooled(block: np.ndarray) -> np.ndarray:
        with torch.inference_mode():
            features: np.ndarray = model.pool(model.backbone(pixels.prepare(block))).float().cpu().numpy()
        return features

    def view(number: int) -> np.ndarray:
        """Return the features of all training photos (n, c): seen as served for 0, else augmented."""
        blocks = np.split(np.arange(pixels.count), range(64, pixels.count, 64))
        if number:
            seen = pixels.crops(blocks, seed=(settings.seed, number))
        else:
            shares = [team.mine(block) for block in blocks]
            seen = ahead(((share, pixels.reader.pixels(share.tolist())) for share in shares if len(share)), 2)
        positions, features = [np.zeros(0, np.int64)], [empty]
        for share, crops in seen:
            positions.append(share)
            features.append(pooled(crops))
        whole = np.empty((pixels.count, model.backbone.width), np.float32)
        whole[team.collect(np.concatenate(positions))] = team.collect(np.concatenate(features))
        return whole

    empty = np.zeros((0, model.backbone.width), np.float32)
    numbers = tqdm(range(settings.precompute), desc="features", unit="view", disable=not team.leads)
    views = np.stack([view(number) for number in numbers])
    validation = team.collect(np.concatenate([empty, *(pooled(block) for block in pixels.validation_pixels())]))
    model.train(was_training)
    return {"fit": views, "validation": validation}
