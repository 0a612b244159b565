"""Models of `timm` and `open_clip`, by small packages of these names that have what is called of them.

They mirror timm 1.0.31 and open_clip 3.3.0, with which the same calls were tried on models with random weights.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
import torch
from torch import nn

from retrieval.errors import InvalidParameter, MissingDependency
from retrieval.images import Preprocessing
from training.backbones import load_backbone, published_preprocessing, rebuild_backbone
from training.config import Settings
from training.export.pretrained import Pretrained, export_pretrained
from training.loop.recipe import initial_model

NETWORK = """
import torch
from torch import nn

class Tower(nn.Module):
    def __init__(self, tokens):
        super().__init__()
        self.last, self.tokens = nn.Conv2d(3, 5, 4, stride=4), tokens

    def forward(self, pixels):
        made = self.last(pixels)
        vectors = made.mean(dim=(2, 3))
        return {"": vectors, "and": (vectors, made), "only": made}[self.tokens]
"""
TIMM = f"""
from . import data
{NETWORK}

def create_model(name, pretrained=False, *, num_classes):
    assert num_classes == 0
    tokens = "only" if name == "tokens" else ""
    if name not in ("vit.laion", "vit_squash", "vit_border", "vit_wide", "tokens"):
        raise RuntimeError(f"Unknown model ({{name}})")
    model = Tower(tokens)
    model.name = name
    if pretrained:
        nn.init.constant_(model.last.bias, 7)
    return model
"""
TIMM_DATA = """
def resolve_model_data_config(model):
    _, _, mode = model.name.partition("_")
    return {
        "input_size": (3, 32, 48 if mode == "wide" else 32), "interpolation": "bicubic", "mean": (0.1, 0.2, 0.3),
        "std": (0.4, 0.5, 0.6), "crop_pct": 0.9, "crop_mode": mode if mode in ("squash", "border") else "center",
    }
"""
OPEN_CLIP = f"""
import logging
{NETWORK}

def create_model(name, tag=None, *, load_weights, require_pretrained, pretrained_text):
    assert not pretrained_text
    if name.startswith("hf-hub:"):
        assert tag is None
    elif require_pretrained and tag != "laion2b":
        logging.error("a line that open_clip prints")
        raise RuntimeError("Required pretrained weights could not be loaded")
    model = nn.Module()
    model.visual, model.transformer = Tower("and"), nn.Linear(2, 2)
    model.size = 32 if tag else (32, 32)
    if load_weights:
        nn.init.constant_(model.visual.last.bias, 7)
    return model

def get_model_preprocess_cfg(model):
    return {{"size": model.size, "mode": "RGB", "mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6],
        "interpolation": "bicubic", "resize_mode": "shortest", "fill_color": 0}}
"""
NAMES = ("timm/vit.laion", "open_clip/ViT-B-32:laion2b", "open_clip/hf-hub:laion/ViT")


@pytest.fixture
def packages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Put the packages in front of those that are installed."""
    files = {"timm/__init__.py": TIMM, "timm/data.py": TIMM_DATA, "open_clip/__init__.py": OPEN_CLIP}
    for name, text in files.items():
        path = tmp_path / "packages" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    monkeypatch.syspath_prepend(tmp_path / "packages")
    for name in ("timm", "timm.data", "open_clip"):
        monkeypatch.setitem(sys.modules, name, None)  # so that it is taken away again
        monkeypatch.delitem(sys.modules, name)
    return tmp_path / "packages"


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize("name", NAMES)
@torch.no_grad()
def test_a_model_brings_its_vector_its_weights_and_its_preprocessing(name: str) -> None:
    view = 32 / 35 if name.startswith("timm") else 1  # timm resizes to floor(32 / 0.9)
    expected = Preprocessing(size=32, view=view, mean=(0.1, 0.2, 0.3), std=(0.4, 0.5, 0.6))
    assert published_preprocessing(name) == expected
    backbone, record = load_backbone(name)
    network = backbone.network
    assert isinstance(network, nn.Module)
    pixels = torch.randn(2, 3, 32, 32)
    vectors = network(pixels)
    vectors = vectors[0] if isinstance(vectors, tuple) else vectors
    assert backbone.pooled
    assert backbone.width == 5
    assert torch.equal(backbone(pixels), vectors[:, :, None, None])
    assert set(dict(network.named_parameters())) == {"last.weight", "last.bias"}  # without the tower of texts
    assert network.last.bias[0] == 7
    again = rebuild_backbone(json.loads(json.dumps(record)))
    assert again.network.last.bias[0] != 7  # type: ignore[union-attr,index]
    again.load_state_dict(backbone.state_dict())
    assert torch.equal(again(pixels), backbone(pixels))


@pytest.mark.usefixtures("packages", "onnx_written_once")
def test_a_model_is_exported_paired_and_trained(tmp_path: Path) -> None:
    alone = Pretrained.load(NAMES[0])
    bundle = export_pretrained(alone, tmp_path / "alone")
    assert (bundle.dim, bundle.manifest["evidence"]["pretrained"]) == (5, NAMES[0])
    assert Pretrained.load_pair(*NAMES[:2]).model.dim == 10
    model, _ = initial_model(Settings(catalogue="", backbone=NAMES[1], size=32))
    assert model(torch.zeros(2, 3, 32, 32)).shape == (2, 5)


@pytest.mark.usefixtures("packages")
def test_a_squashed_photo_stays_one() -> None:
    assert published_preprocessing("timm/vit_squash").squash


@pytest.mark.usefixtures("packages")
@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("timm/nothing", r"that timm can load \(Unknown model \(nothing\)\)"),
        ("timm/tokens", r"shape \(1, 5, 8, 8\) in place of one vector"),
        ("timm/vit_border", "vit_border: 32 × 32, border"),
        ("timm/vit_wide", "vit_wide: 32 × 48, center"),
        ("open_clip/ViT-B-32", r"Required pretrained weights.*open_clip\.list_pretrained\(\)"),
    ],
)
def test_what_cannot_be_used_is_refused(name: str, says: str, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(InvalidParameter, match=says):
        load_backbone(name)
    assert not caplog.records  # the message says it once


def test_a_missing_package_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    for name in ("timm", "open_clip"):
        monkeypatch.delitem(sys.modules, name, raising=False)
    with pytest.raises(MissingDependency, match=r"timm is not installed. pip install timm"):
        load_backbone("timm/vit")
    with pytest.raises(MissingDependency, match="pip install open_clip_torch"):
        published_preprocessing("open_clip/vit:tag")


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import torchvision_of_nobody", "ModuleNotFoundError: No module named 'torchvision_of_nobody'"),
        ("raise RuntimeError('operator torchvision::nms does not exist')", "RuntimeError: operator torchvision::nms"),
    ],
)
def test_a_package_that_cannot_be_imported_says_why(packages: Path, text: str, says: str) -> None:
    (packages / "timm" / "__init__.py").write_text(text)
    with pytest.raises(MissingDependency, match=says):
        load_backbone("timm/vit.laion")


@pytest.mark.usefixtures("packages")
def test_a_local_folder_of_that_name_is_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("timm/vit.laion").mkdir(parents=True)
    with pytest.raises(InvalidParameter, match=r"readable preprocessor_config\.json"):
        published_preprocessing("timm/vit.laion")
