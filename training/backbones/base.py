"""The base of all backbones."""

from __future__ import annotations

from torch import nn


class Backbone(nn.Module):
    """Maps normalised pixels (n, 3, h, w) to a feature map (n, c, h', w').

    The tokens of a vision transformer are a map (n, c, tokens, 1), and features that the network pooled itself are one
    of a single pixel (n, c, 1, 1).
    """

    width: int  # c
    pooled = False  # whether the map is a single pixel
