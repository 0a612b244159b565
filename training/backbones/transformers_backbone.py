"""Image models of `transformers` as backbones."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from retrieval.errors import InvalidParameter

from .base import Backbone


class TransformersBackbone(Backbone):
    """An image model of `transformers`: its last feature map (n, c, h, w), or its tokens as (n, c, tokens, 1)."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network
        self.width = _feature_width(network)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the last hidden state of normalised pixels (n, 3, h, w) as a feature map."""
        features: Tensor = self.network(pixels).last_hidden_state
        if features.dim() == 3:  # (n, tokens, c) of a vision transformer
            features = features.transpose(1, 2).unsqueeze(3)
        return features

    @property
    def record(self) -> dict[str, Any]:
        """The configuration of the model, to rebuild it from."""
        config: Any = self.network.config
        return dict(config.to_dict())

    @classmethod
    def pretrained(cls, name: str) -> TransformersBackbone:
        """Return a model with its weights, from a local folder or the hub."""
        from transformers import AutoModel

        if not Path(name).exists() and Path(name).is_absolute():
            raise InvalidParameter("backbone", "be 'small', a folder or a model of the hub", name)
        try:
            network = AutoModel.from_pretrained(name)
        except (OSError, ValueError) as error:
            raise InvalidParameter(
                "backbone",
                "be 'small', a local folder with config.json and weights, or a model of the hub",
                name,
                remedy=str(error).splitlines()[0],
            ) from error
        return cls(network)

    @classmethod
    def from_config(cls, config: Mapping[str, Any]) -> TransformersBackbone:
        """Return a model with random weights."""
        from transformers import AutoConfig, AutoModel

        values = dict(config)
        return cls(AutoModel.from_config(AutoConfig.for_model(values.pop("model_type"), **values)))


def _feature_width(network: nn.Module) -> int:
    """Return c from one forward pass, because configurations name it differently."""
    was_training = network.training
    network.eval()
    side = getattr(network.config, "image_size", 224)
    side = side if isinstance(side, int) else 224
    with torch.no_grad():
        features = network(torch.zeros(1, 3, side, side)).last_hidden_state
    network.train(was_training)
    return int(features.shape[1] if features.dim() == 4 else features.shape[2])
