"""The trained embedder: a backbone, a pooling and a linear layer.

Shapes: n photos, c channels of the backbone, d = embedding size. The model's output is the raw embedding, whose
direction is searched and whose norm is the certainty.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing

SMALL = "small"
SMALL_WIDTHS = (32, 64, 128, 256)


class SmallConvNet(nn.Module):
    """A small convolutional backbone for training from scratch: (n, 3, h, w) to (n, 256, h/16, w/16)."""

    width = SMALL_WIDTHS[-1]

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels = 3
        for width in SMALL_WIDTHS:
            blocks += [
                nn.Conv2d(channels, width, 3, stride=2, padding=1, bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
                nn.Conv2d(width, width, 3, padding=1, groups=max(1, width // 32), bias=False),
                nn.BatchNorm2d(width),
                nn.ReLU(inplace=True),
            ]
            channels = width
        self.blocks = nn.Sequential(*blocks)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, nonlinearity="relu")

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the feature map (n, 256, h/16, w/16) of normalised pixels (n, 3, h, w)."""
        features: Tensor = self.blocks(pixels)
        return features


class TransformersBackbone(nn.Module):
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


class EmbeddingModel(nn.Module):
    """Embeds normalised pixels (n, 3, h, w) as raw embeddings (n, d)."""

    def __init__(self, backbone: SmallConvNet | TransformersBackbone, *, dim: int, pooling: str) -> None:
        super().__init__()
        self.backbone = backbone
        self.power = nn.Parameter(torch.tensor(3.0)) if pooling == "gem" else None
        self.head = nn.Linear(backbone.width, dim)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return raw embeddings (n, d)."""
        embeddings: Tensor = self.head(self.pool(self.backbone(pixels)))
        return embeddings

    def pool(self, features: Tensor) -> Tensor:
        """Return (n, c): the average of a feature map (n, c, h, w), or its generalised mean (GeM)."""
        if self.power is None:
            return features.mean(dim=(2, 3))
        return features.clamp(min=1e-6).pow(self.power).mean(dim=(2, 3)).pow(1 / self.power)


class ExportModel(nn.Module):
    """The model that is exported as ONNX: unit embeddings, optionally whitened, and the norms of the raw ones."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, model: EmbeddingModel, *, whitening: tuple[Tensor, Tensor] | None = None) -> None:
        super().__init__()
        self.model = model
        self.whitens = whitening is not None
        if whitening is not None:
            self.register_buffer("mean", whitening[0])
            self.register_buffer("matrix", whitening[1])

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit `embedding` (n, d) and `certainty` (n,)."""
        raw = self.model(pixels)
        unit = F.normalize(raw, dim=1)
        if self.whitens:
            unit = F.normalize((unit - self.mean) @ self.matrix, dim=1)
        return unit, raw.norm(dim=1)


def load_backbone(name: str) -> tuple[SmallConvNet | TransformersBackbone, dict[str, Any] | None]:
    """Return a backbone and its `transformers` configuration as plain values (None for "small").

    Parameters
    ----------
    name:
        "small", a local folder that `transformers` wrote, or a model of the hub.
    """
    if name == SMALL:
        return SmallConvNet(), None
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
    return TransformersBackbone(network), network.config.to_dict()


def rebuild_backbone(config: dict[str, Any] | None) -> SmallConvNet | TransformersBackbone:
    """Return a run's backbone from its saved configuration, with random weights and without a download."""
    if config is None:
        return SmallConvNet()
    from transformers import AutoConfig, AutoModel

    values = dict(config)
    return TransformersBackbone(AutoModel.from_config(AutoConfig.for_model(values.pop("model_type"), **values)))


def backbone_preprocessing(name: str, *, size: int, crop_ratio: float) -> Preprocessing:
    """Return the preprocessing for a backbone, with its published mean and std, else 0.5."""
    if name == SMALL:
        return Preprocessing(size=size, view=crop_ratio)
    path: str | None = str(Path(name) / "preprocessor_config.json")
    if not Path(name).is_dir():
        from huggingface_hub import hf_hub_download
        from huggingface_hub.errors import EntryNotFoundError

        try:
            path = hf_hub_download(name, "preprocessor_config.json")
        except EntryNotFoundError:
            path = None
    if path is None or not Path(path).exists():
        return Preprocessing(size=size, view=crop_ratio)
    published = json.loads(Path(path).read_text())
    half = [0.5, 0.5, 0.5]
    mean, std = published.get("image_mean", half), published.get("image_std", half)
    return Preprocessing(size=size, view=crop_ratio, mean=tuple(mean), std=tuple(std))


def freeze_batch_norm(model: nn.Module) -> None:
    """Freeze the running statistics of every batch-norm layer."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


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
