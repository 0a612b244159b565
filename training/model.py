"""The trained embedder: a backbone, a pooling and a linear layer.

Shapes: n photos, c channels of the backbone, d = embedding size. The model's output is the raw embedding, whose
direction is searched and whose norm is the certainty.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.encoders.adapt import Projection
from retrieval.errors import InvalidParameter

from .backbones.base import Backbone


class EmbeddingModel(nn.Module):
    """Embeds normalised pixels (n, 3, h, w) as raw embeddings (n, d)."""

    def __init__(self, backbone: Backbone, *, dim: int, pooling: str) -> None:
        super().__init__()
        if backbone.pooled and pooling == "gem":
            raise InvalidParameter("pooling", "be average for a backbone that pools its features itself", pooling)
        self.backbone = backbone
        self.power = nn.Parameter(torch.tensor(3.0)) if pooling == "gem" else None
        self.head = nn.Linear(backbone.width, dim)
        self.dim = dim

    def forward(self, pixels: Tensor) -> Tensor:
        """Return raw embeddings (n, d)."""
        embeddings: Tensor = self.head(self.pool(self.backbone(pixels)))
        return embeddings

    def pool(self, features: Tensor) -> Tensor:
        """Return (n, c): the average of a feature map (n, c, h, w), or its generalised mean (GeM)."""
        if self.power is None:
            return features.mean(dim=(2, 3))
        return features.clamp(min=1e-6).pow(self.power).mean(dim=(2, 3)).pow(1 / self.power)


class PretrainedModel(nn.Module):
    """Embeds normalised pixels (n, 3, h, w) as the mean features (n, c) of a backbone, or their projection."""

    def __init__(self, backbone: Backbone, *, projection: nn.Module | None = None) -> None:
        super().__init__()
        self.backbone = backbone
        self.projection = projection
        self.dim = backbone.width

    def forward(self, pixels: Tensor) -> Tensor:
        """Return raw embeddings (n, c)."""
        features: Tensor = self.backbone(pixels)
        means = features.mean(dim=(2, 3))
        return means if self.projection is None else self.projection(means)


class ProjectionLayer(nn.Module):
    """A fitted projection in torch, to be exported within the ONNX graph."""

    mean: Tensor
    matrix: Tensor

    def __init__(self, projection: Projection) -> None:
        super().__init__()
        self.power = projection.power
        self.register_buffer("mean", torch.from_numpy(projection.mean.astype(np.float32)))
        self.register_buffer("matrix", torch.from_numpy(projection.matrix.astype(np.float32)))

    def forward(self, features: Tensor) -> Tensor:
        """Return the projected features (n, c)."""
        if self.power != 1:
            features = features.sign() * features.abs().pow(self.power)
        return (features - self.mean) @ self.matrix


class FoldModels(nn.Module):
    """Embeds normalised pixels by several models: their unit embeddings one after the other (n, models · d)."""

    def __init__(self, models: Sequence[EmbeddingModel], *, share_backbone: bool) -> None:
        super().__init__()
        self.models = nn.ModuleList(models)
        self.share_backbone = share_backbone
        self.dim = len(models) * models[0].dim

    def forward(self, pixels: Tensor) -> Tensor:
        """Return (n, models · d)."""
        models: list[EmbeddingModel] = list(self.models)  # type: ignore[arg-type]
        if self.share_backbone:
            pooled = models[0].pool(models[0].backbone(pixels))
            made = [model.head(pooled) for model in models]
        else:
            made = [model(pixels) for model in models]
        return torch.cat([F.normalize(each, dim=1) for each in made], dim=1)


class ExportModel(nn.Module):
    """The model that is exported as ONNX: unit embeddings, and the norms of the raw ones."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit `embedding` (n, d) and `certainty` (n,)."""
        raw = self.model(pixels)
        return F.normalize(raw, dim=1), raw.norm(dim=1)


def freeze_batch_norm(model: nn.Module) -> None:
    """Freeze the running statistics of every batch-norm layer."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()


def choose_device() -> torch.device:
    """Return the first GPU, or the CPU where there is none (or CUDA_VISIBLE_DEVICES hides it)."""
    return torch.device("cuda" if torch.cuda.is_available() else "cpu")
