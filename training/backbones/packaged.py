"""Image models of the packages `timm` and `open_clip`, which are used where they are installed.

Nothing of ours needs them, nor torchvision, which both import. Every model gives its own vector of the image: timm's
pooled features before its classifier, and the vector of open_clip's vision tower in the space of both towers.
"""

from __future__ import annotations

import logging
import math
from importlib import import_module
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from retrieval.errors import InvalidParameter, MissingDependency, lacks
from retrieval.images import Preprocessing

from .base import Backbone, width_of

TIMM, OPEN_CLIP = "timm", "open_clip"
INSTALLED_BY = {TIMM: "pip install timm", OPEN_CLIP: "pip install open_clip_torch"}
SQUASH = "squash"
MODES = ("center", "shortest", SQUASH)  # ways to a square input that ours has; others pad a photo
SCHEMAS = ("hf-hub:", "local-dir:")  # of names that stand for a place with configuration and weights


class PackagedBackbone(Backbone):
    """A network with one vector per image: normalised pixels (n, 3, h, w) to (n, c, 1, 1)."""

    pooled = True

    def __init__(self, network: nn.Module, *, size: int) -> None:
        super().__init__()
        self.network = network
        self.width = width_of(self, size)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the network's vectors; those of a tower that gives tokens too come first."""
        made = self.network(pixels)
        vectors: Tensor = made[0] if isinstance(made, tuple) else made
        if vectors.dim() != 2:
            raise ValueError(f"it gives features of shape {tuple(vectors.shape)} in place of one vector per image")
        return vectors[:, :, None, None]


def is_packaged(name: str) -> bool:
    """Return whether a name is `timm/NAME` or `open_clip/NAME`, and no local folder."""
    package, _, model = name.partition("/")
    return package in INSTALLED_BY and bool(model) and not Path(name).is_dir()


def load_packaged(name: str, *, weights: bool = True) -> tuple[PackagedBackbone, Preprocessing]:
    """Return a model with its weights or random ones, and the preprocessing that it was published with.

    Parameters
    ----------
    name:
        `timm/NAME`, `open_clip/NAME:WEIGHTS` or, of both, `PACKAGE/hf-hub:ORGANISATION/NAME` and
        `PACKAGE/local-dir:FOLDER`. Without weights, `open_clip/NAME` will do.

    Raises
    ------
    MissingDependency
        If the package is not installed or cannot be imported.
    InvalidParameter
        If the package cannot load the model, it gives no vector of the image, or its input is no square of our kinds.
    """
    package, _, model = name.partition("/")
    module = _imported(package)
    try:
        network, preprocessing = (_from_timm if package == TIMM else _from_open_clip)(module, model, weights)
        return PackagedBackbone(network, size=preprocessing.size), preprocessing
    except InvalidParameter:  # a ValueError too
        raise
    except (AssertionError, KeyError, OSError, RuntimeError, TypeError, ValueError) as error:
        raise InvalidParameter(
            "backbone",
            f"be a model that {package} can load ({_line(error)})",
            name,
            remedy=f"{package}.list_pretrained() lists its models and their weights",
        ) from error


def untagged(name: str) -> str:
    """Return the name of a network without that of its weights, where it is built without them."""
    return name if any(schema in name for schema in SCHEMAS) or name.startswith(TIMM) else name.partition(":")[0]


def _from_timm(timm: Any, name: str, weights: bool) -> tuple[nn.Module, Preprocessing]:
    network = timm.create_model(name, pretrained=weights, num_classes=0)
    config = timm.data.resolve_model_data_config(network)
    size = config["input_size"][1:]
    view = size[0] / math.floor(size[0] / config["crop_pct"])
    return network, _preprocessing(name, size, config, mode=config["crop_mode"], view=view)


def _from_open_clip(open_clip: Any, name: str, weights: bool) -> tuple[nn.Module, Preprocessing]:
    model, _, tag = (name, "", "") if name.startswith(SCHEMAS) else name.partition(":")
    before = logging.root.manager.disable
    logging.disable(logging.ERROR)  # it logs what it raises, and that the weights are missing which nobody asked for
    try:
        whole = open_clip.create_model(
            model, tag or None, load_weights=weights, require_pretrained=weights, pretrained_text=False
        )
    finally:
        logging.disable(before)
    config = open_clip.get_model_preprocess_cfg(whole)
    return whole.visual, _preprocessing(name, config["size"], config, mode=config["resize_mode"])


def _preprocessing(name: str, size: Any, config: dict[str, Any], *, mode: str, view: float = 1.0) -> Preprocessing:
    height, width = (size, size) if isinstance(size, int) else size
    if height != width or mode not in MODES:
        raise InvalidParameter(
            "backbone", "have a square input, for photos cropped or squashed", f"{name}: {height} × {width}, {mode}"
        )
    scaling = {"mean": config["mean"], "std": config["std"]}
    return Preprocessing.from_dict({"size": height, "view": view, "squash": mode == SQUASH, **scaling})


def _imported(package: str) -> Any:
    try:
        return import_module(package)
    except (ImportError, OSError, RuntimeError) as error:  # such as that of a torchvision for another torch
        if lacks(error, package):
            raise MissingDependency(f"{package} is not installed", remedy=INSTALLED_BY[package]) from error
        raise MissingDependency(
            f"{package} cannot be imported ({type(error).__name__}: {_line(error)})",
            remedy="Install what it needs; torchvision must be that of the installed torch, with or without CUDA",
        ) from error


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:200]
