"""Gain of a head trained on the features of a frozen backbone (`train --precompute`), by cross-validation.

Each head is trained on four fifths of the items, with the default settings of `train`. The photos of the other fifth
then search the photos of all of them. Unlike in `train`, the features are those of the unaugmented photos at the input
size of the pretrained model. Shapes: n photos, c = width of the features.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError
from training.backbones.base import Backbone
from training.config import DIMS, Settings
from training.data.folds import item_folds, share_of_items
from training.evaluation.evaluate import item_labels
from training.loop.distributed import ProcessGroup
from training.loop.head_start import RANDOM, start_head
from training.loop.learner import Learner
from training.loop.optimizer import schedule
from training.loop.recipe import build_loss, make_sampler
from training.model import EmbeddingModel

from .projection import ProjectionChoice, fit_projection, found_by_item

FOLDS = 5
MOST_ITEMS = 200  # that are used; the time grows with the photos

Floats = NDArray[np.float32]
HeadCallback = Callable[[int, nn.Linear], None]


@dataclass(frozen=True)
class HeadGain:
    """The cross-validated R@1 without and with a head."""

    items: int
    without: float
    trained: float
    error: float  # standard error of the gain over items

    @property
    def helps(self) -> bool:
        """Return whether the gain exceeds its standard error."""
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
    settings = Settings("", precompute=1, seed=seed, dim=DIMS[True])
    without, trained = [], []
    for fit_items, held_items in folds:
        fits, held = np.isin(items, fit_items), np.isin(items, held_items)
        fit = [photo for photo, inside in zip(photos, fits, strict=True) if inside]
        present = features.astype(np.float64)
        if choice.projection is not None:
            present = fit_projection(present[fits], items[fits], *choice.best)(present)
        without.append(found_by_item(present, items, held))
        trained.append(found_by_item(embed(train_head(fit, features[fits], settings), features), items, held))
    plain, better = np.concatenate(without), np.concatenate(trained)
    error = float((better - plain).std(ddof=1) / np.sqrt(len(plain)))
    return HeadGain(len(plain), float(plain.mean()), float(better.mean()), error)


class _Frozen(Backbone):
    """Stands for the backbone whose features are given."""

    pooled = True

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width


def train_head(
    photos: Sequence[Photo], features: Floats, settings: Settings, *, on_epoch: HeadCallback | None = None
) -> nn.Linear:
    """Return a head that is trained on the features (n, c) of photos, as `train --precompute 1` trains it.

    Parameters
    ----------
    on_epoch:
        Called with the number of finished epochs and the head: before training (0) and after each epoch.
    """
    items = len({photo.item_id for photo in photos})
    settings = schedule(settings, photos=len(photos), items=items)
    sampler, labels = make_sampler(settings, photos), torch.from_numpy(item_labels(photos))
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(settings.seed)
        model = EmbeddingModel(_Frozen(features.shape[1]), dim=settings.embedding_size, pooling=settings.pooling)
        if settings.head_start != RANDOM:
            start_head(model.head, features, labels.numpy())
        learner = Learner(
            model,
            build_loss(settings, classes=items),
            settings,
            process_group=ProcessGroup(torch.device("cpu")),
            steps=sampler.batches * settings.epochs,
            prepare=torch.from_numpy,
        )
        for epoch in range(settings.epochs):
            if on_epoch is not None:
                on_epoch(epoch, model.head)
            learner.begin(epoch)
            for positions in sampler.epoch(epoch):
                learner.take(features[positions], labels[positions])
        if on_epoch is not None:
            on_epoch(settings.epochs, model.head)
    return model.head


def embed(head: nn.Linear, features: Floats) -> NDArray[np.float64]:
    """Return the embeddings (n, d) of features (n, c), not scaled to length one."""
    with torch.inference_mode():
        vectors: NDArray[np.float64] = head(torch.from_numpy(features)).double().numpy()
    return vectors
