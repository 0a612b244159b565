from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from retrieval.errors import InvalidParameter, TrainingDiverged
from training.losses import ProxyAnchor, VonMisesFisherNCA, vmf

from .golden import F32, F64, VMF_TOLERANCE, Case, agrees, golden, gradient_agrees, measure, set_rows, small_batch

DIMS = (2, 3, 8, 16, 128, 512, 2048)


@pytest.mark.data
def test_normalizer_and_mean_are_exact_and_the_papers_fit_is_far_off(test_data: Path) -> None:
    for dim in DIMS:
        case = golden(test_data, "vmf_exact")[f"d{dim}"]
        kappa = torch.tensor(case["kappa"])
        assert kappa.min() <= 1e-3
        assert kappa.max() >= 1e4
        assert np.abs(vmf.log_normalizer(kappa, dim).numpy() - case["log_c"]).max() < 1e-7
        relative = vmf.mean_resultant_length(kappa, dim).numpy() / case["mean_resultant"] - 1
        assert np.abs(relative).max() < 1e-10
    grid = golden(test_data, "vmf_normalizer")["grid"]
    kappa = torch.tensor(grid["kappa"])
    for dim in (128, 512):
        assert np.allclose(vmf.paper_log_normalizer(kappa, dim), grid[f"official_approx_p{dim}"], rtol=1e-12)
    for row, dim in enumerate(grid["dims"]):
        assert np.abs(vmf.log_normalizer(kappa, int(dim)).numpy() - grid["exact_logC"][row]).max() < 1e-6
    at_200 = torch.tensor([200.0], dtype=F64)
    assert (vmf.paper_log_normalizer(at_200, 128) - vmf.log_normalizer(at_200, 128)).abs() > 40


def test_gradients_of_normalizer_and_mean() -> None:
    for dim in DIMS:
        kappa = torch.tensor([0.0, 1e-3, 0.3, 5.0, 60.0, 900.0], dtype=F64, requires_grad=True)
        assert torch.autograd.gradcheck(vmf.log_normalizer, (kappa, dim))
        inner = kappa.detach()[1:].requires_grad_()
        assert torch.autograd.gradcheck(vmf.mean_resultant_length, (inner, dim))


def test_at_no_concentration_the_density_is_uniform() -> None:
    nothing = torch.zeros(1, dtype=F64)
    assert vmf.log_normalizer(nothing, 3).item() == pytest.approx(-math.log(4 * math.pi))
    assert vmf.log_normalizer(nothing, 2).item() == pytest.approx(-math.log(2 * math.pi))
    assert vmf.mean_resultant_length(nothing, 3).item() == 0
    assert vmf.uniform_log_density(3) == pytest.approx(-math.log(4 * math.pi))
    with pytest.raises(InvalidParameter):
        vmf.log_normalizer(torch.ones(1), 1)


def sphere(count: int = 400) -> tuple[Tensor, Tensor]:
    """Return points of S² (m, 3) and quadrature weights (m,): Gauss-Legendre in height, equal steps around."""
    heights, weights = np.polynomial.legendre.leggauss(count)
    angles = 2 * np.pi * np.arange(2 * count) / (2 * count)
    z, phi = np.meshgrid(heights, angles, indexing="ij")
    ring = np.sqrt(1 - z * z)
    points = np.stack([ring * np.cos(phi), ring * np.sin(phi), z], axis=2).reshape(-1, 3)
    return torch.tensor(points), torch.tensor(np.repeat(weights * np.pi / count, 2 * count))


def test_the_density_integrates_to_one() -> None:
    points, weights = sphere()
    directions = F.normalize(torch.tensor([[1.0, 2.0, -0.5], [0.0, 0.0, 1.0]], dtype=F64), dim=1)
    for concentrations in ((5.0, 5.0, 5.0), (20.0, 10.0, 5.0), (0.1, 0.1, 0.1), (1.0, 30.0, 2.0)):
        spread = torch.tensor([concentrations, concentrations[::-1]], dtype=F64)
        density = (vmf.nivmf_shape(points, directions, spread) + vmf.uniform_log_density(3)).exp()
        assert (weights @ density - 1).abs().max() < 1e-6


@pytest.mark.data
def test_distances_golden(test_data: Path) -> None:
    cases = golden(test_data, "vmf_analytic_distances")
    given = cases.pop("quadrature_d3")
    numbers = (float(given["mu_z"] @ given["mu_p"]), float(given["kappa_z"]), float(given["kappa_p"]))
    cosine, kappa, proxy_kappa = (torch.tensor([number], dtype=F64) for number in numbers)
    for distance, name in ((vmf.expected_likelihood, "EL"), (vmf.bhattacharyya, "B"), (vmf.kl_divergence, "KL")):
        found = distance(cosine[None], kappa, proxy_kappa, 3).item()
        assert found == pytest.approx(float(given[f"{name}_quadrature"]), abs=1e-6)
    for case in cases.values():
        vectors = torch.tensor(case["emb"])
        cosines = F.normalize(vectors, dim=1) @ F.normalize(torch.tensor(case["proxy_dirs"]), dim=1).T
        concentrations = torch.tensor(case["proxy_kappa"])[:, 0].clamp(min=float(case["kappa_min"]))
        for distance, name in (
            (vmf.expected_likelihood, "el_dist_eq35_exact"),
            (vmf.bhattacharyya, "b_dist_eq29_exact"),
            (vmf.kl_divergence, "kl_true_exact"),
        ):
            found = distance(cosines, vectors.norm(dim=1), concentrations, vectors.shape[1])
            assert np.allclose(found.numpy(), case[name], rtol=1e-8, atol=1e-7)


def analytic_loss(case: Case, distance: str, dtype: torch.dtype) -> tuple[VonMisesFisherNCA, float]:
    loss = VonMisesFisherNCA(*case["proxy_dirs"].shape, distance=distance, temperature=float(case["temp"].item()))
    set_rows(loss.proxies, case["proxy_dirs"])
    set_rows(loss.concentrations, case["proxy_kappa"][:, 0])
    return loss, measure(loss, case, dtype)[0]


@pytest.mark.data
@pytest.mark.parametrize("name", ["d128", "d512", "d128_clamp"])
def test_analytic_losses_golden(test_data: Path, name: str) -> None:
    case = golden(test_data, "vmf_analytic_distances")[name]
    keys = {"el_vmf": "el_loss_exact", "b_vmf": "b_loss_exact", "kl_vmf": "kl_loss_correct_sign_true_exact"}
    for distance, key in keys.items():
        assert analytic_loss(case, distance, F64)[1] == pytest.approx(float(case[key]), abs=1e-8)
        assert analytic_loss(case, distance, F32)[1] == pytest.approx(float(case[key]), abs=5e-5)


@pytest.mark.data
@pytest.mark.parametrize("dtype", [F64, F32])
@pytest.mark.parametrize("name", ["d8_t1", "d512_t1"])
def test_el_nivmf_golden(test_data: Path, name: str, dtype: torch.dtype) -> None:
    case = golden(test_data, "el_nivmf_exact")[name]
    loss = VonMisesFisherNCA(*case["proxy_dirs"].shape, temperature=float(case["temp"].item())).to(dtype)
    set_rows(loss.proxies, case["proxy_dirs"])
    set_rows(loss.concentrations, case["proxy_K"])
    loss.to(dtype)
    samples = torch.tensor(case["samples"], dtype=dtype, requires_grad=True)
    value = F.cross_entropy(loss.sample_logits(samples), torch.tensor(case["labels"]))
    value.backward()
    for parameter in (samples, loss.proxies, loss.concentrations, loss.log_temperature):
        assert parameter.grad is not None
    grads = {key: value for key, value in case.items() if key.startswith("grad")}
    agrees((value.item(), samples.grad), float(case["loss"]), grads["grad_samples"], dtype, tolerance=VMF_TOLERANCE)
    share = VMF_TOLERANCE[dtype][1]
    gradient_agrees(loss.proxies.grad, grads["grad_proxy_dirs"], dtype, share)
    gradient_agrees(loss.concentrations.grad, grads["grad_proxy_K"], dtype, share)
    t = float(case["temp"].item())
    assert loss.log_temperature.grad.item() / t == pytest.approx(float(grads["grad_temp"].item()), rel=share * 10)
    directions = F.normalize(torch.tensor(case["proxy_dirs"]), dim=1)
    shape = vmf.nivmf_shape(torch.tensor(case["samples"]), directions, torch.tensor(case["proxy_K"]).clamp(min=0.1))
    density = shape + vmf.uniform_log_density(directions.shape[1])
    assert np.abs(density.numpy() - case["loglik"]).max() < 1e-7
    sim = (torch.logsumexp(density, dim=0) - math.log(len(density))) / t
    assert np.abs(sim.numpy() - case["sim"]).max() < 1e-7


@pytest.mark.data
@pytest.mark.parametrize("name", ["d8_t1", "d512_t1"])
@pytest.mark.parametrize(("normalizer", "suffix"), [("paper", "eq4"), ("released", "official")])
def test_released_el_nivmf_is_reached_by_name(test_data: Path, name: str, normalizer: str, suffix: str) -> None:
    case = golden(test_data, "el_nivmf")[name]
    loss = VonMisesFisherNCA(
        *case["proxy_dirs"].shape, temperature=float(case["temp"].item()), normalizer=normalizer
    ).double()
    set_rows(loss.proxies, case["proxy_dirs"])
    set_rows(loss.concentrations, case["proxy_K"])
    vectors = torch.tensor(case["emb"], requires_grad=True)
    labels = torch.tensor(case["labels"])
    tangent = F.normalize(torch.tensor(case["normal_v"]), dim=2)
    proposal = torch.tensor(case["beta_e"])[..., 0]
    samples = vmf.place(F.normalize(vectors, dim=1), vectors.norm(dim=1), proposal, tangent)
    assert np.abs(samples.detach().numpy() - case["samples"]).max() < 1e-12
    value = F.cross_entropy(loss.sample_logits(samples), labels)
    value.backward(retain_graph=True)
    expected = case["loss_official"] if suffix == "official" else case["loss_eq4_code_agg"]
    assert vectors.grad is not None
    agrees((value.item(), vectors.grad), float(expected), case[f"grad_emb_{suffix}"], F64)
    assert loss.concentrations.grad is not None
    gradient_agrees(loss.concentrations.grad, case[f"grad_proxy_K_{suffix}"], F64, 1e-8)


@pytest.mark.data
@pytest.mark.parametrize("name", ["d512", "d128", "d16"])
def test_nivmf_golden(test_data: Path, name: str) -> None:
    case = golden(test_data, "nivmf_loglik")[name]
    points = F.normalize(torch.tensor(case["emb"]), dim=1)
    directions = F.normalize(torch.tensor(case["proxy_dirs"]), dim=1)
    spread = torch.tensor(case["proxy_K"]).clamp(min=float(case["kappa_min"]))
    printed = vmf.nivmf_paper_log_density(points, directions, spread)
    assert np.allclose(printed.numpy(), case["loglik_eq4_approxC"], rtol=1e-10)
    unscaled = vmf.nivmf_paper_log_density(points, directions, spread, scale_points=False)
    assert np.allclose(unscaled.numpy(), case["loglik_unscaled_z_approxC"], rtol=1e-10)
    # our density and Eq. 4 with the exact C differ by the Jacobian alone
    jacobian = (
        -vmf.squared_lengths(points, spread).log() * spread.shape[1] / 2 + (spread * directions).norm(dim=1).log()
    )
    exact = vmf.nivmf_shape(points, directions, spread) + vmf.uniform_log_density(spread.shape[1])
    assert np.allclose((exact - jacobian).numpy(), case["loglik_eq4_exactC"], rtol=1e-9)


def test_the_anchor_shares_the_proxies_and_is_added() -> None:
    """Eq. 7: + omega times ProxyAnchor of unit embeddings and the same proxy directions."""
    vectors, labels = small_batch()
    torch.manual_seed(0)
    plain = VonMisesFisherNCA(4, 6, distance="nivmf").double()
    joint = VonMisesFisherNCA(4, 6, distance="nivmf", anchor_weight=0.5).double()
    anchor = ProxyAnchor(4, 6).double()
    joint.load_state_dict(plain.state_dict())
    set_rows(anchor.proxies, plain.proxies.detach().numpy())
    extra = joint(vectors, labels) - plain(vectors, labels)
    assert extra.item() == pytest.approx(0.5 * anchor(vectors, labels).item(), rel=1e-9)


@pytest.mark.data
@pytest.mark.parametrize("name", ["d4_small_kappa", "d8_small_kappa", "d64_small_kappa"])
def test_placed_samples_golden(test_data: Path, name: str) -> None:
    case = golden(test_data, "vmf_sampler")[name]
    vectors = torch.tensor(case["emb"], requires_grad=True)
    directions = F.normalize(vectors, dim=1)
    tangent = F.normalize(torch.tensor(case["normal_v"]), dim=2)
    samples = vmf.place(directions, vectors.norm(dim=1), torch.tensor(case["beta_e"])[..., 0], tangent)
    assert np.abs(samples.detach().numpy() - case["z"]).max() < 1e-12
    assert np.abs((samples * directions).sum(dim=2).detach().numpy() - case["w"][..., 0]).max() < 1e-12
    (samples * torch.tensor(case["cotangent"])).sum().backward()
    assert vectors.grad is not None
    gradient_agrees(vectors.grad, case["grad_emb"], F64, 1e-8)


@pytest.mark.parametrize("dim", [2, 3, 16, 128, *(pytest.param(dim, marks=pytest.mark.slow) for dim in (512, 2048))])
def test_samples_have_the_right_mean_and_variance(dim: int) -> None:
    count = 4000
    for kappa in (0.1, 1.0, 10.0, 100.0, 1000.0):
        generator = torch.Generator().manual_seed(7)
        direction = F.normalize(torch.randn(1, dim, generator=generator, dtype=F64), dim=1)
        samples = vmf.sample(direction, torch.tensor([kappa], dtype=F64), count, generator)[:, 0]
        assert (samples.norm(dim=1) - 1).abs().max() < 1e-9
        cosines = samples @ direction[0]
        mean = vmf.mean_resultant_length(torch.tensor(kappa, dtype=F64), dim).item()
        variance = 1 - mean**2 - (dim - 1) * mean / kappa
        assert abs(cosines.mean().item() - mean) < 5 * math.sqrt(variance / count)
        squares = (cosines - mean).square()
        assert abs(squares.mean().item() - variance) < 5 * (squares.std() / math.sqrt(count)).item()
        across = samples - cosines[:, None] * direction  # uniform around the mean direction
        assert across.mean(dim=0).norm() < 5 * math.sqrt((1 - cosines.square()).mean().item() / count)


def test_samples_repeat_with_their_generator_and_carry_gradients() -> None:
    vectors = torch.randn(4, 6, dtype=F64, requires_grad=True)

    def draw() -> Tensor:
        generator = torch.Generator().manual_seed(3)
        return vmf.sample(F.normalize(vectors, dim=1), vectors.norm(dim=1), 5, generator)

    first = draw()
    assert first.shape == (5, 4, 6)
    assert torch.equal(first, draw())
    first.sum().backward()
    assert vectors.grad.abs().min() > 0


@pytest.mark.timeout(20)
@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_embeddings_that_are_not_finite_are_refused_and_not_drawn_for_ever(value: float) -> None:
    vectors = torch.full((2, 6), value)
    with pytest.raises(TrainingDiverged, match="lengths of embeddings"):
        VonMisesFisherNCA(2, 6)(vectors, torch.arange(2))


@pytest.mark.timeout(20)
@pytest.mark.parametrize("dim", [2, 3, 128])
def test_samples_of_a_huge_concentration_are_its_direction(dim: int) -> None:
    kappa = torch.tensor([1e11, 1e13, 1e20, 1e300], dtype=F64, requires_grad=True)
    directions = F.normalize(torch.randn(4, dim, generator=torch.Generator().manual_seed(1), dtype=F64), dim=1)
    samples = vmf.sample(directions, kappa, 50)
    assert (samples - directions).abs().max() < 1e-4
    assert torch.autograd.grad(samples.sum(), kappa)[0].isfinite().all()
