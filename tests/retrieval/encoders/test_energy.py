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

from retrieval.bundle.embedder import ENERGY, Embedder, golden_pixels
from retrieval.encoders.energy import add_energy
from retrieval.images import Preprocessing
from retrieval.images.region import GRID
from training.config import LITE0
from training.export.onnx_writer import quiet, write_onnx
from training.export.pretrained import Pretrained
from training.export.quantization import to_fp16, to_int8

from .models import HALF, bundle_of, write_torch

PIXELS = np.concatenate([golden_pixels(64, seed=seed) for seed in range(4)])


@pytest.fixture(scope="module")
def lite0(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return Lite0 at 64 pixels as our own export writes it."""
    path = tmp_path_factory.mktemp("lite0") / "lite0.onnx"
    write_onnx(Pretrained.load(LITE0, size=64).model, path, size=64)
    return path


def test_a_file_of_another_maker_tells_the_energy_that_our_own_export_tells(lite0: Path, tmp_path: Path) -> None:
    written(Pretrained.load(LITE0, size=64).model, tmp_path / "plain.onnx", side=64)
    theirs = bundle_of(tmp_path / "plain.onnx", tmp_path / "bundle").embedder().embed_pixels(PIXELS)
    ours = Embedder(lite0, Preprocessing(64, mean=HALF, std=HALF)).embed_pixels(PIXELS)
    assert theirs.energies is not None
    assert ours.energies is not None
    assert ours.energies.max() > 0.1
    np.testing.assert_allclose(theirs.energies, ours.energies, atol=1e-4)
    np.testing.assert_allclose(theirs.vectors, ours.vectors, atol=1e-5)


def test_lower_precisions_of_another_maker_are_taken(lite0: Path, tmp_path: Path) -> None:
    to_fp16(lite0, tmp_path / "fp16.onnx")
    to_int8(lite0, tmp_path / "int8.onnx", [np.random.default_rng(0).normal(size=(8, 3, 64, 64)).astype(np.float32)])
    for precision in ("fp16", "int8"):
        bundle = bundle_of(tmp_path / f"{precision}.onnx", tmp_path / precision)
        assert bundle.precision == precision
        assert (bundle.embedder().embed_pixels(PIXELS).energies is not None) == (precision == "int8")


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


def written(model: nn.Module, path: Path, *, side: int = 24) -> onnx.ModelProto:
    torch.manual_seed(3)
    with quiet("torch.onnx"):
        program = torch.onnx.export(
            model.eval(),
            (torch.zeros(2, 3, side, side),),
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
    path = write_torch(tmp_path / "vit.onnx", Tokens(), {"image": torch.zeros(2, 3, 24, 24)}, ["vector"])
    assert bundle_of(path, tmp_path / "bundle").embedder().embed_pixels(golden_pixels(24)).energies is None
