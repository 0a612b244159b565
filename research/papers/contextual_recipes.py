"""Training recipes of arXiv 2210.01908. lambda weights the contextual loss, gamma the similarity regularizer."""

from __future__ import annotations

from typing import Any

from .configuration import Variant

COMMON = {
    "backbone": "microsoft/resnet-50",
    "pooling": "gem",
    "size": 224,
    "crop_ratio": 0.875,
    "dim": 512,
    "epochs": 80,
    "items_per_batch": 32,
    "photos_per_item": 4,
    "learning_rate": 8e-5,
    "head_learning_rate": 8e-5,
    "select": "r@1",
}
GROUPS = {"sampler": "groups:category"}
BY_DATASET: dict[str, dict[str, Any]] = {
    "cub": {"projector": 512, "epoch_steps": 15},
    "cars": {"projector": 512, "items_per_batch": 16, "learning_rate": 1.6e-4, "epoch_steps": 30},
    "sop": {**GROUPS, "learning_rate": 4e-5, "epoch_steps": 655},
    "inshop": {"learning_rate": 4e-5, "epoch_steps": 600},
    "inat": {**GROUPS, "items_per_batch": 64, "epoch_steps": 576},
}
LARGE = {**COMMON, "size": 256, "crop_ratio": 0.889, "pooling": "average"}
RATES = "Schedules: half a cosine here, steps there; the learning rates tuned for each baseline are not printed."
INAT = " iNaturalist-2018 in the place of mini-iNaturalist-2021."


def ours(weight: float = 0.8, gamma: float = 0.1, **arguments: Any) -> dict[str, Any]:
    """Return the settings of the paper's objective (Eq. 6)."""
    given = {"contextual_weight": weight, "similarity_weight": gamma, **arguments}
    return {"loss": "contextual_sum", "loss_arguments": given}


def mixed(weight: float, base: dict[str, Any], positive_margin: float = 0.9, **arguments: Any) -> dict[str, Any]:
    """Return weight x base + (1 - weight) x contrastive, up to a factor that has no effect with these optimisers."""
    if weight == 0:
        return contrastive(positive_margin)
    if weight == 1:
        return {**base, **arguments}
    margins = {"positive_margin": positive_margin, "negative_margin": 0.6, "weight": round((1 - weight) / weight, 6)}
    return {**base, **arguments, "regularizer": "contrastive", "regularizer_arguments": margins}


def towards(target: float) -> dict[str, Any]:
    """Return the settings of the similarity regularizer, whose weight is gamma / (1 - gamma) with gamma = 0.1."""
    arguments = {"target": target, "weight": 0.1111}
    return {"regularizer": "similarity_regularizer", "regularizer_arguments": arguments}


def contrastive(positive_margin: float = 0.9) -> dict[str, Any]:
    """Return the settings of the contrastive loss (Eq. 29)."""
    return {"loss": "contrastive", "loss_arguments": {"positive_margin": positive_margin, "negative_margin": 0.6}}


def context(**arguments: Any) -> dict[str, Any]:
    """Return the settings of the contextual loss alone (Eq. 28)."""
    return {"loss": "contextual", "loss_arguments": arguments}


def ablated(**switches: Any) -> dict[str, Any]:
    """Return the settings of the contextual loss alone, with the switches of Table 5."""
    return {"loss": "contextual_ablated", "loss_arguments": switches}


OURS = Variant(ours(), by_dataset={"cub": ours(0.95, margin=0.04)})
BASELINES: dict[str, dict[str, Any]] = {
    "MS": {"loss": "multi_similarity", "loss_arguments": {"epsilon": -1.0}},
    "Contrastive": contrastive(),
    "ROADMAP": {"loss": "roadmap"},
    "Triplet": {"loss": "triplet"},
    "MS + miner": {"loss": "multi_similarity"},
    "Proxy Anchor": {"loss": "proxy_anchor"},
    "Proxy NCA": {"loss": "proxy_nca"},
}
MAIN = {name: Variant(settings) for name, settings in BASELINES.items()} | {"Contextual": OURS}
LARGE_BASELINES: dict[str, dict[str, Any]] = {
    "Contrastive": contrastive(),
    "Triplet": {"loss": "triplet"},
    "NtXent": {"loss": "ntxent"},
    "MS": {"loss": "multi_similarity"},
    "Fast-AP": {"loss": "fast_ap"},
    "Smooth-AP": {"loss": "smooth_ap"},
    "ROADMAP": {"loss": "roadmap"},
}
LARGE_OURS = ours(0.4, target=0.25)
AT_256 = {name: Variant(settings) for name, settings in LARGE_BASELINES.items()} | {"Contextual": Variant(LARGE_OURS)}
ABLATIONS: dict[str, dict[str, Any]] = {
    "step 1 only": ablated(intersect=False, expand=False),
    "step 1 only, sigmoid": ablated(intersect=False, expand=False, step="sigmoid"),
    "no step 3": ablated(expand=False),
    "no step 2": ablated(intersect=False),
    "min for and": ablated(conjunction="min"),
    "sigmoid": ablated(step="sigmoid"),
    "no M-": ablated(complement=False),
    "no stop gradient": ablated(stop_gradient=False),
    "contextual": context(),
}
RANKING: dict[str, dict[str, Any]] = {
    "contextual": context(),
    "roadmap": {"loss": "roadmap_ap"},
    "smooth_ap": {"loss": "smooth_ap"},
    "softbin_ap": {"loss": "softbin_ap"},
    "blackbox_ap": {"loss": "blackbox_ap"},
}
LAMBDAS = (0.0, 0.4, 0.8, 0.9, 1.0)
GRID_NOTE = "The paper plots this grid without printing its numbers or, always, its values."
