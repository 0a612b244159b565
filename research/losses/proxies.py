"""Comparison losses with one learned proxy per class.

Symbols: n = batch size, d = embedding size, C = classes; labels are 0 … C-1.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from training.losses.base import Loss, check_labels, check_positive, check_shape
from training.losses.proxies import Proxies

from .library import library


class ProxyNCA(Proxies):
    """ProxyNCA++ (Teh et al., ECCV 2020): cross-entropy of -scale times squared distances. Cost O(n C d).

    The denominator has all proxies. `classic=True` leaves a photo's own proxy out (ProxyNCA, Movshovitz-Attias et al.,
    ICCV 2017), so that the loss can be negative. The temperature of the cosine is 1 / (2 scale).
    """

    def __init__(self, classes: int, dim: int, *, scale: float = 9.0, classic: bool = False) -> None:
        super().__init__(classes, dim)
        check_positive(scale=scale)
        self.scale = scale
        self.classic = classic

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        logits = 2 * self.scale * self.cosines(embeddings, labels)
        if not self.classic or logits.shape[1] == 1:  # with one class there is no other proxy to compare with
            return F.cross_entropy(logits, labels)
        own = logits.gather(1, labels[:, None])
        others = logits.masked_fill(F.one_hot(labels, logits.shape[1]).bool(), -math.inf)
        return (torch.logsumexp(others, dim=1) - own[:, 0]).mean()


class EuclideanNCA(Proxies):
    """ProxyNCA++ on unnormalised embeddings and proxies: d = ‖ν_p - ν_z‖² (arXiv 2207.03784, Section 3.3).

    Proxies are initialised with length `norm`. Cost O(n C d).
    """

    def __init__(self, classes: int, dim: int, *, temperature: float = 32.0, norm: float = 10.0) -> None:
        super().__init__(classes, dim)
        for name, value in (("temperature", temperature), ("norm", norm)):
            if not value > 0:
                raise InvalidParameter(name, "be positive", value)
        self.temperature = temperature
        self.initial_norm = norm
        with torch.no_grad():
            self.proxies.copy_(norm * F.normalize(self.proxies, dim=1))

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        check_labels(labels, len(self.proxies))
        nearness = 2 * embeddings @ self.proxies.T - self.proxies.square().sum(
            dim=1
        )  # ‖ν_z‖² - d, equivalent to -d in a softmax
        return F.cross_entropy(nearness / self.temperature, labels)


def arcface_logits(cosines: Tensor, labels: Tensor, *, margin: float) -> Tensor:
    """Return cosines (n, C) with cos(θ + margin) in place of the own class's (Deng et al., CVPR 2019).

    Where θ + margin exceeds π, cos θ - margin sin(margin) keeps the loss monotone. The addition theorem avoids arccos,
    whose gradient is infinite at a cosine of ±1.
    """
    own = cosines.gather(1, labels[:, None])
    sine = (1 - own * own).clamp(min=1e-12).sqrt()
    shifted = own * math.cos(margin) - sine * math.sin(margin)
    turned = own - margin * math.sin(margin)
    target = torch.where(own > math.cos(math.pi - margin), shifted, turned)
    return cosines.scatter(1, labels[:, None], target)


class ArcFace(Proxies):
    """ArcFace (Deng et al., CVPR 2019); the margin is in radians. Cost O(n C d)."""

    def __init__(self, classes: int, dim: int, *, scale: float = 64.0, margin: float = 0.5) -> None:
        super().__init__(classes, dim)
        check_positive(scale=scale)
        if not 0 <= margin < math.pi:
            raise InvalidParameter("margin", "lie in [0, π) radians", margin)
        self.scale = scale
        self.margin = margin

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        logits = arcface_logits(self.cosines(embeddings, labels), labels, margin=self.margin)
        return F.cross_entropy(self.scale * logits, labels)


class Classifier(Loss):
    """A softmax loss with one learned direction per class."""

    def __init__(self, classes: int, loss: nn.Module) -> None:
        super().__init__()
        self.classes = classes
        self.inner = loss

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        check_labels(labels, self.classes)
        value: Tensor = self.inner(embeddings, labels)
        return value


class CosFace(Classifier):
    """CosFace (Wang et al., CVPR 2018): an additive margin on the cosine of the own class. Cost O(n C d)."""

    def __init__(self, classes: int, dim: int, *, scale: float = 64.0, margin: float = 0.35) -> None:
        check_shape(classes, dim)
        check_positive(scale=scale)
        if not 0 <= margin <= 2:
            raise InvalidParameter("margin", "lie in [0, 2], a difference of cosines", margin)
        super().__init__(classes, library("losses").CosFaceLoss(classes, dim, margin=margin, scale=scale))


class NormalizedSoftmax(Classifier):
    """Normalized softmax (Zhai and Wu, BMVC 2019): cross-entropy of cosines / temperature. Cost O(n C d)."""

    def __init__(self, classes: int, dim: int, *, temperature: float = 0.05) -> None:
        check_shape(classes, dim)
        check_positive(temperature=temperature)
        super().__init__(classes, library("losses").NormalizedSoftmaxLoss(classes, dim, temperature=temperature))
