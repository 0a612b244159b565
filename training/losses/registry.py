"""Losses by name, for settings and the command line."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from retrieval.errors import InvalidParameter

from .pairs import ThresholdConsistentMargin
from .proxies import ArcFace, ProxyAnchor
from .ranking import SmoothAP


@dataclass(frozen=True)
class Entry:
    """A loss, and what it needs."""

    loss: type[nn.Module]
    has_proxies: bool  # takes (classes, dim) and learns a proxy a class
    needs_balanced_batches: bool  # useless without several photos an item in a batch
    paper: str


LOSSES: Mapping[str, Entry] = {
    "arcface": Entry(ArcFace, True, False, "Deng et al., CVPR 2019"),
    "proxy_anchor": Entry(ProxyAnchor, True, False, "Kim et al., CVPR 2020"),
    "smooth_ap": Entry(SmoothAP, False, True, "Brown et al., ECCV 2020"),
    "tcm": Entry(ThresholdConsistentMargin, False, True, "arXiv 2307.04047, Eq. 5"),
}


def loss_arguments(name: str) -> dict[str, Any]:
    """Return a loss's arguments and their defaults."""
    parameters = inspect.signature(LOSSES[name].loss).parameters.values()
    return {p.name: p.default for p in parameters if p.name not in ("classes", "dim")}


def make_loss(name: str, *, classes: int, dim: int, arguments: Mapping[str, Any]) -> nn.Module:
    """Return the loss of a name; an unknown name or argument is an error that lists the valid ones."""
    if name not in LOSSES:
        raise InvalidParameter("loss", f"be one of {', '.join(LOSSES)}", name)
    valid = loss_arguments(name)
    for argument in arguments:
        if argument not in valid:
            raise InvalidParameter(f"argument of {name}", f"be one of {', '.join(valid)}", argument)
    if LOSSES[name].has_proxies:
        return LOSSES[name].loss(classes, dim, **arguments)
    return LOSSES[name].loss(**arguments)


class Regularized(nn.Module):
    """A base loss plus `weight` times a regularizer (arXiv 2307.04047, Eq. 6)."""

    def __init__(self, base: nn.Module, regularizer: nn.Module, weight: float) -> None:
        super().__init__()
        if not weight >= 0:
            raise InvalidParameter("weight", "be zero or more", weight)
        self.base = base
        self.regularizer = regularizer
        self.weight = weight

    def forward(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar sum for raw embeddings (n, d) with labels (n,)."""
        total: Tensor = self.base(embeddings, labels) + self.weight * self.regularizer(embeddings, labels)
        return total
