"""Length of a training, chosen by the size of the data set.

With `epochs = 0`, a training takes as many steps as 8 passes over the photos, but at least 600 and at most 20,000. A
head on precomputed features takes 100 to 2,000. These steps are divided into at most 20 epochs, so that small data sets
are not validated after every few batches. The learning rates rise over the first share of the steps (`warmup`) and fall
over the rest.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

from retrieval.catalogue.check import batches_per_epoch
from training.config import Settings

MOST_EPOCHS = 20


@dataclass(frozen=True)
class Rule:
    """Passes over the photos, and limits on the number of steps."""

    passes: int
    least: int
    most: int

    def steps(self, pass_batches: int) -> int:
        """Return the number of steps for photos that fill this many batches."""
        return min(max(self.passes * pass_batches, self.least), self.most)


WHOLE_MODEL = Rule(passes=8, least=600, most=20_000)
HEAD_ONLY = Rule(passes=8, least=100, most=2_000)


def schedule(settings: Settings, *, photos: int, items: int) -> Settings:
    """Return settings with the number of epochs for this many training photos and items.

    Settings that have one are returned unchanged. A number of batches per epoch that was set is kept.
    """
    if settings.epochs:
        return settings
    batches = batches_per_epoch(photos, min(settings.items_per_batch, items) * settings.photos_per_item)
    rule = HEAD_ONLY if settings.precompute else WHOLE_MODEL
    steps = rule.steps(batches)
    if settings.epoch_steps:
        return dataclasses.replace(settings, epochs=math.ceil(steps / settings.epoch_steps))
    epochs = max(1, min(MOST_EPOCHS, round(steps / batches)))
    return dataclasses.replace(settings, epochs=epochs, epoch_steps=math.ceil(steps / epochs))


def describe(settings: Settings, *, batches: int) -> str:
    """Return the length of a training as text."""
    return f"{settings.epochs} epochs of {batches} batches ({settings.epochs * batches:,} steps)"
