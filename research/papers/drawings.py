"""The numbers of figures without data sets: functions of a distance, a concentration, or a few sampled points."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np
import torch
from scipy import special
from torch import Tensor

from retrieval.errors import InvalidParameter
from training.losses import vmf

from .results import Cells
from .toys import concentric_circles, contextual_gradient

Rows = dict[str, dict[str, float]]
GAUSSIANS = (
    (0.6, 0.15, 1.3, 0.1),
    (0.8, 0.2, 1.2, 0.1),
    (1.0, 0.2, 1.3, 0.1),
)  # mean and deviation within classes, mean and deviation between classes


def draw(kind: str) -> Cells:
    """Return the numbers of a figure. Raise InvalidParameter for an unknown kind."""
    if kind not in DRAWINGS:
        raise InvalidParameter("drawing", f"be one of {', '.join(DRAWINGS)}", kind)
    rows = DRAWINGS[kind]()
    return {"drawn": {name: {key: [value] for key, value in row.items()} for name, row in rows.items()}}


def gaussian_utility() -> Rows:
    """Compute Eq. 9 and 10 of arXiv 2307.04047: utility for Gaussian distances within and between classes."""
    distances, rows = np.linspace(0, 2, 401), {}
    for near, spread, far, width in GAUSSIANS:
        within = special.erf((distances - near) / (math.sqrt(2) * spread))
        between = special.erf((distances - far) / (math.sqrt(2) * width))
        curves = {
            "specificity": (1 + within) * (1 - between) / np.maximum(2 + within - between, 1e-12),
            "precision": 2 * (1 + within) / (4 + within + between),
        }
        rows[f"{near} ± {spread} | {far} ± {width}"] = {
            key: value
            for name, values in curves.items()
            for key, value in (
                (f"greatest utility of {name}", float(values.max())),
                (f"at distance, {name}", float(distances[values.argmax()])),
            )
        }
    return rows


def densities() -> Rows:
    """Compute vMF densities on the sphere, isotropic (20) and non-isotropic (20, 5, 50), and integrate both."""
    polar, turn = np.meshgrid(np.linspace(0, np.pi, 401), np.linspace(-np.pi, np.pi, 401), indexing="ij")
    points = np.stack([np.sin(polar) * np.cos(turn), np.sin(polar) * np.sin(turn), np.cos(polar)], axis=-1)
    mean = torch.tensor([[1.0, 1.0, 1.0]], dtype=torch.float64) / math.sqrt(3)
    rows: Rows = {}
    for name, kappa in (("vMF", (20, 20, 20)), ("nivMF", (20, 5, 50))):
        concentrations = torch.tensor([kappa], dtype=torch.float64)
        logs = vmf.nivmf_shape(torch.from_numpy(points), mean, concentrations)[..., 0]
        density = (logs + vmf.uniform_log_density(3)).exp().numpy()
        inner = np.trapezoid(density * np.sin(polar), dx=np.pi / 400, axis=0)
        rows[name] = {"integral": float(np.trapezoid(inner, dx=2 * np.pi / 400)), "greatest": float(density.max())}
    return rows


def distances_to_a_proxy() -> Rows:
    """Compute three distances of a photo to a vMF proxy of concentration 10 against its cosine and its norm."""
    cosines = torch.linspace(-1, 1, 101, dtype=torch.float64)
    norms = torch.linspace(1, 20, 101, dtype=torch.float64)
    grid_c, grid_n = torch.meshgrid(cosines, norms, indexing="ij")
    proxy = 10.0
    bhattacharyya = vmf.bhattacharyya(
        grid_c.reshape(-1, 1), grid_n.reshape(-1), torch.tensor([proxy], dtype=torch.float64), 128
    ).reshape(grid_c.shape)
    kinds: dict[str, Tensor] = {
        "cosine": -grid_c,
        "L2": proxy**2 + grid_n**2 - 2 * proxy * grid_n * grid_c,
        "Bhattacharyya": bhattacharyya,
    }
    rows: Rows = {}
    for name, values in kinds.items():
        rise = values[0] - values[-1]  # increase from cosine 1 to -1, for each norm
        rows[name] = {"rise at norm 1": float(rise[0]), "rise at norm 20": float(rise[-1])}
    return rows


def normaliser() -> Rows:
    """Compute log C_512: from exact Bessel functions, as approximated for training here, and as fitted in the paper."""
    dim, order = 512, 255
    kappa = np.linspace(1, 200, 200)
    terms = np.arange(400)[:, None]  # logarithmic terms of the power series of the Bessel function
    series = (2 * terms + order) * np.log(kappa / 2) - special.gammaln(terms + 1) - special.gammaln(terms + order + 1)
    exact = order * np.log(kappa) - dim / 2 * np.log(2 * np.pi) - special.logsumexp(series, axis=0)
    tensor = torch.from_numpy(kappa)
    curves = {
        "ours": vmf.log_normalizer(tensor, dim).numpy(),
        "the paper's fit": vmf.paper_log_normalizer(tensor, dim).numpy(),
    }
    inside = (kappa >= 10) & (kappa <= 50)
    rows: Rows = {}
    for name, values in curves.items():
        error = np.abs(values - exact)
        rows[name] = {"greatest error, 10 to 50": float(error[inside].max()), "error at 200": float(error[-1])}
    return rows


DRAWINGS: Mapping[str, Callable[[], Rows]] = {
    "gaussian utility": gaussian_utility,
    "densities": densities,
    "distances to a proxy": distances_to_a_proxy,
    "normaliser": normaliser,
    "contextual gradient": contextual_gradient,
    "concentric circles": concentric_circles,
}
