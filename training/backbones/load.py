"""Load a backbone by its name, or rebuild it from the record that a run keeps."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from training.config import LITE0, SMALL

from .base import Backbone
from .choice import resolved
from .lite0 import EfficientNetLite0
from .small import SmallConvNet
from .transformers_backbone import TransformersBackbone

FAMILY = "family"


def load_backbone(name: str) -> tuple[Backbone, dict[str, Any] | None]:
    """Return a backbone with its pretrained weights, and the record to rebuild it from (None for "small").

    Parameters
    ----------
    name:
        "small" (random weights), "efficientnet-lite0", a local folder that `transformers` wrote, a model of the
        Hugging Face hub, or "auto" (`choice`).
    """
    name = resolved(name)
    if name == SMALL:
        return SmallConvNet(), None
    if name == LITE0:
        return EfficientNetLite0.pretrained(), {FAMILY: LITE0}
    backbone = TransformersBackbone.pretrained(name)
    return backbone, backbone.record


def rebuild_backbone(record: Mapping[str, Any] | None) -> Backbone:
    """Return a run's backbone with random weights and without a download."""
    if record is None:
        return SmallConvNet()
    if record.get(FAMILY) == LITE0:
        return EfficientNetLite0()
    return TransformersBackbone.from_config(record)
