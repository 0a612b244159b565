"""Inputs of the training steps: augmented pixels, or precomputed features.

Symbols: n = training photos, m = photos of the mixed gallery, r = this process's share of a batch, c = channels of the
backbone, V = views of each photo, d = embedding size.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from tqdm import tqdm

from retrieval.catalogue.read import Photo
from retrieval.errors import counted
from retrieval.images import Preprocessing
from training.config import Settings
from training.evaluation.embedding import embed_photos, to_device
from training.loop.distributed import ProcessGroup
from training.model import EmbeddingModel, PretrainedModel

from .augmentation import Augmentation
from .reader import PhotoReader, evaluation_batches, training_batches

FEATURES, PHOTOS = "features.safetensors", "photos"  # the file, and the fingerprint of its photos
GIB = 2**30
BLOCK = 64  # photos whose features are computed at a time

LoadModel = Callable[[], tuple[EmbeddingModel | PretrainedModel, Preprocessing]]


class PixelSource:
    """Decodes photos in the background and augments them for every use."""

    def __init__(
        self,
        fit: Sequence[Photo],
        searched: Sequence[Photo],
        settings: Settings,
        preprocessing: Preprocessing,
        *,
        process_group: ProcessGroup,
    ) -> None:
        self.photos = fit, searched
        self.reader = PhotoReader(fit, preprocessing)
        self._count = len(searched)
        self._share = [searched[i] for i in process_group.share(np.arange(len(searched)))]
        self._searched = PhotoReader(self._share, preprocessing, cache_bytes=GIB)
        self.count = len(fit)
        self._augmentation = Augmentation(settings)
        self._settings = settings
        self._preprocessing = preprocessing
        self._process_group = process_group

    def inputs(self, planned: Iterable[np.ndarray], epoch: int) -> Iterator[np.ndarray]:
        """Yield uint8 pixels (r, size, size, 3), augmented as (seed, epoch) and the place in the batch decide."""
        part = (self._process_group.rank, self._process_group.size)
        return training_batches(self.reader, self._augmentation, planned, seed=(self._settings.seed, epoch), part=part)

    def prepare(self, inputs: np.ndarray) -> Tensor:
        """Return normalised pixels (r, 3, size, size)."""
        return to_device(inputs, self._preprocessing, self._process_group.device)

    def features(self, model: EmbeddingModel, positions: np.ndarray) -> np.ndarray:
        """Return the pooled features (1, n, c) of unaugmented training photos, computed by this process."""
        return pooled_features(model, evaluation_batches(self.reader, positions.tolist()), self.prepare)[None]

    def searched_features(self, model: EmbeddingModel) -> np.ndarray:
        """Return the pooled features (m, c) of the mixed gallery, of which each process computes its share."""
        blocks = evaluation_batches(self._searched, range(len(self._share)))
        return self._process_group.gather_rows(pooled_features(model, blocks, self.prepare))

    def vectors(self, model: EmbeddingModel) -> np.ndarray:
        """Return unit vectors (m, d), of which each process embeds its share."""
        return self._process_group.gather_rows(
            embed_photos(model, self._searched, len(self._share), self._preprocessing)
        )

    def vectors_before(self, load: LoadModel) -> np.ndarray:
        """Return unit vectors (m, d) by the model before training, with its own preprocessing."""
        if not self._count:
            return np.zeros((0, 0), np.float32)
        with torch.random.fork_rng(devices=[]):
            model, preprocessing = load()
        model.to(self._process_group.device)
        reader = PhotoReader(self._share, preprocessing, cache_bytes=0)
        return self._process_group.gather_rows(embed_photos(model, reader, len(self._share), preprocessing))


class FeatureSource:
    """Pooled features of a frozen backbone, computed once and stored in the run, to train only the head.

    The first view of a photo has the preprocessing that serves; the others are augmented. Features are computed again
    if the photos have changed.
    """

    def __init__(
        self,
        path: Path,
        pixels: PixelSource,
        model: EmbeddingModel,
        settings: Settings,
        *,
        before: LoadModel,
        process_group: ProcessGroup,
    ) -> None:
        from safetensors.torch import load_file

        self._process_group = process_group
        self._seed = settings.seed
        exist = (path / FEATURES).exists()
        if process_group.broadcast(not exist or _photos_of(path) != fingerprint(*pixels.photos)):
            if exist and process_group.is_main:
                tqdm.write("The photos may have changed, so their features are computed again.")
            title = f"embedding {counted(len(pixels.photos[0]), 'photo')}, the longest step"
            numbers = tqdm(range(settings.precompute), desc=title, unit="view", disable=not process_group.is_main)
            views = np.stack([_view(pixels, model, number, process_group) for number in numbers])
            features = {
                "fit": views,
                "searched": pixels.searched_features(model),
                "before": pixels.vectors_before(before),
            }
            if process_group.is_main:
                save_features(path, features, *pixels.photos)
            process_group.barrier()
        stored = load_file(path / FEATURES)
        self._fit: np.ndarray = stored["fit"].numpy()  # (V, n, c)
        self._searched, self._before = stored["searched"], stored["before"]  # (m, c), (m, d)

    def features(self, model: EmbeddingModel, positions: np.ndarray) -> np.ndarray:  # noqa: ARG002
        """Return the features (V, n, c) of views of training photos, of which the first is unaugmented."""
        features: np.ndarray = self._fit[:, positions]
        return features

    def inputs(self, planned: Sequence[np.ndarray], epoch: int) -> Iterator[np.ndarray]:
        """Yield features (r, c), of a random view of each photo."""
        generator = np.random.default_rng((self._seed, epoch))
        for positions in planned:
            views = generator.integers(len(self._fit), size=len(positions))
            yield self._fit[self._process_group.share(views), self._process_group.share(positions)]

    def prepare(self, inputs: np.ndarray) -> Tensor:
        """Return features (r, c)."""
        return torch.from_numpy(inputs).to(self._process_group.device)

    def vectors(self, model: EmbeddingModel) -> np.ndarray:
        """Return unit vectors (m, d)."""
        with torch.inference_mode():
            vectors: np.ndarray = (
                F.normalize(model.head(self._searched.to(self._process_group.device)), dim=1).cpu().numpy()
            )
        return vectors

    def vectors_before(self, load: LoadModel) -> np.ndarray:  # noqa: ARG002
        """Return unit vectors (m, d) by the model before training."""
        vectors: np.ndarray = self._before.numpy()
        return vectors


def fingerprint(fit: Sequence[Photo], searched: Sequence[Photo]) -> str:
    """Return a hash of the photos and their order, which changes with their files, as far as `Photo.state` does."""
    photos = [(str(photo.path), photo.bbox, photo.state()) for photo in (*fit, *searched)]
    return hashlib.sha256(repr((len(fit), photos)).encode()).hexdigest()


def save_features(
    path: Path, features: Mapping[str, np.ndarray], fit: Sequence[Photo], searched: Sequence[Photo]
) -> None:
    """Write the features of a run: "fit" (V, n, c), "searched" (m, c) and the vectors "before" training (m, d)."""
    from safetensors.numpy import save_file

    path.mkdir(parents=True, exist_ok=True)
    save_file(
        {name: np.ascontiguousarray(value) for name, value in features.items()},
        path / "features.partial",
        metadata={PHOTOS: fingerprint(fit, searched)},
    )
    (path / "features.partial").replace(path / FEATURES)


def _photos_of(path: Path) -> str:
    """Return the fingerprint of the photos that the features of a run belong to; "" if it is unknown or damaged."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path / FEATURES, framework="np") as file:
            return str((file.metadata() or {}).get(PHOTOS, ""))
    except SafetensorError:
        return ""


def pooled_features(
    model: EmbeddingModel, blocks: Iterable[np.ndarray], prepare: Callable[[np.ndarray], Tensor]
) -> np.ndarray:
    """Return the pooled features (n, c) float32 of blocks of pixels, in evaluation mode."""
    was_training = model.training
    model.eval()
    pooled = [np.zeros((0, model.backbone.width), np.float32)]
    with torch.inference_mode():
        pooled += [model.pool(model.backbone(prepare(block))).float().cpu().numpy() for block in blocks]
    model.train(was_training)
    return np.concatenate(pooled)


def _view(pixels: PixelSource, model: EmbeddingModel, number: int, process_group: ProcessGroup) -> np.ndarray:
    """Return the pooled features of all training photos (n, c): unaugmented for view 0, else augmented."""
    blocks = np.split(np.arange(pixels.count), range(BLOCK, pixels.count, BLOCK))
    positions = np.concatenate([process_group.share(block) for block in blocks])
    if number:
        features = pooled_features(model, pixels.inputs(blocks, number), pixels.prepare)
    else:
        features = pixels.features(model, positions)[0]
    whole = np.empty((pixels.count, model.backbone.width), np.float32)
    whole[process_group.gather_rows(positions)] = process_group.gather_rows(features)
    return whole
