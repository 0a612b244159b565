"""Losses that only the papers' tables compare with; `rivals_known` makes their names settings for a while.

Symbols: n = batch size, d = embedding size, C = classes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import torch
import torch.nn.functional as F
from pytorch_metric_learning import losses, miners
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from training.losses.base import Loss
from training.losses.contextual import Contextual, expand_query, neighbourhoods, shared_neighbours
from training.losses.proxies import Proxies
from training.losses.registry import LOSSES, Entry

from .rival_rankings import BlackboxAP, Roadmap, RoadmapAP, RoadmapCalibration, SoftbinAP


class _Library(Loss):
    """A loss of pytorch-metric-learning, with its miner where it has one."""

    def __init__(self, loss: nn.Module, miner: nn.Module | None = None) -> None:
        super().__init__()
        self.inner, self.miner = loss, miner

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        some = None if self.miner is None else self.miner(embeddings, labels)
        value: Tensor = self.inner(embeddings, labels, some)
        return value


class FastAP(_Library):
    """FastAP (Cakir et al., CVPR 2019)."""

    def __init__(self, *, bins: int = 10) -> None:
        super().__init__(losses.FastAPLoss(num_bins=bins))


class NtXent(_Library):
    """NT-Xent (Chen et al., ICML 2020) of labels."""

    def __init__(self, *, temperature: float = 0.07) -> None:
        super().__init__(losses.NTXentLoss(temperature=temperature))


class Margin(_Library):
    """Margin loss with distance-weighted sampling (Wu et al., ICCV 2017)."""

    def __init__(self, *, margin: float = 0.2, beta: float = 1.2, cutoff: float = 0.5, reach: float = 1.4) -> None:
        miner = miners.DistanceWeightedMiner(cutoff=cutoff, nonzero_loss_cutoff=reach)
        super().__init__(losses.MarginLoss(margin=margin, beta=beta), miner)


class EuclideanNCA(Proxies):
    """ProxyNCA++ on raw embeddings and proxies with a norm: d = ‖ν_p - ν_z‖² (arXiv 2207.03784, Section 3.3)."""

    def __init__(self, classes: int, dim: int, *, temperature: float = 32.0, norm: float = 10.0) -> None:
        super().__init__(classes, dim)
        for name, value in (("temperature", temperature), ("norm", norm)):
            if not value > 0:
                raise InvalidParameter(name, "be positive", value)
        self.temperature = temperature
        with torch.no_grad():
            self.proxies.copy_(norm * F.normalize(self.proxies, dim=1))

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        self.cosines(embeddings, labels)  # refuses a label without a proxy
        squared = (embeddings[:, None] - self.proxies[None]).square().sum(dim=2)
        return F.cross_entropy(-squared / self.temperature, labels)


class Corrected(torch.autograd.Function):
    """Squared distances, whose gradient is cut where it goes against the labels (arXiv 2210.01908, Eq. 10)."""

    @staticmethod
    def forward(ctx: Any, squared: Tensor, alike: Tensor) -> Tensor:
        """Return the squared distances (n, n); `alike` is 1 where two photos share their label."""
        ctx.save_for_backward(alike)
        return squared.clone()

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        """Return the gradient without what would push mates apart, or pull others together."""
        (alike,) = ctx.saved_tensors
        return torch.where(alike.bool(), gradient.clamp(min=0), gradient.clamp(max=0)), None


class ContextualCorrected(Contextual):
    """The contextual loss without the gradients that go against the labels (Table 1). Cost O(n³)."""

    def measure(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,)."""
        unit = F.normalize(embeddings, dim=1)
        alike = (labels[:, None] == labels[None]).to(unit.dtype)
        squared: Tensor = Corrected.apply((2 - 2 * unit @ unit.T).relu(), alike)  # type: ignore[no-untyped-call]
        error = (alike - _similarity(self, squared)).square()
        return (error.sum() - error.diagonal().sum()) / error.numel()


class ContextualDetached(Contextual):
    """The contextual loss with the count of mutual neighbours in Eq. 27 held constant (Figure 17). Cost O(n³)."""

    def similarity(self, unit: Tensor) -> Tensor:
        """Return the contextual similarity w (n, n) of unit embeddings (n, d)."""
        return _similarity(self, (2 - 2 * unit @ unit.T).relu(), detached=True)


def _similarity(loss: Contextual, squared: Tensor, *, detached: bool = False) -> Tensor:
    """Return w (n, n) of Eq. 23 to 27 for squared distances (n, n)."""
    inside = neighbourhoods(squared, k=loss.neighbours, margin=loss.margin, step=loss._step)
    shared = shared_neighbours(inside, complement=True, stop_gradient=True, product=True)
    close = neighbourhoods(squared, k=loss.neighbours // 2, margin=loss.margin, step=loss._step)
    if not detached:
        return expand_query(shared, close, product=True)
    mutual = close * close.T
    mean = mutual @ shared / mutual.sum(dim=1, keepdim=True).detach().clamp(min=1)
    return (mean + mean.T) / 2


RIVALS: Mapping[str, Entry] = {
    "blackbox_ap": Entry(BlackboxAP, "Rolínek et al., CVPR 2020", "n² (d + log n)", True),
    "contextual_corrected": Entry(ContextualCorrected, "arXiv 2210.01908, Eq. 10", "n³", True),
    "contextual_detached": Entry(ContextualDetached, "arXiv 2210.01908, Figure 17", "n³", True),
    "fast_ap": Entry(FastAP, "Cakir et al., CVPR 2019", "n² d", True),
    "margin": Entry(Margin, "Wu et al., ICCV 2017", "n² d", True),
    "nca_l2": Entry(EuclideanNCA, "arXiv 2207.03784, Section 3.3", "n C d", False),
    "ntxent": Entry(NtXent, "Chen et al., ICML 2020", "n² d", True),
    "roadmap": Entry(Roadmap, "Ramzi et al., NeurIPS 2021", "n² (d + m)", True),
    "roadmap_ap": Entry(RoadmapAP, "Ramzi et al., NeurIPS 2021", "n² (d + m)", True),
    "roadmap_calibration": Entry(RoadmapCalibration, "Ramzi et al., NeurIPS 2021", "n² d", True),
    "softbin_ap": Entry(SoftbinAP, "Revaud et al., ICCV 2019", "n² (d + bins)", True),
}


@contextmanager
def rivals_known() -> Iterator[None]:
    """Let settings name these losses beside those of the registry, until the block ends."""
    known = cast("dict[str, Entry]", LOSSES)
    added = {name: entry for name, entry in RIVALS.items() if name not in known}
    known.update(added)
    try:
        yield
    finally:
        for name in added:
            known.pop(name)
