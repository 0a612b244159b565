"""What every loss shares: it is computed in float32 or better, whatever the backbone runs in."""

from __future__ import annotations

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn


class Loss(nn.Module, ABC):
    """A loss of raw embeddings (n, d) and labels (n,).

    Mixed precision stops here: a temperature of 0.01 or a cosine near one needs more than half precision.
    """

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        with torch.autocast(embeddings.device.type, enabled=False):
            return self.measure(embeddings if embeddings.dtype == torch.float64 else embeddings.float(), labels)

    @abstractmethod
    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss; embeddings are float32 or float64, and autocast is off."""
