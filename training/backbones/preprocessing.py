"""The preprocessing that a pretrained model was published with.

Our preprocessing takes the centred `view` of a photo, or squashes it into a square, and scales it by a mean and a
standard deviation of values from 0 to 1. The forms of image processors are translated into it; only the interpolation
of the resize is always ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing
from training.config import LITE0, SMALL

from . import lite0
from .hub import is_local, resolved, unreadable
from .packaged import is_packaged, load_packaged

FILES = ("preprocessor_config.json", "processor_config.json")
WARPED_FROM = 384  # ConvNeXt's processor squashes at this size and above, and crops by `crop_pct` below it

Channels = tuple[float, float, float]


def published_preprocessing(name: str, *, size: int | None = None) -> Preprocessing:
    """Return the preprocessing that a pretrained backbone was published with, at another `size` if one is given."""
    name = resolved(name)
    if name == SMALL:
        raise InvalidParameter("backbone", f"be pretrained, and {SMALL!r} is not", name, remedy=f"Use {LITE0}")
    if name == LITE0:
        published = lite0.PREPROCESSING
    elif is_packaged(name):
        published = load_packaged(name, weights=False)[1]
    else:
        published = translated(name, read_processor(name))
    return published if size is None else replace(published, size=size)


def read_processor(name: str) -> dict[str, Any]:
    """Return the values of the image processor of a local folder or of a model of the hub.

    Missing values are the defaults of the processor's class, or of the usual one of its family, if `transformers`
    has it without torchvision.
    Raises InvalidParameter if there is no processor, or if it cannot be read.
    """
    import transformers
    from transformers.image_processing_base import ImageProcessingMixin
    from transformers.models.auto.image_processing_auto import IMAGE_PROCESSOR_MAPPING_NAMES

    local = is_local(name)
    try:
        config, _ = transformers.PreTrainedConfig.get_config_dict(name, local_files_only=local)
        family = str(config.get("model_type", "")).removesuffix("_vision_model")
        usual = IMAGE_PROCESSOR_MAPPING_NAMES.get(family) or {}
        bare = Path(name).is_dir() and not any((Path(name) / file).exists() for file in FILES)
        values: dict[str, Any] = {}
        if not (bare and usual):  # a folder without a processor gets the usual one of its family
            values, _ = ImageProcessingMixin.get_image_processor_dict(name, local_files_only=local)
    except (OSError, ValueError) as error:
        raise unreadable(name, error, what="have a readable preprocessor_config.json") from error
    kind = str(values.get("image_processor_type") or values.get("feature_extractor_type") or usual.get("pil") or "")
    base = kind.replace("FeatureExtractor", "ImageProcessor").removesuffix("Pil").removesuffix("Fast")
    processor = getattr(transformers, f"{base}Pil", None)
    return dict(values if processor is None else processor.from_dict(values).to_dict())


def backbone_preprocessing(name: str, *, size: int, crop_ratio: float) -> Preprocessing:
    """Return the preprocessing to train a backbone with: its published mean and std, with our size and crop."""
    if name == SMALL:
        return Preprocessing(size=size, view=crop_ratio)
    return replace(published_preprocessing(name, size=size), view=crop_ratio, squash=False)


def translated(name: str, processor: Mapping[str, Any]) -> Preprocessing:
    """Return the values of an image processor as our preprocessing."""
    size, view, squash = _geometry(name, processor)
    mean, std = _scaling(name, processor)
    return Preprocessing(size=size, view=view, mean=mean, std=std, squash=squash)


def _geometry(name: str, processor: Mapping[str, Any]) -> tuple[int, float, bool]:
    """Return the input's side, the share of the photo that it shows, and whether the photo is squashed."""
    resized, squash = _resized(name, processor)
    percentage = processor.get("crop_pct")
    if percentage and not squash:
        return (resized, 1.0, True) if resized >= WARPED_FROM else (resized, float(percentage), False)
    if not processor.get("do_center_crop") or not processor.get("crop_size"):
        return resized, 1.0, squash
    crop = processor["crop_size"]
    side = crop if isinstance(crop, int) else _square(name, crop)
    return side, min(1.0, side / resized), squash


def _resized(name: str, processor: Mapping[str, Any]) -> tuple[int, bool]:
    """Return the side that a photo is resized to, and whether its proportions change."""
    size = processor.get("size")
    if isinstance(size, int):  # without its class's rule: the shorter side if a crop follows
        return size, not processor.get("do_center_crop")
    if size and size.get("shortest_edge"):
        return int(size["shortest_edge"]), False
    if size and size.get("height"):
        return _square(name, size), True
    raise InvalidParameter("backbone", "have a processor with a size", name, remedy="Add it to its file")


def _square(name: str, size: Mapping[str, Any]) -> int:
    height, width = int(size["height"]), int(size["width"])
    if height != width:
        raise InvalidParameter("backbone", "have a square input", f"{name}: {height} × {width}")
    return height


def _scaling(name: str, processor: Mapping[str, Any]) -> tuple[Channels, Channels]:
    """Return mean and std for values from 0 to 1; a processor may first multiply the values by a factor."""
    factor = 255 * (float(processor.get("rescale_factor", 1 / 255)) if processor.get("do_rescale", True) else 1.0)
    offset = 1.0 if processor.get("do_rescale", True) and processor.get("rescale_offset") else 0.0
    divisions = 0
    mean, std = (0.0, 0.0, 0.0), (1.0, 1.0, 1.0)
    if processor.get("do_normalize"):
        mean = _channels(name, processor, "image_mean")
        divisions += 1
    if processor.get("include_top"):  # EfficientNet's processor divides once more
        divisions += 1
    if divisions:
        std = _channels(name, processor, "image_std")
    red, green, blue = ((value + offset) / factor for value in mean)
    spread_red, spread_green, spread_blue = (value**divisions / factor for value in std)
    return (red, green, blue), (spread_red, spread_green, spread_blue)


def _channels(name: str, processor: Mapping[str, Any], key: str) -> Channels:
    values = processor.get(key)
    if isinstance(values, int | float):
        return float(values), float(values), float(values)
    if values is None or len(values) != 3:
        raise InvalidParameter("backbone", f"have a processor with three values of {key}", f"{name}: {values}")
    red, green, blue = (float(value) for value in values)
    return red, green, blue
