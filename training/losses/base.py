"""Base class of the losses, which are computed in float32 or better."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from retrieval.errors import InvalidParameter


class Loss(nn.Module, ABC):
    """A loss of raw embeddings (n, d) and labels (n,).

    Autocast is switched off: a temperature of 0.01 or a cosine near one needs more than half precision.
    """

    rates: Mapping[str, float] = {}  # parameters with a multiple of the proxies' learning rate

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.compute(embeddings if embeddings.dtype == torch.float64 else embeddings.float(), labels)

    @abstractmethod
    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss; embeddings are float32 or float64, and autocast is off."""


def check_shape(classes: int, dim: int) -> None:
    """Raise InvalidParameter for a number of classes or a dimension below 1."""
    for name, value in (("classes", classes), ("dim", dim)):
        if value < 1:
            raise InvalidParameter(name, "be at least 1", value)


def check_labels(labels: Tensor, classes: int) -> None:
    """Raise InvalidParameter for a label without a proxy."""
    if labels.numel() and not 0 <= int(labels.min()) <= int(labels.max()) < classes:
        raise InvalidParameter("labels", f"lie between 0 and {classes - 1}", (int(labels.min()), int(labels.max())))
