"""What every loss shares: it is computed in float32 or better, whatever the backbone runs in."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from retrieval.errors import InvalidParameter


class Loss(nn.Module, ABC):
    """A loss of raw embeddings (n, d) and labels (n,).

    Mixed precision stops here: a temperature of 0.01 or a cosine near one needs more than half precision.
    """

    rates: Mapping[str, float] = {}  # own parameters whose learning rate is a multiple of the proxies'

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.measure(embeddings if embeddings.dtype == torch.float64 else embeddings.float(), labels)

    @abstractmethod
    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss; embeddings are float32 or float64, and autocast is off."""


def check_shape(classes: int, dim: int) -> None:
    """Refuse a number of classes or a dimension that is no size."""
    for name, value in (("classes", classes), ("dim", dim)):
        if value < 1:
            raise InvalidParameter(name, "be at least 1", value)


def check_labels(labels: Tensor, classes: int) -> None:
    """Refuse a label that has no proxy."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InvalidParameter("labels", f"lie between 0 and {classes - 1}", (int(labels.min()), int(labels.max())))
