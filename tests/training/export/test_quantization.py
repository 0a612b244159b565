import itertools
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
import transformers  # loads its models where they are named
from onnx import TensorProto, helper, numpy_helper
from torch import nn

from retrieval.bundle.embedder import Embedder, Embeddings
from retrieval.images import Preprocessing, to_tensor
from training.backbones.base import Backbone
from training.backbones.small import SmallConvNet
from training.backbones.transformers_backbone import TransformersBackbone
from training.evaluation.distance_selection import Whitening
from training.export.fp16 import to_fp16
from training.export.onnx_graph import after_head
from training.export.onnx_writer import write_onnx
from training.export.quantization import DYNAMIC, FIRST, STATIC, round_again, to_int8
from training.export.rounding import Moments, input_moments, round_weights
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
    """Return what writes a network in fp32, whitened so that its vectors spread, once each."""
    folder = tmp_path_factory.mktemp("networks")

    def written(name: str) -> Path:
        path = folder / f"{name}.onnx"
        if not path.exists():
            model = network(name)
            with torch.no_grad():
                raw = torch.cat([model(torch.from_numpy(batch)) for batch in batches()])
            unit = torch.nn.functional.normalize(raw, dim=1).numpy()
            write_onnx(model, path, size=SIZE, whitening=Whitening.fit(unit))
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
        ("depthwise", STATIC, 0.97),  # untrained, and whitening spreads what little it tells apart
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
def test_rounding_again_is_what_makes_depthwise_convolutions_faithful(
    whole: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    exact, good, bad = whole("depthwise"), tmp_path / "good.onnx", tmp_path / "bad.onnx"
    to_int8(exact, good, batches())
    monkeypatch.setattr("training.export.quantization.round_again", lambda *_: None)
    to_int8(exact, bad, batches())
    assert 1 - cosine(exact, good) < (1 - cosine(exact, bad)) / 2


def test_a_bias_takes_back_what_rounding_adds_to_the_mean() -> None:
    """Two groups of one channel: weights 0.5 and 0.3 become 0.4 and 0.4, the means are 3 and 7, a step is 0.1."""

    def model(nodes: list[onnx.NodeProto], tensors: dict[str, np.ndarray]) -> onnx.ModelProto:
        held = [numpy_helper.from_array(value, name) for name, value in tensors.items()]
        shape = helper.make_tensor_value_info("x", TensorProto.FLOAT, [1, 2, 4, 4])
        return helper.make_model(helper.make_graph(nodes, "one", [shape], [], held))

    conv = helper.make_node("Conv", ["x", "w", "b"], ["y"], name="conv", group=2)
    weight = np.array([0.5, 0.3], np.float32).reshape(2, 1, 1, 1)
    exact = model([conv], {"w": weight, "b": np.zeros(2, np.float32)})
    rounded = model(
        [
            helper.make_node("DequantizeLinear", ["w8", "w.scale", "w.zero"], ["w"], axis=0),
            helper.make_node("DequantizeLinear", ["b32", "b.scale"], ["b"], axis=0),
            conv,
        ],
        {
            "w8": np.array([9, 9], np.int8).reshape(2, 1, 1, 1),
            "w.scale": np.array([0.2, 0.4], np.float32),
            "w.zero": np.zeros(2, np.int8),
            "b32": np.array([10, 20], np.int32),
            "b.scale": np.array([0.1, 0.1], np.float32),
        },
    )
    round_again(exact, rounded, {"conv": Moments(np.array([[3.0], [7.0]]), None)})
    held = {tensor.name: numpy_helper.to_array(tensor) for tensor in rounded.graph.initializer}
    assert held["w8"].ravel().tolist() == [2, 1]
    assert held["b32"].tolist() == [10 + 3, 20 - 7]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["small", "depthwise", "vit"])
def test_fp16_is_smaller_and_leaves_head_and_ends_in_fp32(
    name: str, whole: Callable[[str], Path], tmp_path: Path
) -> None:
    half = tmp_path / "half.onnx"
    to_fp16(whole(name), half)
    assert list(tmp_path.iterdir()) == [half]
    assert half.stat().st_size < 0.75 * whole(name).stat().st_size
    made = run(half)
    assert made.vectors.dtype == made.certainties.dtype == np.float32
    assert np.allclose(np.linalg.norm(made.vectors, axis=1), 1, atol=1e-6)
    assert cosine(whole(name), half) > 0.999
    kinds = {tensor.name: tensor.data_type for tensor in onnx.load(half).graph.initializer}
    model = onnx.load(half)
    head = next(node for node in model.graph.node if node.name in after_head(model))
    assert all(kinds[weight] == TensorProto.FLOAT for weight in head.input[1:])


def test_weights_are_rounded_by_what_they_see() -> None:
    """Of all ways to round three weights of two outputs up or down, the best by brute force is hardly better."""
    generator = np.random.default_rng(0)
    mixing = generator.normal(size=(3, 3)) + 2  # inputs that move together
    covariance = (mixing @ mixing.T)[None]
    weights, scale = generator.normal(size=(1, 2, 3)), np.full((1, 2, 1), 0.05)
    corners = np.array(list(itertools.product((0, 1), repeat=3)))

    def error(whole: np.ndarray) -> np.ndarray:
        off = weights - whole * scale
        return np.einsum("gop,gpq,goq->o", off, covariance, off)

    every = [error(np.floor(weights / scale) + corner) for corner in corners]
    best, nearest = np.min(every, axis=0), error(np.rint(weights / scale))
    made = round_weights(weights, scale, covariance)
    assert (made == np.rint(made)).all()
    assert (error(made) <= 1.5 * best).all()
    assert error(made).sum() < 0.5 * nearest.sum()
    assert (round_weights(weights, scale, None) == np.rint(weights / scale)).all()
    assert round_weights(weights * 1000, scale, covariance).max() <= 127


@pytest.mark.parametrize(("groups", "stride", "dilation"), [(1, 1, 1), (2, 2, 1), (4, 1, 2)])
def test_what_a_convolution_sees_is_measured_as_torch_unfolds_it(groups: int, stride: int, dilation: int) -> None:
    values = np.random.default_rng(0).normal(size=(3, 4, 9, 9)).astype(np.float32)
    attributes = {"pads": [1, 1, 1, 1], "strides": [stride] * 2, "dilations": [dilation] * 2, "group": groups}
    conv = helper.make_node("Conv", ["pixels", "w"], ["y"], name="conv", **attributes)
    tensor = numpy_helper.from_array(np.zeros((4, 4 // groups, 3, 3), np.float32), "w")
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, None) for name in ("pixels", "y")]
    ends[0].CopyFrom(helper.make_tensor_value_info("pixels", TensorProto.FLOAT, ["n", 4, 9, 9]))
    graph = helper.make_graph([conv], "one", ends[:1], ends[1:], [tensor])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)
    found = input_moments(model, [conv], [values[:2], values[2:]])["conv"]
    unfolded = torch.nn.functional.unfold(torch.from_numpy(values), 3, dilation, 1, stride).numpy()  # (n, 36, places)
    seen = unfolded.transpose(1, 0, 2).reshape(groups, 36 // groups, -1)
    assert np.allclose(found.mean, seen.mean(axis=2), atol=1e-6)
    assert found.covariance is not None
    for group in range(groups):
        assert np.allclose(found.covariance[group], np.cov(seen[group], bias=True), atol=1e-5)
