"""Pretrained models in local folders, in the cache of the Hugging Face hub and on the hub, and the choice of `auto`."""

from __future__ import annotations

from pathlib import Path

import torch

from retrieval.encoders.layout import hub_is_reachable
from retrieval.errors import InvalidParameter
from training.config import AUTO, LITE0

ON_CPU, ON_GPU = "facebook/dinov2-small", "facebook/dinov2-base"

WAY_OUT = (
    "Connect to the Hugging Face hub once, which caches the model, or name a local folder with its files, or use "
    "efficientnet-lite0, which needs no download"
)


def is_cached(name: str) -> bool:
    """Return whether the configuration and the weights of a model of the hub are in the local cache."""
    from huggingface_hub import try_to_load_from_cache

    files = ("config.json", "model.safetensors")
    return all(isinstance(try_to_load_from_cache(name, file), str) for file in files)


def is_local(name: str) -> bool:
    """Return whether the files of a model are to be read without asking the hub."""
    return Path(name).is_dir() or not hub_is_reachable()


def unreadable(name: str, reason: Exception, *, what: str) -> InvalidParameter:
    """Return the error for a model that `transformers` cannot read."""
    if not Path(name).is_dir() and not hub_is_reachable():
        return InvalidParameter(
            "backbone",
            "be a local folder or a model in the cache while the Hugging Face hub does not answer",
            name,
            remedy=WAY_OUT,
        )
    line = (str(reason).splitlines() or [""])[0][:120]
    return InvalidParameter("backbone", f"{what} ({line})", name, remedy=WAY_OUT)


def choose_backbone() -> tuple[str, str]:
    """Return the name of a pretrained backbone that suits this machine, and the reason."""
    name, machine = (ON_GPU, "a GPU") if torch.cuda.is_available() else (ON_CPU, "no GPU")
    if hub_is_reachable():
        return name, f"the Hugging Face hub answers, and this machine has {machine}"
    if is_cached(name):
        return name, f"it is in the cache of the Hugging Face hub, and this machine has {machine}"
    return LITE0, f"the Hugging Face hub does not answer and {name} is not in its cache; this model needs no download"


def resolved(name: str) -> str:
    """Return a backbone's name; `auto` is replaced by the choice for this machine."""
    return choose_backbone()[0] if name == AUTO else name
