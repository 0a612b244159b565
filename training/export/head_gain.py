"""Gain of a head trained on the features of a frozen backbone (`train --precompute`), by cross-validation.

Each head is trained on four fifths of the items, with the default settings of `train`. The photos of the other fifth
then search the photos of all of them. Unlike in `train`, the features are those of the unaugmented photos at the input
size of the pretrained model. Shapes: n photos, c = width of the features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError
from training.backbones.base import Backbone
from training.config import Settings
from training.data.folds import item_folds, share_of_items
from training.evaluation.evaluate import item_labels
from training.loop.distributed import ProcessGroup
from training.loop.learner import Learner
from training.loop.recipe import build_loss, make_sampler
from training.model import EmbeddingModel

from .projection import ProjectionChoice, fit_projection, found_by_item

FOLDS = 5
MOST_ITEMS = 200  # that are used; the time grows with the photos

Floats = NDArray[np.float32]


@dataclass(frozen=True)
class HeadGain:
    """The cross-validated R@1 without and with a head."""

    items: int
    without: float
    trained: float
    error: float  # standard error of the gain over items

    @property
    def helps(self) -> bool:
        """Whether the gain exceeds its standard error."""
        return self.trained - self.without > self.error

    def to_dict(self) -> dict[str, object]:
        """Return plain JSON values, with a sentence for people."""
        expected = "may help" if self.helps else "is not expected to help"
        told = (
            f"Training a head on this model {expected}: in a cross-validation on {self.items} items, "
            f"{self.trained:.0%} of the photos of items that it was not trained on find their item first, "
            f"{self.without:.0%} without it (standard error of the difference {100 * self.error:.1f} points)."
        )
        return {**vars(self), "helps": self.helps, "told": told}


def measure_head(
    photos: Sequence[Photo], features: Floats, choice: ProjectionChoice, *, seed: int = 0
) -> HeadGain | None:
    """Return what a head on features (n, c) gains over the features, or over their projection if one was chosen.

    At most 200 items are used, and none with a single photo. Groups are not divided; None if there are too few.
    """
    counts = Counter(photo.item_id for photo in photos)
    several = [item for item, count in counts.items() if count > 1]
    names = set(share_of_items(photos, several, share=min(1.0, MOST_ITEMS / max(1, len(several))), seed=seed))
    used = np.array([photo.item_id in names for photo in photos], dtype=bool)
    photos, features = [photo for photo, use in zip(photos, used, strict=True) if use], features[used]
    items = np.array([photo.item_id for photo in photos], dtype=str)
    try:
        folds = item_folds(photos, sorted(names), folds=FOLDS, seed=seed)
    except DataError:  # too few groups
        return None
    without, trained = [], []
    for fit_items, held_items in folds:
        fits, held = np.isin(items, fit_items), np.isin(items, held_items)
        fit = [photo for photo, inside in zip(photos, fits, strict=True) if inside]
        present = features.astype(np.float64)
        if choice.projection is not None:
            present = fit_projection(present[fits], items[fits], *choice.best)(present)
        without.append(found_by_item(present, items, held))
        trained.append(found_by_item(_with_head(fit, features[fits], features, seed=seed), items, held))
    plain, better = np.concatenate(without), np.concatenate(trained)
    error = float((better - plain).std(ddof=1) / np.sqrt(len(plain)))
    return HeadGain(len(plain), float(plain.mean()), float(better.mean()), error)


class _Frozen(Backbone):
    """Stands for the backbone whose features are given."""

    pooled = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


def _with_head(fit: Sequence[Photo], fit_features: Floats, features: Floats, *, seed: int) -> NDArray[np.float64]:
    """Return the embeddings (n, d) of features by a head that is trained on the features of the photos to fit."""
    settings = Settings("", precompute=1, seed=seed)
    sampler, labels = make_sampler(settings, fit), torch.from_numpy(item_labels(fit))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        learner = Learner(
            EmbeddingModel(_Frozen(features.shape[1]), dim=settings.dim, pooling=settings.pooling),
            build_loss(settings, classes=len(set(labels.tolist()))),
            settings,
            process_group=ProcessGroup(torch.device("cpu")),
            steps=sampler.batches * settings.epochs,
            prepare=torch.from_numpy,
        )
        for epoch in range(settings.epochs):
            learner.begin(epoch)
            for positions in sampler.epoch(epoch):
                learner.take(fit_features[positions], labels[positions])
    with torch.inference_mode():
        vectors: NDArray[np.float64] = learner.model.head(torch.from_numpy(features)).double().numpy()
    return vectors
