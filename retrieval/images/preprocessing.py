"""From an upright RGB image to the input of a model.

A different resampler changes the distances and invalidates the threshold, so training, calibration, indexing and
serving use this module.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.errors import ImageUnsupported, InvalidParameter

from .pixels import FULL_SIZE, full_size


@dataclass(frozen=True)
class Preprocessing:
    """Preprocessing parameters of a model.

    The model's input is the centred square that spans `view` of the shorter side, resized to `size` pixels and scaled
    as (value / 255 - mean) / std. With `squash` it is instead the centred `view` of both sides, resized to a square.
    """

    size: int = 160
    view: float = 1.0
    mean: tuple[float, float, float] = (0.5, 0.5, 0.5)
    std: tuple[float, float, float] = (0.5, 0.5, 0.5)
    squash: bool = False

    def __post_init__(self) -> None:
        if not 8 <= self.size <= 4096:
            raise InvalidParameter("size", "lie between 8 and 4096 pixels", self.size)
        if not 0.1 <= self.view <= 1:
            raise InvalidParameter("view", "lie between 0.1 and 1", self.view)
        if len(self.mean) != 3 or len(self.std) != 3 or min(self.std) <= 0:
            raise InvalidParameter("mean and std", "have three values, std positive", (self.mean, self.std))

    def offset_and_scale(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """Return what is subtracted from the pixels and what they are then multiplied by, (3, 1, 1) each."""
        mean, std = (np.asarray(values, dtype=np.float32)[:, None, None] for values in (self.mean, self.std))
        return mean * 255, np.float32(1) / (std * 255)

    def to_dict(self) -> dict[str, Any]:
        """Return the parameters as plain JSON values."""
        values = {"size": self.size, "view": self.view, "mean": list(self.mean), "std": list(self.std)}
        return {**values, "squash": True} if self.squash else values  # embedding ids of older bundles stay valid

    @classmethod
    def from_dict(cls, values: Mapping[str, Any]) -> Preprocessing:
        """Create a Preprocessing from the output of `to_dict`."""
        red, green, blue = map(float, values["mean"])
        spread_red, spread_green, spread_blue = map(float, values["std"])
        mean, std = (red, green, blue), (spread_red, spread_green, spread_blue)
        return cls(int(values["size"]), float(values["view"]), mean, std, bool(values.get("squash", False)))

    @property
    def min_side(self) -> int:
        """The shorter side below which an image is upscaled; pass it to `open_image`."""
        return math.ceil(self.size / self.view)


def crop(image: Image.Image, bbox: tuple[float, float, float, float] | None) -> Image.Image:
    """Crop an image to a bounding box, in pixels of the upright photo at full size; None returns the whole image."""
    if bbox is None:
        return image
    left, upper, right, lower = (round(value) for value in bbox)
    width, height = full_size(image)
    if right > width or lower > height:
        raise ImageUnsupported(f"the bbox {bbox} reaches beyond the {width}×{height} pixels of the image")
    if image.size != (width, height):  # reduced
        x, y = image.width / width, image.height / height
        left, upper = int(left * x), int(upper * y)
        right, lower = max(left + 1, math.ceil(right * x)), max(upper + 1, math.ceil(lower * y))
    part = image.crop((left, upper, right, lower))
    part.info.pop(FULL_SIZE, None)  # it is not that of the part
    return part


def center_crop_resize(image: Image.Image, preprocessing: Preprocessing) -> NDArray[np.uint8]:
    """Crop the centre of an upright RGB image and resize it to uint8 (size, size, 3)."""
    sides = image.size if preprocessing.squash else (min(image.size),) * 2
    width, height = (preprocessing.view * side for side in sides)
    left, upper = (image.width - width) / 2, (image.height - height) / 2
    return resize(image, preprocessing.size, box=(left, upper, left + width, upper + height))


def resize(image: Image.Image, size: int, *, box: tuple[float, float, float, float]) -> NDArray[np.uint8]:
    """Resize a box (left, upper, right, lower) to uint8 (size, size, 3), bilinear with antialiasing."""
    return np.asarray(resized(image, size, box=box))


def resized(image: Image.Image, size: int, *, box: tuple[float, float, float, float]) -> Image.Image:
    """Resize a box like `resize`, but return a PIL image."""
    return image.resize((size, size), Image.Resampling.BILINEAR, box=box)


@dataclass(frozen=True)
class Appearance:
    """Image statistics, each in [0, 1], that tell live photos from calibration photos."""

    brightness: float  # mean luminance
    contrast: float  # standard deviation of the luminance
    sharpness: float  # mean absolute difference between horizontally neighbouring pixels

    @classmethod
    def of(cls, pixels: NDArray[np.uint8]) -> Appearance:
        """Return the appearance of pixels, uint8 (size, size, 3)."""
        gray = pixels[..., 1].astype(np.float32) / 255  # green carries most of the luminance
        return cls(float(gray.mean()), float(gray.std()), float(np.abs(np.diff(gray, axis=1)).mean()))


def to_tensor(pixels: NDArray[np.uint8], preprocessing: Preprocessing) -> NDArray[np.float32]:
    """Scale uint8 pixels (..., h, w, 3) to a float32 tensor (..., 3, h, w)."""
    offset, scale = preprocessing.offset_and_scale()
    tensor = np.ascontiguousarray(np.moveaxis(pixels, -1, -3)).astype(np.float32)  # contiguous rows are faster
    tensor -= offset
    tensor *= scale
    return tensor
