"""Load a backbone by its name, or rebuild it from the record of a run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from training.config import LITE0, SMALL

from .base import Backbone
from .hub import resolved
from .lite0 import EfficientNetLite0
from .packaged import is_packaged, load_packaged, untagged
from .transformers_backbone import TransformersBackbone

FAMILY, PACKAGED = "family", "packaged"
WIDTHS = (32, 64, 128, 256)  # of the layers of SmallConvNet


class SmallConvNet(Backbone):
    """A small convolutional backbone: (n, 3, h, w) to (n, 256, h/16, w/16)."""

    width = WIDTHS[-1]

    def __init__(self) -> None:
        super().__init__()
        blocks: list[nn.Module] = []
        channels = 3
        for width in WIDTHS:
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


def load_backbone(name: str) -> tuple[Backbone, dict[str, Any] | None]:
    """Return a backbone with its pretrained weights, and the record to rebuild it from (None for "small").

    Parameters
    ----------
    name:
        "small" (random weights), "efficientnet-lite0", a local folder that `transformers` wrote, a model of the
        Hugging Face hub, "timm/NAME" or "open_clip/NAME:WEIGHTS" (`load_packaged`), or "auto" (`choose_backbone`).
    """
    name = resolved(name)
    if name == SMALL:
        return SmallConvNet(), None
    if name == LITE0:
        return EfficientNetLite0.pretrained(), {FAMILY: LITE0}
    if is_packaged(name):
        return load_packaged(name)[0], {FAMILY: PACKAGED, "name": untagged(name)}
    backbone = TransformersBackbone.pretrained(name)
    return backbone, backbone.record


@torch.no_grad()
def check_size(backbone: Backbone, name: str, size: int) -> None:
    """Raise InvalidParameter if a backbone cannot read squares of this size."""
    was_training = backbone.training
    backbone.eval()
    try:
        features = backbone(torch.zeros(1, 3, size, size))
    except (RuntimeError, ValueError, AssertionError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidParameter(
            "size", f"suit the backbone {name} ({reason})", size, remedy="Use the size that it was trained with"
        ) from error
    finally:
        backbone.train(was_training)
    if not features.isfinite().all():
        raise InvalidParameter("size", f"suit the backbone {name}, whose features are then not finite", size)


def rebuild_backbone(record: Mapping[str, Any] | None) -> Backbone:
    """Return a run's backbone with random weights and without a download."""
    if record is None:
        return SmallConvNet()
    if record.get(FAMILY) == LITE0:
        return EfficientNetLite0()
    if record.get(FAMILY) == PACKAGED:
        return load_packaged(record["name"], weights=False)[0]
    return TransformersBackbone.from_record(record)
