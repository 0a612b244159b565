"""Training recipes of arXiv 2307.04047: backbones, batches, base losses, and TCM in addition."""

from __future__ import annotations

from typing import Any

from .configuration import Variant

RESNET_50: dict[str, Any] = {"backbone": "microsoft/resnet-50"}
RESNET_101: dict[str, Any] = {"backbone": "microsoft/resnet-101"}
VIT_S: dict[str, Any] = {"backbone": "WinKawaks/vit-small-patch16-224", "learning_rate": 5e-5}
VIT_B: dict[str, Any] = {"backbone": "google/vit-base-patch16-224-in21k", "learning_rate": 5e-5}
VIT_L: dict[str, Any] = {"backbone": "google/vit-large-patch16-224-in21k", "learning_rate": 1e-5}

BATCH_384 = {"items_per_batch": 96, "photos_per_item": 4, "micro_batch_size": 96}
BATCH_392 = {"items_per_batch": 98, "photos_per_item": 4, "micro_batch_size": 98}
BATCH_4000 = {"items_per_batch": 1000, "photos_per_item": 4, "micro_batch_size": 200}
COMMON = {
    "size": 224,
    "crop_ratio": 0.875,
    "dim": 512,
    "epochs": 100,
    "learning_rate": 1e-4,
    "weight_decay": 4e-4,
    "select": "r@1",
    **RESNET_50,
    **BATCH_384,
}
SAP = {"loss": "smooth_ap", "loss_arguments": {"temperature": 0.01}}
RSK = {"loss": "recall_at_k", "regularizer": ""}
PROXY_NCA = {"loss": "proxy_nca"}
ARCFACE = {"loss": "arcface"}
TCM: dict[str, Any] = {"regularizer": "tcm", "regularizer_arguments": {"positive_margin": 0.9, "negative_margin": 0.5}}
EPOCHS = "The paper takes each base loss's own schedule without printing it; 100 epochs here."


def tcm(**arguments: Any) -> dict[str, Any]:
    """Return the settings of TCM with changed arguments."""
    return {**TCM, "regularizer_arguments": {**TCM["regularizer_arguments"], **arguments}}


def with_and_without(**bases: dict[str, Any]) -> dict[str, Variant]:
    """Return each base loss, then each base loss with TCM."""
    found: dict[str, Variant] = {}
    for name, settings in bases.items():
        title = name.replace("_", " ")
        found[title] = Variant(settings, series="base loss")
        found[f"{title} + TCM"] = Variant({**settings, **TCM}, series="with TCM")
    return found


RANGES = ("OPIS 0.0001-0.01", "OPIS 0.001-0.01", "OPIS 0.001-0.05", "OPIS", "OPIS 0.01-0.2")
