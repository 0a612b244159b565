"""Two backbones that see the same input, as one."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing

from .base import Backbone
from .load import check_size


class PairBackbone(Backbone):
    """Two backbones as one: normalised pixels (n, 3, h, w) to a unit vector (n, c1 + c2, 1, 1).

    The mean features of each are scaled to the same length, so both count equally. Pixels are normalised as the first
    backbone needs them, and normalised anew for the second.
    """

    pooled = True
    scale: Tensor  # (3, 1, 1), with `offset` from the pixels of the first to those of the second
    offset: Tensor

    def __init__(
        self, first: Backbone, second: Backbone, *, preprocessing: Preprocessing, second_preprocessing: Preprocessing
    ) -> None:
        super().__init__()
        self.parts = nn.ModuleList([first, second])
        self.width = first.width + second.width
        mean, std, second_mean, second_std = (
            torch.tensor(values)[:, None, None]
            for each in (preprocessing, second_preprocessing)
            for values in (each.mean, each.std)
        )
        self.register_buffer("scale", std / second_std)
        self.register_buffer("offset", (mean - second_mean) / second_std)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the concatenated unit vectors, each times the root of a half."""
        seen = pixels, pixels * self.scale + self.offset
        means = [part(each).mean(dim=(2, 3)) for part, each in zip(self.parts, seen, strict=True)]
        units = torch.cat([F.normalize(each, dim=1) for each in means], dim=1)
        return units[:, :, None, None] * math.sqrt(0.5)


def shared_size(backbones: dict[str, Backbone], sizes: tuple[int, int]) -> int:
    """Return the first of two published sizes that both backbones can read, given by name.

    Raises InvalidParameter, with both sizes, if there is none.
    """
    first, second = backbones
    for size in dict.fromkeys(sizes):
        try:
            for name, backbone in backbones.items():
                check_size(backbone, name, size)
        except InvalidParameter:
            continue
        return size
    rule = f"share an input size with {first} of {sizes[0]} pixels; its own is {sizes[1]}"
    raise InvalidParameter("--and", rule, second, remedy="Name another model")
