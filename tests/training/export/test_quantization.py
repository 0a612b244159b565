from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers  # loads its models where they are named
from onnx import TensorProto
from torch import nn

from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.images import Preprocessing, to_tensor
from training.backbones.base import Backbone
from training.backbones.load import SmallConvNet
from training.backbones.transformers_backbone import TransformersBackbone
from training.export.onnx_writer import write_onnx
from training.export.quantization import DYNAMIC, FIRST, STATIC, _from_head, to_fp16, to_int8
from training.model import EmbeddingModel

from ...world import draw

SIZE = 32
SEEN = Preprocessing(size=SIZE)


def squares(count: int) -> np.ndarray:
    """Return photos as a model sees them, uint8 (n, 32, 32, 3)."""
    return np.stack([np.asarray(draw(item, 0).resize((SIZE, SIZE))) for item in range(count)])


def batches() -> list[np.ndarray]:
    return list(np.split(to_tensor(squares(64), SEEN), 8))


def settled(model: EmbeddingModel) -> EmbeddingModel:
    """Give every batch-norm statistics and scales of its own, as training does: channels of very different ranges."""
    generator = torch.Generator().manual_seed(0)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.weight.data = torch.rand(module.num_features, generator=generator) * 2 + 0.1
            module.bias.data = torch.randn(module.num_features, generator=generator)
    model.train()
    with torch.no_grad():
        for batch in batches():
            model(torch.from_numpy(batch))
    return model.eval()


class Depthwise(Backbone):
    """Pairs of a depthwise and a pointwise convolution, as a MobileNet has."""

    width = 64

    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = [nn.Conv2d(3, 64, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(64), nn.ReLU6()]
        for number in range(2):
            stride = 2 - number
            parts += [nn.Conv2d(64, 64, 3, stride=stride, padding=1, groups=64, bias=False), nn.BatchNorm2d(64)]
            parts += [nn.ReLU6(), nn.Conv2d(64, 64, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU6()]
        self.blocks = nn.Sequential(*parts)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = self.blocks(pixels)
        return features


def network(name: str) -> EmbeddingModel:
    torch.manual_seed(0)
    if name == "depthwise":
        backbone: Backbone = Depthwise()
    elif name == "resnet":
        config = transformers.ResNetConfig(embedding_size=32, hidden_sizes=[32, 64], depths=[1, 2], layer_type="basic")
        backbone = TransformersBackbone(transformers.AutoModel.from_config(config))
    elif name == "vit":
        config = transformers.ViTConfig(
            hidden_size=64,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=128,
            image_size=32,
            patch_size=8,
        )
        backbone = TransformersBackbone(transformers.AutoModel.from_config(config))
    else:
        backbone = SmallConvNet()
    pooling = "gem" if name == "small, gem" else "average"
    return settled(EmbeddingModel(backbone, dim=24, pooling=pooling))  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """Return what writes a network in fp32, once each."""
    folder = tmp_path_factory.mktemp("networks")

    def written(name: str) -> Path:
        path = folder / f"{name}.onnx"
        if not path.exists():
            model = network(name)
            write_onnx(model, path, size=SIZE)
        return path

    return written


def run(path: Path) -> Embeddings:
    return Embedder(path, SEEN).embed_pixels(squares(80)[64:])


def cosine(one: Path, other: Path) -> float:
    return float((run(one).vectors * run(other).vectors).sum(axis=1).mean())


def operators(path: Path) -> Counter[str]:
    return Counter(node.op_type for node in onnx.load(path).graph.node)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "how", "floor"),
    [
        ("small", STATIC, 0.99),
        ("small, gem", STATIC, 0.99),
        ("depthwise", STATIC, 0.9),
        ("resnet", STATIC, 0.99),
        ("vit", DYNAMIC, 0.99),
    ],
)
def test_int8_is_faithful_for_every_kind_of_backbone(
    name: str, how: str, floor: float, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    small = tmp_path / "small.onnx"
    assert to_int8(whole(name), small, batches()) == how
    assert list(tmp_path.iterdir()) == [small]
    assert small.stat().st_size < 0.75 * whole(name).stat().st_size
    assert cosine(whole(name), small) > floor
    alone, together = Embedder(small, SEEN).embed_pixels(squares(1)), Embedder(small, SEEN).embed_pixels(squares(4))
    assert np.abs(alone.vectors[0] - together.vectors[0]).max() < 1e-5
    if how == DYNAMIC:
        assert operators(small)["MatMulInteger"] >= 8
        return
    graph = onnx.load(small).graph
    made_by = {output: node.op_type for node in graph.node for output in node.output}
    convolutions = [node for node in graph.node if node.op_type == "Conv"]
    in_int8 = [made_by.get(node.input[1]) == "DequantizeLinear" for node in convolutions]
    assert in_int8 == [False] * FIRST + [True] * (len(convolutions) - FIRST)
    assert not any(
        made_by.get(name) == "DequantizeLinear"
        for node in graph.node
        if node.op_type == "Gemm"
        for name in node.input[1:]
    )


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "depthwise", "vit"])
def test_fp16_is_smaller_and_leaves_head_and_ends_in_fp32(
    name: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    half = tmp_path / "half.onnx"
    to_fp16(whole(name), half)
    assert list(tmp_path.iterdir()) == [half]
    assert half.stat().st_size < 0.85 * whole(name).stat().st_size
    made = run(half)
    assert made.vectors.dtype == made.certainties.dtype == np.float32
    assert np.allclose(np.linalg.norm(made.vectors, axis=1), 1, atol=1e-6)
    assert cosine(whole(name), half) > 0.999
    model = onnx.load(half)
    kinds = {tensor.name: tensor.data_type for tensor in model.graph.initializer}
    head = next(node for node in model.graph.node if node.name == _from_head(onnx.load(whole(name)))[0])
    assert all(kinds[weight] == TensorProto.FLOAT for weight in head.input[1:] if weight in kinds)
