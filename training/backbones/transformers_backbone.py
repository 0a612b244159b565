"""Image models of `transformers` as backbones, for every family that takes a single image.

For a checkpoint with two towers (CLIP, SigLIP), the vision tower and its projection are used. Families trained for one
vector per image (CLIP, SigLIP, DINO) return this vector; the others return their last feature map or their tokens.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from torch import Tensor, nn

from retrieval.errors import InvalidParameter

from .base import Backbone, width_of
from .hub import is_local, unreadable
from .preprocessing import read_processor

MAP, VECTOR = ("map", "vector")
TOWERS = {  # the vision towers of two-tower checkpoints
    "clip": "CLIPVisionModelWithProjection",
    "metaclip_2": "MetaClip2VisionModelWithProjection",
    "siglip": "SiglipVisionModel",
}
VECTOR_FAMILIES = ("clip", "metaclip_2", "siglip", "dinov2", "dinov2_with_registers", "dinov3_vit")
PROJECTED = "VisionModelWithProjection"
UNUSED = "pooler"  # weights that a checkpoint may lack, because feature maps do not need them


class TransformersBackbone(Backbone):
    """An image model of `transformers`.

    Parameters
    ----------
    readout:
        "map" for the last feature map (n, c, h, w), or the tokens as (n, c, tokens, 1); "vector" for the model's own
        vector of the image, as (n, c, 1, 1).
    bgr:
        Whether the model was trained on channels in the order blue, green, red.
    """

    def __init__(self, network: nn.Module, *, readout: str = MAP, bgr: bool = False) -> None:
        super().__init__()
        self.network = network
        self.readout, self.bgr = readout, bgr
        self.pooled = readout == VECTOR
        config: Any = network.config
        self.own_size = _side(config)
        self._resizes = "interpolate_pos_encoding" in inspect.signature(network.forward).parameters
        self.width = width_of(self, self.own_size or 224)

    def forward(self, pixels: Tensor) -> Tensor:
        """Return the features of normalised pixels (n, 3, h, w)."""
        pixels = pixels.flip(1) if self.bgr else pixels
        features = vector_of(self._outputs(pixels)) if self.pooled else self._outputs(pixels).last_hidden_state
        if features.dim() == 2:
            return features[:, :, None, None]
        if features.dim() == 3:  # (n, tokens, c) of a vision transformer
            return features.transpose(1, 2).unsqueeze(3)
        return features

    def _outputs(self, pixels: Tensor) -> Any:
        if self._resizes and self.own_size is not None and tuple(pixels.shape[-2:]) != (self.own_size,) * 2:
            return self.network(pixels, interpolate_pos_encoding=True)
        return self.network(pixels)

    @property
    def record(self) -> dict[str, Any]:
        """The values that rebuild the network with random weights."""
        config: Any = self.network.config
        values = {"class": type(self.network).__name__, "readout": self.readout, "bgr": self.bgr}
        return {"family": "transformers", **values, "config": dict(config.to_dict())}

    @classmethod
    def pretrained(cls, name: str) -> TransformersBackbone:
        """Return a model with its weights, from a local folder or the hub.

        Raises InvalidParameter if the model does not exist, lacks some of its weights, or is not an image model.
        """
        try:
            network = _load(name)
        except InvalidParameter:  # a ValueError too
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise unreadable(name, error, what="be an image model that can be read") from error
        config: Any = network.config
        family = config.model_type.removesuffix("_vision_model")
        readout = VECTOR if family in VECTOR_FAMILIES and getattr(config, "vision_use_head", True) else MAP
        try:
            backbone = cls(network, readout=readout)
        except (AttributeError, RuntimeError, TypeError, ValueError) as error:
            raise InvalidParameter(
                "backbone",
                f"be a model of one image ({type(error).__name__}: {str(error).splitlines()[0]})",
                name,
                remedy="Use a vision model such as facebook/dinov2-small, or its vision tower alone",
            ) from error
        backbone.bgr = bool(read_processor(name).get("do_flip_channel_order"))
        return backbone

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> TransformersBackbone:
        """Return a model with random weights."""
        import transformers

        values = dict(record["config"])
        config = transformers.AutoConfig.for_model(values.pop("model_type"), **values)
        return cls(getattr(transformers, record["class"])(config), readout=record["readout"], bgr=record["bgr"])


def _load(name: str) -> nn.Module:
    """Return the network of a folder or of the hub; raise InvalidParameter if the checkpoint lacks some weights."""
    import transformers

    local = {"local_files_only": is_local(name)}
    config = transformers.AutoConfig.from_pretrained(name, **local)
    architecture = (getattr(config, "architectures", None) or [""])[0]
    chosen = architecture if architecture.endswith(PROJECTED) else TOWERS.get(config.model_type)
    if chosen is None and hasattr(config, "vision_config"):
        known = ", ".join(sorted(TOWERS))
        raise InvalidParameter("backbone", f"be a vision model, or of the families {known}", config.model_type)
    loader = transformers.AutoModel if chosen is None else getattr(transformers, chosen)
    if hasattr(config, "vision_config"):
        vision = config.vision_config
        if hasattr(config, "projection_dim"):  # of both towers
            vision.projection_dim = config.projection_dim
        config = vision
    with errors_only():  # the weights of another tower are reported at length
        network, loaded = loader.from_pretrained(name, config=config, output_loading_info=True, **local)
    missing = sorted(key for key in loaded["missing_keys"] if UNUSED not in key)
    if missing:
        raise InvalidParameter(
            "backbone", f"have all its weights; {len(missing)} are missing, such as {missing[0]}", name
        )
    return network  # type: ignore[no-any-return]


@contextmanager
def errors_only() -> Iterator[None]:
    """Let `transformers` log only errors."""
    from transformers.utils import logging

    level = logging.get_verbosity()
    logging.set_verbosity_error()
    try:
        yield
    finally:
        logging.set_verbosity(level)


def vector_of(outputs: Any) -> Tensor:
    """Return the vector (n, c) of each image or text: its projection, if the model has one."""
    projected: Tensor | None = getattr(outputs, "image_embeds", getattr(outputs, "text_embeds", None))
    vector: Tensor = outputs.pooler_output if projected is None else projected
    return vector


def _side(config: Any) -> int | None:
    """Return the side of the input that a model was trained with, or None if its configuration does not say."""
    side = getattr(config, "image_size", None)
    if isinstance(side, list | tuple) and len(set(side)) == 1:
        side = side[0]
    return side if isinstance(side, int) else None
