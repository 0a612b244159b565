"""The choice of a pretrained backbone for this machine (`auto`)."""

from __future__ import annotations

import torch

from training.config import AUTO, LITE0

from .hub import hub_is_reachable, is_cached

ON_CPU, ON_GPU = "facebook/dinov2-small", "facebook/dinov2-base"


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
