"""The trained embedder: a backbone, a pooling and a linear layer.

Shapes: n photos, c channels of the backbone, d = embedding size. The model's output is the raw embedding, whose
direction is searched and whose norm is the certainty.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import InvalidParameter

from .backbones.base import Backbone
from .config import CROPS, MIRROR, VIEWS

CROP_SHARES = (0.875, 0.75)  # sides of the centre crops, as shares of the photo's side


class EmbeddingModel(nn.Module):
    """Embeds normalised pixels (n, 3, h, w) as raw embeddings (n, d)."""

    def __init__(self, backbone: Backbone, *, dim: int, pooling: str) -> None:
        super().__init__()
        if backbone.pooled and pooling == "gem":
            raise InvalidParameter("pooling", "be average for a backbone that pools its features itself", pooling)
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


class ViewedModel(nn.Module):
    """Averages the unit embeddings of views: the photo alone, with its mirror image, or with two centre crops."""

    def __init__(self, model: EmbeddingModel | PretrainedModel, views: str) -> None:
        super().__init__()
        if views not in VIEWS:
            raise InvalidParameter("views", f"be one of {', '.join(VIEWS)}", views)
        self.model = model
        self.views = views

    def parts(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return unit embeddings (n, d), and the mean norms of the raw embeddings of the views (n,)."""
        views = [pixels, *_views_of(pixels, self.views)]
        raw: Tensor = self.model(torch.cat(views))
        norms = raw.norm(dim=1)
        unit = F.normalize(raw, dim=1).reshape(len(views), -1, raw.shape[1]).mean(dim=0)
        return F.normalize(unit, dim=1), norms.reshape(len(views), -1).mean(dim=0)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return raw embeddings (n, d)."""
        unit, norms = self.parts(pixels)
        return unit * norms[:, None]


def _views_of(pixels: Tensor, views: str) -> list[Tensor]:
    """Return the further views of pixels (n, 3, size, size), of the same size."""
    if views == MIRROR:
        return [pixels.flip(3)]
    size = pixels.shape[3]
    edges = [round(size * (1 - share) / 2) for share in CROP_SHARES] if views == CROPS else []
    crops = [pixels[:, :, edge : size - edge, edge : size - edge] for edge in edges]
    return [F.interpolate(crop, size=(size, size), mode="bilinear", align_corners=False) for crop in crops]


class ExportModel(nn.Module):
    """The model that is exported as ONNX: unit embeddings, optionally whitened, and the norms of the raw ones."""

    mean: Tensor
    matrix: Tensor

    def __init__(
        self, model: EmbeddingModel | PretrainedModel | ViewedModel, *, whitening: tuple[Tensor, Tensor] | None = None
    ) -> None:
        super().__init__()
        self.model = model
        self.whitens = whitening is not None
        if whitening is not None:
            self.register_buffer("mean", whitening[0])
            self.register_buffer("matrix", whitening[1])

    def forward(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        """Return the unit `embedding` (n, d) and `certainty` (n,)."""
        if isinstance(self.model, ViewedModel):
            unit, certainty = self.model.parts(pixels)
        else:
            raw = self.model(pixels)
            unit, certainty = F.normalize(raw, dim=1), raw.norm(dim=1)
        if self.whitens:
            unit = F.normalize((unit - self.mean) @ self.matrix, dim=1)
        return unit, certainty


def freeze_batch_norm(model: nn.Module) -> None:
    """Freeze the running statistics of every batch-norm layer."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.eval()
