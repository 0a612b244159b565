"""Von Mises-Fisher densities on the sphere: normaliser, mean, sampler, and the non-isotropic density.

Symbols: d = dimension, ν = d/2 - 1, n = points, C = proxies, N = samples per point, κ = concentration,
A_d(κ) = E[cos(z, μ)] = I_{ν+1}(κ) / I_ν(κ). Densities are with respect to the surface of S^{d-1}.

Functions of κ alone are computed in float64, because their terms cancel.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter, TrainingDiverged

ENOUGH_ORDER = 32  # order of the Bessel function from which the uniform expansion has ten digits
TINY = 1e-12
LARGEST = 1e12  # concentration above which the same draws are accepted, and terms would overflow


def log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """Return log C_d(κ) = ν log κ - (d/2) log 2π - log I_ν(κ), any shape, for κ ≥ 0 and d ≥ 2.

    Computes log(I(κ)/κ^order) by the uniform asymptotic expansion (DLMF 10.41.3, three terms) at a high order, then
    down to ν by ratios. It is finite at κ = 0. The gradient is -A_d(κ).
    """
    value: Tensor = _LogNormalizer.apply(kappa, _checked(dim))  # type: ignore[no-untyped-call]
    return value


def mean_resultant_length(kappa: Tensor, dim: int) -> Tensor:
    """Return A_d(κ), any shape, in [0, 1). The gradient is 1 - A² - (d-1) A/κ."""
    value: Tensor = _MeanResultantLength.apply(kappa, _checked(dim))  # type: ignore[no-untyped-call]
    return value


def paper_log_normalizer(kappa: Tensor, dim: int) -> Tensor:
    """Return the quadratic fits of arXiv 2207.03784, Eq. 12 (d = 128) and Eq. 13 (used for every other d).

    They were fitted for κ in [10, 50] and are off by up to 41 at κ = 200: for comparison only.
    """
    squared = kappa * kappa
    if dim == 128:
        return 127 - 0.01909 * kappa - 0.003355 * squared
    return 868 - 0.0002662 * kappa - 0.0009685 * squared


def sample(directions: Tensor, kappa: Tensor, samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Draw from vMF(μ, κ): unit vectors (samples, n, d), with gradients to `directions` and `kappa`.

    Wood's rejection sampler (1994) with the proposal b = (d-1) / (2κ + √(4κ² + (d-1)²)), which is exact and
    stable for every κ. Gradients flow through the accepted draw; acceptance itself has none. Raises TrainingDiverged
    for concentrations that are not finite.

    Parameters
    ----------
    directions:
        Unit mean directions (n, d).
    kappa:
        Concentrations (n,), zero or more.
    samples:
        Draws per direction.
    generator:
        Random generator on the same device; None for the global one.
    """
    with torch.no_grad():
        proposal, tangent = _accepted(kappa.detach().double(), directions.shape[1], samples, generator)
    return place(directions, kappa, proposal.to(directions.dtype), tangent.to(directions.dtype))


def place(directions: Tensor, kappa: Tensor, proposal: Tensor, tangent: Tensor) -> Tensor:
    """Return the samples (N, n, d) that accepted proposals (N, n) and unit tangents (N, n, d-1) stand for."""
    d = directions.shape[1]
    cosine = _cosine(proposal, _slope(kappa, d))
    sine = ((1 - cosine) * (1 + cosine)).clamp(min=TINY).sqrt()
    around_pole = torch.cat([cosine[..., None], sine[..., None] * tangent], dim=2)
    pole = torch.zeros_like(directions)
    pole[:, 0] = 1
    mirror = F.normalize(pole - directions, dim=1)  # Householder: swaps the pole and the direction
    return around_pole - 2 * (around_pole * mirror).sum(dim=2, keepdim=True) * mirror


def nivmf_shape(points: Tensor, directions: Tensor, concentrations: Tensor) -> Tensor:
    """Return log ρ (..., C), the non-isotropic vMF density of unit points (..., d), less the uniform one's.

    log ρ_c(z) = log C_d(‖Kμ‖) + Σ_m log κ_m - d log ‖Kz‖ + ‖Kμ‖ cos(Kz, Kμ), K = diag(concentrations of c):
    the vMF density of Kz/‖Kz‖ times the Jacobian det K / ‖Kz‖^d. With `uniform_log_density` it integrates to 1, and
    K = κI is vMF(μ, κ). Without it, the numbers are small, which float32 holds well.

    Parameters
    ----------
    points:
        Unit vectors (..., d).
    directions:
        Unit vectors μ (C, d).
    concentrations:
        Positive diagonals of K (C, d).
    """
    d = directions.shape[1]
    mean = concentrations.log().mean(dim=1, keepdim=True)
    relative = concentrations * torch.exp(-mean)  # geometric mean one: Σ log κ and d log ‖Kz‖ cancel here
    lengths = squared_lengths(points, relative)
    along = points @ (relative * concentrations * directions).T
    heights = log_normalizer((concentrations * directions).norm(dim=1), d) - uniform_log_density(d)
    return heights - 0.5 * d * lengths.log() + along * lengths.rsqrt()


def nivmf_paper_log_density(
    points: Tensor, directions: Tensor, concentrations: Tensor, *, scale_points: bool = True
) -> Tensor:
    """Return Eq. 4 of arXiv 2207.03784 with D(K) = Π κ_m / ‖Kμ‖ (..., C): not a density, for comparison.

    `scale_points=False` is what the released EL-nivMF computes: K is not applied to the point, so the density
    is isotropic around Kμ.
    """
    shifted = concentrations * directions
    length: Tensor = shifted.norm(dim=1)
    heights: Tensor = paper_log_normalizer(length, directions.shape[1]) + concentrations.log().sum(dim=1) - length.log()
    if not scale_points:
        return heights + points @ shifted.T
    along = points @ (concentrations * shifted).T
    return heights + along * squared_lengths(points, concentrations).rsqrt()


def squared_lengths(points: Tensor, concentrations: Tensor) -> Tensor:
    """Return ‖K_c z‖² (..., C) of points (..., d) without a (..., C, d) tensor."""
    return ((points * points) @ (concentrations * concentrations).T).clamp(min=TINY)


def uniform_log_density(dim: int) -> float:
    """Return -log of the surface of S^{d-1}, which is log C_d(0)."""
    return math.lgamma(dim / 2) - math.log(2) - dim / 2 * math.log(math.pi)


def expected_likelihood(cosines: Tensor, kappa: Tensor, proxy_kappa: Tensor, dim: int, *, power: float = 1.0) -> Tensor:
    """Return the EL distance (n, C) of two vMF (arXiv 2207.03784, Eq. 35): -log ∫ (ζ ρ)^power.

    Of cosines (n, C) between the directions, concentrations κ_z (n,) and κ_p (C,).
    """
    rows, columns = kappa[:, None], proxy_kappa[None]
    joint = (
        ((rows - columns).square() + 2 * rows * columns * (1 + cosines)).clamp(min=TINY).sqrt()
    )  # ‖κ_z μ_z + κ_p μ_p‖
    heights = log_normalizer(kappa, dim)[:, None] + log_normalizer(proxy_kappa, dim)[None]
    return log_normalizer(power * joint, dim) - power * heights


def bhattacharyya(cosines: Tensor, kappa: Tensor, proxy_kappa: Tensor, dim: int) -> Tensor:
    """Return the Bhattacharyya distance (n, C) of two vMF (Eq. 29): -log ∫ √(ζ ρ)."""
    return expected_likelihood(cosines, kappa, proxy_kappa, dim, power=0.5)


def kl_divergence(cosines: Tensor, kappa: Tensor, proxy_kappa: Tensor, dim: int) -> Tensor:
    """Return KL(vMF(κ_z) ‖ vMF(κ_p)) (n, C); the mean of ζ is A_d(κ_z) μ_z, where Eq. 39 prints μ_z."""
    heights = log_normalizer(kappa, dim)[:, None] - log_normalizer(proxy_kappa, dim)[None]
    mean = mean_resultant_length(kappa, dim)[:, None]
    return heights + (kappa[:, None] - proxy_kappa[None] * cosines) * mean


def _checked(dim: int) -> int:
    if dim < 2:
        raise InvalidParameter("dim", "be at least 2", dim)
    return dim


def _log_bessel(kappa: Tensor, order: float) -> Tensor:
    """Return log(I_order(κ) / κ^order) by the uniform expansion, for float64 κ ≥ 0 and a high order."""
    z = kappa / order
    root = (1 + z * z).sqrt()
    p = 1 / root
    q = p * p
    first = p * (3 - 5 * q) / 24
    second = q * (81 - 462 * q + 385 * q * q) / 1152
    third = p * q * (30375 - 369603 * q + 765765 * q**2 - 425425 * q**3) / 414720
    series = first / order + second / order**2 + third / order**3
    smooth = order * (root - (1 + root).log() - math.log(order))
    return smooth - 0.5 * math.log(2 * math.pi * order) - 0.5 * root.log() + torch.log1p(series)


def _ratios(kappa: Tensor, dim: int) -> tuple[Tensor, Tensor]:
    """Return log(I_ν(κ)/κ^ν) and I_{ν+1}(κ)/(κ I_ν(κ)) for float64 κ, both finite at κ = 0.

    The recurrence q_k = 1 / (2(k+1) + κ² q_{k+1}) for q_k = I_{k+1}/(κ I_k) is stable downwards.
    """
    order = dim / 2 - 1
    steps = max(2, math.ceil(ENOUGH_ORDER - order))
    high = order + steps
    top = _log_bessel(kappa, high)
    ratio = torch.exp(_log_bessel(kappa, high + 1) - top)
    squared = kappa * kappa
    logs = torch.zeros_like(kappa)
    for step in range(1, steps + 1):
        ratio = 1 / (2 * (high - step + 1) + squared * ratio)
        logs = logs + ratio.log()
    return top - logs, ratio


class _LogNormalizer(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kappa: Tensor, dim: int) -> Tensor:
        ctx.save_for_backward(kappa)
        ctx.dim = dim
        log_bessel, _ = _ratios(kappa.double(), dim)
        return (-dim / 2 * math.log(2 * math.pi) - log_bessel).to(kappa.dtype)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (kappa,) = ctx.saved_tensors
        return -gradient * mean_resultant_length(kappa, ctx.dim), None


class _MeanResultantLength(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, kappa: Tensor, dim: int) -> Tensor:
        exact = kappa.double()
        ratio = _ratios(exact, dim)[1]
        ctx.save_for_backward(exact, ratio)
        ctx.dim = dim
        return (exact * ratio).to(kappa.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        kappa, ratio = ctx.saved_tensors
        slope = 1 - (kappa * ratio).square() - (ctx.dim - 1) * ratio
        return gradient * slope.to(gradient.dtype), None


def _slope(kappa: Tensor, dim: int) -> Tensor:
    """Return the proposal's b of the rejection sampler."""
    slope: Tensor = (dim - 1) / (2 * kappa + (4 * kappa * kappa + (dim - 1) ** 2).sqrt())
    return slope


def _cosine(proposal: Tensor, slope: Tensor) -> Tensor:
    return (1 - (1 + slope) * proposal) / (1 - (1 - slope) * proposal)


def _accepted(kappa: Tensor, dim: int, samples: int, generator: torch.Generator | None) -> tuple[Tensor, Tensor]:
    """Return accepted Beta((d-1)/2, (d-1)/2) draws (N, n) and unit tangents (N, n, d-1), in float64.

    A uniform direction of R^d gives both: its first coordinate t gives the Beta draw (1+t)/2, and the direction of the
    others, which is independent of t, is the tangent.
    """
    if not bool(kappa.isfinite().all()):
        raise TrainingDiverged("concentrations, which are lengths of embeddings, are not finite")
    kappa = kappa.clamp(max=LARGEST)
    slope = _slope(kappa, dim).expand(samples, -1)  # (N, n)
    concentration = kappa.expand(samples, -1)
    mode = (1 - slope) / (1 + slope)
    ceiling = concentration * mode + (dim - 1) * torch.log1p(-mode * mode)
    proposal = torch.empty_like(slope)
    tangent = kappa.new_empty(*slope.shape, dim - 1)
    pending = torch.ones_like(slope, dtype=torch.bool)
    while bool(pending.any()):
        count = int(pending.sum())
        normal = torch.randn(count, dim, generator=generator, device=kappa.device, dtype=kappa.dtype)
        uniform = torch.rand(count, generator=generator, device=kappa.device, dtype=kappa.dtype)
        drawn = (1 + normal[:, 0] / normal.norm(dim=1)) / 2
        cosine = _cosine(drawn, slope[pending])
        height = concentration[pending] * cosine + (dim - 1) * torch.log1p(-mode[pending] * cosine)
        kept = height - ceiling[pending] >= uniform.log()
        proposal[pending] = drawn  # a rejected draw is replaced in the next round
        tangent[pending] = F.normalize(normal[:, 1:], dim=1)
        pending[pending.clone()] = ~kept
    return proposal, tangent
