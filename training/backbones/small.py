"""A small convolutional backbone for training from scratch."""

from __future__ import annotations

from torch import Tensor, nn

from .base import Backbone

WIDTHS = (32, 64, 128, 256)


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
