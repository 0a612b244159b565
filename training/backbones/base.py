"""The base of all backbones."""

from __future__ import annotations

import torch
from torch import nn


class Backbone(nn.Module):
    """Maps normalised pixels (n, 3, h, w) to a feature map (n, c, h', w').

    The tokens of a vision transformer are a map (n, c, tokens, 1), and features that the network pooled itself are one
    of a single pixel (n, c, 1, 1).
    """

    width: int  # c
    pooled = False  # whether the map is a single pixel


@torch.no_grad()
def width_of(backbone: Backbone, side: int) -> int:
    """Return c from one forward pass with an input of some side, because configurations name it differently."""
    was_training = backbone.training
    backbone.eval()
    features = backbone(torch.zeros(1, 3, side, side))
    backbone.train(was_training)
    return int(features.shape[1])
