"""Two backbones as one: both see their own normalisation, count equally, and share an input size."""

from __future__ import annotations

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing, to_tensor
from training.backbones import Backbone, PairBackbone, shared_size
from training.backbones.load import SmallConvNet

FIRST = Preprocessing(size=32, mean=(0.5, 0.4, 0.3), std=(0.2, 0.3, 0.4))
SECOND = Preprocessing(size=48, mean=(0.1, 0.0, 0.6), std=(1.0, 0.5, 0.7))


class Fixed(Backbone):
    """Reads squares of some sizes only."""

    width = 3

    def __init__(self, *sizes: int) -> None:
        super().__init__()
        self.sizes = sizes

    def forward(self, pixels: Tensor) -> Tensor:
        if pixels.shape[-1] not in self.sizes:
            raise RuntimeError(f"no {pixels.shape[-1]}")
        return pixels


class Large(nn.Module):
    """Multiplies what it gets."""

    def forward(self, pixels: Tensor) -> Tensor:
        return 100 * pixels


@torch.no_grad()
def test_each_sees_its_own_normalisation_and_counts_equally() -> None:
    torch.manual_seed(0)
    first, second = SmallConvNet().eval(), SmallConvNet().eval()
    second.blocks.append(Large())
    pair = PairBackbone(first, second, preprocessing=FIRST, second_preprocessing=SECOND).eval()
    photos = np.random.default_rng(0).integers(0, 256, (3, 32, 32, 3), dtype=np.uint8)
    seen = [torch.from_numpy(to_tensor(photos, each)) for each in (FIRST, SECOND)]
    made = pair(seen[0])
    assert made.shape == (3, pair.width, 1, 1) == (3, 512, 1, 1)
    assert torch.allclose(made.norm(dim=1), torch.ones(3, 1, 1))
    for part, backbone, pixels in zip(made.flatten(1).split(256, dim=1), (first, second), seen, strict=True):
        assert torch.allclose(part, F.normalize(backbone(pixels).mean(dim=(2, 3)), dim=1) * 0.5**0.5, atol=1e-5)


@pytest.mark.parametrize(
    ("first", "second", "size"),
    [((32, 48), (32, 48), 32), ((32, 48), (48,), 48), ((32,), (48, 32), 32)],
)
def test_the_size_is_the_first_one_that_suits_both(first: tuple[int], second: tuple[int], size: int) -> None:
    assert shared_size({"a": Fixed(*first), "b": Fixed(*second)}, (32, 48)) == size


def test_without_a_size_for_both_the_message_has_both() -> None:
    with pytest.raises(
        InvalidParameter, match=r"--and must share an input size with a of 32 pixels; its own is 48, got 'b'"
    ):
        shared_size({"a": Fixed(32), "b": Fixed(48)}, (32, 48))
