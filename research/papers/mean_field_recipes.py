"""Training recipes of the mean-field paper. ResNet-50 replaces BN-Inception, which is not in `transformers`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .configuration import Variant

COMMON = {"backbone": "microsoft/resnet-50", "size": 224, "crop_ratio": 0.875, "select": "r@1", "weight_decay": 1e-4}
TRADITIONAL = {
    **COMMON,
    "dim": 512,
    "epochs": 60,
    "patience": 5,
    "learning_rate": 1e-4,
    "head_learning_rate": 1e-4,
    "proxy_learning_rate": 1e-2,
    "sampler": "random",
    "items_per_batch": 128,
    "photos_per_item": 1,
}
FIELDS = {"proxy_learning_rate": 2e-1}
PROXY_ANCHOR = {"loss": "proxy_anchor", "loss_arguments": {"alpha": 32.0, "margin": 0.1}}
MFCONT = {
    **FIELDS,
    "loss": "mean_field_contrastive",
    "loss_arguments": {"positive_margin": 0.02, "negative_margin": 0.3, "regularization": 0.0},
}
MFCWMS = {
    **FIELDS,
    "loss": "mean_field_class_wise_multi_similarity",
    "loss_arguments": {"alpha": 0.01, "beta": 80.0, "delta": 0.2, "regularization": 0.0},
}
THREE = {"ProxyAnchor": Variant(PROXY_ANCHOR), "MFCont": Variant(MFCONT), "MFCWMS": Variant(MFCWMS)}
BACKBONE = "ResNet-50 in the place of BN-Inception, which has no weights in `transformers`."
DELTA = " The paper's delta is one minus the distance that this project calls delta."


def with_arguments(base: Mapping[str, Any], **arguments: float) -> dict[str, Any]:
    """Return the settings of a base loss with changed arguments."""
    return {**base, "loss_arguments": {**base["loss_arguments"], **arguments}}


def batches(*sizes: int) -> dict[str, Variant]:
    """Return ProxyAnchor and MFCWMS at several batch sizes."""
    return {
        f"{name}, {size}": Variant({**base, "items_per_batch": size}, series=name, x=size)
        for name, base in (("ProxyAnchor", PROXY_ANCHOR), ("MFCWMS", MFCWMS))
        for size in sizes
    }
