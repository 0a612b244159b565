"""NCA loss with von Mises-Fisher proxies (arXiv 2207.03784).

Symbols: n = batch size, d = embedding size, C = classes, N = samples, κ_z = norm of a raw embedding, the certainty of a
photo. Labels are 0 … C-1.
"""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import InvalidParameter

from . import vmf
from .base import check_not_negative, check_one_of, check_positive
from .proxies import Proxies, proxy_anchor

DISTANCES = ("el_nivmf", "nivmf", "el_vmf", "b_vmf", "kl_vmf")
NORMALIZERS = ("exact", "paper", "released")
SMALLEST_CONCENTRATION = 0.1
ANALYTIC = {"el_vmf": vmf.expected_likelihood, "b_vmf": vmf.bhattacharyya, "kl_vmf": vmf.kl_divergence}


class VonMisesFisherNCA(Proxies):
    """ProxyNCA whose proxies are von Mises-Fisher distributions: cross-entropy of similarity / temperature.

    A photo is vMF(embedding / norm, norm). Distances:

    - `el_nivmf`: expected likelihood under a non-isotropic proxy, by `samples` reparametrised draws (Eq. 5, 6);
    - `nivmf`: the log density of the photo's direction under a non-isotropic proxy (Eq. 4);
    - `el_vmf`, `b_vmf`, `kl_vmf`: closed forms between two vMF (Eq. 35, 29, 39), the negative as similarity.

    `normalizer="exact"` is the density that integrates to one; "paper" is Eq. 4, 12 and 13 as printed; "released" also
    omits K for the samples and averages ρ^(1/t), as the code behind the published numbers does. `anchor_weight` is the
    weight of ProxyAnchor on the same proxies (Eq. 7). Training begins with embeddings of norm 50 on average, as
    the concentrations do. Cost O(N n C d).

    Examples
    --------
    >>> loss = VonMisesFisherNCA(classes=3, dim=8)  # learns a direction and a concentration per item
    >>> loss(torch.randn(6, 8), torch.tensor([0, 0, 1, 1, 2, 2])).backward()
    >>> loss.concentrations.grad.shape
    torch.Size([3, 8])
    """

    initial_norm = 50.0

    def __init__(
        self,
        classes: int,
        dim: int,
        *,
        distance: str = "el_nivmf",
        temperature: float = 1.0,
        samples: int = 10,
        concentration: float = 50.0,
        normalizer: str = "exact",
        concentration_rate: float = 50.0,
        temperature_rate: float = 0.5,
        anchor_weight: float = 0.0,
    ) -> None:
        super().__init__(classes, dim)
        check_one_of("distance", distance, DISTANCES)
        check_one_of("normalizer", normalizer, NORMALIZERS)
        check_positive(
            temperature=temperature,
            concentration=concentration,
            concentration_rate=concentration_rate,
            temperature_rate=temperature_rate,
        )
        if samples < 1:
            raise InvalidParameter("samples", "be at least 1", samples)
        check_not_negative(anchor_weight=anchor_weight)
        if normalizer != "exact" and distance in ANALYTIC:
            raise InvalidParameter("normalizer", f"be exact for distance {distance}", normalizer)
        if dim < 2:
            raise InvalidParameter("dim", "be at least 2", dim)
        shape = (classes,) if distance in ANALYTIC else (classes, dim)
        self.concentrations = nn.Parameter(torch.full(shape, float(concentration)))
        self.log_temperature = nn.Parameter(torch.tensor(math.log(temperature)))
        self.rates = {"concentrations": concentration_rate, "log_temperature": temperature_rate}
        self.distance = distance
        self.samples = samples
        self.normalizer = normalizer
        self.anchor_weight = anchor_weight

    def compute(self, embeddings: Tensor, labels: Tensor) -> Tensor:
        """Return the scalar loss of raw embeddings (n, d) with labels (n,) in 0 … C-1."""
        cosines = self.cosines(embeddings, labels)
        if self.distance == "el_nivmf":
            directions = F.normalize(embeddings, dim=1)
            drawn = vmf.sample(directions, embeddings.norm(dim=1), self.samples)
            logits = self.sample_logits(drawn)
        else:
            logits = self.logits(embeddings, cosines)
        loss = F.cross_entropy(logits, labels)
        if self.anchor_weight:
            loss = loss + self.anchor_weight * proxy_anchor(cosines, labels)
        return loss

    def sample_logits(self, samples: Tensor) -> Tensor:
        """Return (log mean_N ρ_c(z)) / t, up to a constant, (n, C) for unit samples (N, n, d)."""
        temperature = self.log_temperature.exp()
        likelihood = self._log_likelihood(samples)  # (N, n, C)
        if self.normalizer == "released":
            return torch.logsumexp(likelihood / temperature, dim=0) - math.log(len(samples))
        return (torch.logsumexp(likelihood, dim=0) - math.log(len(samples))) / temperature

    def logits(self, embeddings: Tensor, cosines: Tensor) -> Tensor:
        """Return similarity / t (n, C) of raw embeddings (n, d) for the distances that need no samples."""
        temperature = self.log_temperature.exp()
        if self.distance == "nivmf":
            return self._log_likelihood(F.normalize(embeddings, dim=1)) / temperature
        kappa = embeddings.norm(dim=1).double()  # terms cancel: float32 is not exact enough for log C
        concentrations = self.concentrations.clamp(min=SMALLEST_CONCENTRATION).double()
        distance = ANALYTIC[self.distance](cosines.double(), kappa, concentrations, embeddings.shape[1])
        return (-distance / temperature).to(embeddings.dtype)

    def _log_likelihood(self, points: Tensor) -> Tensor:
        """Return log ρ (..., C) of unit points (..., d), the exact one less a constant."""
        directions = F.normalize(self.proxies, dim=1)
        concentrations = self.concentrations.clamp(min=SMALLEST_CONCENTRATION)
        if self.normalizer == "exact":
            return vmf.nivmf_shape(points, directions, concentrations)
        unscaled = self.normalizer == "released" and self.distance == "el_nivmf"
        return vmf.nivmf_paper_log_density(points, directions, concentrations, scale_points=not unscaled)
