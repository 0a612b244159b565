"""Models of `timm` as backbones, if it is installed. They return the pooled vector of an image."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from retrieval.errors import InvalidParameter, MissingDependency
from retrieval.images import Preprocessing

from .base import Backbone

TIMM = "timm/"  # before the names of its models, as on the Hugging Face hub
SQUASH = "squash"


class TimmBackbone(Backbone):
    """A model of `timm` without its classifier: pixels (n, 3, h, w) to its pooled vector (n, c, 1, 1)."""

    pooled = True

    def __init__(self, name: str, network: nn.Module) -> None:
        super().__init__()
        self.name, self.network = name, network
        features: Any = network.num_features
        self.width = int(features)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the pooled vectors of normalised pixels (n, 3, h, w)."""
        vectors: Tensor = self.network(pixels)
        return vectors[:, :, None, None]

    @property
    def record(self) -> dict[str, Any]:
        """The values that rebuild the network with random weights."""
        return {"family": TIMM, "name": self.name}

    @classmethod
    def pretrained(cls, name: str) -> TimmBackbone:
        """Return a model with its weights, from the cache or the hub."""
        return cls(name, _create(name, pretrained=True))

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TimmBackbone:
        """Return a model with random weights."""
        name = str(record["name"])
        return cls(name, _create(name, pretrained=False))


def timm_preprocessing(name: str) -> Preprocessing:
    """Return the preprocessing that a model of `timm` was published with."""
    timm = _timm()
    try:
        published = timm.get_pretrained_cfg(name, allow_unregistered=False)
    except RuntimeError as error:
        raise InvalidParameter("backbone", f"be a model of timm ({error})", name) from error
    values = timm.data.resolve_data_config({}, pretrained_cfg=published.to_dict())
    _, height, width = values["input_size"]
    if height != width:
        raise InvalidParameter("backbone", "have a square input", f"{name}: {height} × {width}")
    squash = values.get("crop_mode") == SQUASH
    mean, std = tuple(values["mean"]), tuple(values["std"])
    return Preprocessing(size=height, view=float(values["crop_pct"]), mean=mean, std=std, squash=squash)


def _create(name: str, *, pretrained: bool) -> nn.Module:
    try:
        network: nn.Module = _timm().create_model(name, pretrained=pretrained, num_classes=0)
    except (OSError, RuntimeError, ValueError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidParameter("backbone", f"be a model of timm that can be loaded ({reason})", name) from error
    return network


def _timm() -> Any:
    try:
        import timm
        import timm.data
    except ImportError as error:
        raise MissingDependency(
            f"{TIMM} models need the package timm", remedy="Install it: pip install timm"
        ) from error
    return timm
