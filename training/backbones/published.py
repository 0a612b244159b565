"""The preprocessing that a pretrained model was published with.

Our preprocessing takes the centred `view` of a photo, or squashes it into a square, and scales it by a mean and a
standard deviation of values from 0 to 1. The forms of image processors are translated into it; only the interpolation
of the resize is always ours.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing
from training.config import LITE0, SMALL

from . import lite0
from .choice import resolved
from .processor import read_processor
from .timm_backbone import TIMM, timm_preprocessing

WARPED_FROM = 384  # ConvNeXt's processor squashes at this size and above, and crops by `crop_pct` below it

Channels = tuple[float, float, float]


def published_preprocessing(name: str, *, size: int | None = None) -> Preprocessing:
    """Return the preprocessing that a pretrained backbone was published with, at another `size` if one is given."""
    name = resolved(name)
    if name == SMALL:
        raise InvalidParameter("backbone", f"be pretrained, and {SMALL!r} is not", name, remedy=f"Use {LITE0}")
    if name == LITE0:
        published = lite0.PREPROCESSING
    elif name.startswith(TIMM):
        published = timm_preprocessing(name.removeprefix(TIMM))
    else:
        published = translated(name, read_processor(name))
    return published if size is None else replace(published, size=size)


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
    if processor.get("max_num_patches") and processor.get("patch_size"):  # any proportions, up to so many patches
        return math.isqrt(int(processor["max_num_patches"])) * int(processor["patch_size"]), True
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
