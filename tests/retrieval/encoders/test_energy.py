"""The energy output: its values beside those of torch, where it is left out, and that vectors stay the same."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from retrieval.encoders.energy import ENERGY, add_energy
from retrieval.images.region import GRID
from training.export.onnx_writer import quiet


class Maps(nn.Module):
    """A network with maps of 12 × 12 and 6 × 6 cells."""

    def __init__(self, *, pools: bool = True) -> None:
        super().__init__()
        self.first, self.second, self.pools = nn.Conv2d(3, 5, 3, stride=2, padding=1), nn.Conv2d(5, 7, 3, 2, 1), pools

    def maps(self, pixels: Tensor) -> tuple[Tensor, Tensor]:
        fine = F.relu(self.first(pixels))
        return fine, self.second(fine)  # the last map has negative values

    def forward(self, pixels: Tensor) -> Tensor:
        last = self.maps(pixels)[1]
        return last.mean(dim=(2, 3)) if self.pools else last.flatten(1)


def written(model: nn.Module, path: Path) -> onnx.ModelProto:
    torch.manual_seed(3)
    with quiet("torch.onnx"):
        program = torch.onnx.export(
            model.eval(),
            (torch.zeros(2, 3, 24, 24),),
            input_names=["pixels"],
            output_names=["embedding"],
            dynamo=True,
            opset_version=18,
            dynamic_shapes=({0: torch.export.Dim("n", min=1, max=64)},),
            verbose=False,
        )
    assert program is not None
    program.save(str(path))
    return onnx.load(path)


def run(model: onnx.ModelProto, pixels: np.ndarray) -> list[np.ndarray]:
    session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
    return session.run(None, {"pixels": pixels})


def test_the_energy_is_the_root_of_the_product_of_both_maps(tmp_path: Path) -> None:
    network = Maps()
    model = written(network, tmp_path / "m.onnx")
    pixels = np.random.default_rng(0).normal(size=(3, 3, 24, 24)).astype(np.float32)
    before = run(model, pixels)[0]
    assert add_energy(model)
    onnx.checker.check_model(model)
    vectors, energy = run(model, pixels)
    with torch.inference_mode():
        fine, last = network.maps(torch.from_numpy(pixels))
    both = [part.sum(dim=1, keepdim=True) if part is last else part.norm(dim=1, keepdim=True) for part in (last, fine)]
    sized = [F.interpolate(part, (GRID, GRID), mode="bilinear") for part in both]
    expected = (sized[0] * sized[1]).clamp(min=0).sqrt()[:, 0].numpy()
    assert energy.shape == (3, GRID, GRID)
    np.testing.assert_allclose(energy, expected, atol=2e-3)
    assert (expected > 0.1).any()
    np.testing.assert_array_equal(vectors, before)


def test_a_network_that_pools_no_map_tells_no_energy(tmp_path: Path) -> None:
    model = written(Maps(pools=False), tmp_path / "m.onnx")
    outputs = [output.name for output in model.graph.output]
    assert not add_energy(model)
    assert [output.name for output in model.graph.output] == outputs
    assert ENERGY not in outputs


def test_a_network_without_a_finer_map_tells_no_energy(tmp_path: Path) -> None:
    class Flat(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.only = nn.Conv2d(3, 5, 4, stride=4)

        def forward(self, pixels: Tensor) -> Tensor:
            return self.only(pixels).mean(dim=(2, 3))

    assert not add_energy(written(Flat(), tmp_path / "m.onnx"))


def test_a_vision_transformer_tells_no_energy(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.ViTConfig(
        hidden_size=16, num_hidden_layers=1, num_attention_heads=2, intermediate_size=16, image_size=24, patch_size=6
    )
    config._attn_implementation = "eager"

    class Tokens(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.network = transformers.ViTModel(config, add_pooling_layer=False)

        def forward(self, pixels: Tensor) -> Tensor:
            return self.network(pixels).last_hidden_state[:, 0]

    assert not add_energy(written(Tokens(), tmp_path / "m.onnx"))
