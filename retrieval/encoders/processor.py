"""The preprocessing of an encoder: the values of its image processor, and those given in place of them.

Our preprocessing takes the centred `view` of a photo, or squashes it into a square, and scales it by a mean and a
standard deviation of values from 0 to 1. The forms of image processors are translated into it; only the interpolation
of the resize is always ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from retrieval.errors import InvalidParameter
from retrieval.images import Preprocessing

FILES = ("preprocessor_config.json", "processor_config.json")
WARPED_FROM = 384  # ConvNeXt's processor squashes at this size and above, and crops by `crop_pct` below it
PIXEL_VALUES = (0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255)  # mean and std that leave the values from 0 to 255

Channels = tuple[float, float, float]


@dataclass(frozen=True)
class EncoderOptions:
    """An ONNX encoder, and what is said about it; this goes before the values of its image processor."""

    onnx: str | None = None  # a file, a folder, hf://ORG/NAME or hf://ORG/NAME/FILE
    preprocessor: Path | None = None  # values of an image processor in place of those beside the file
    size: int | None = None  # side of the input in pixels
    mean: Channels | None = None  # of red, green and blue from 0 to 1
    std: Channels | None = None
    resize: int | None = None  # pixels that the shorter side of a photo is resized to
    crop: int | None = None  # side of the centre that is taken then
    bgr: bool = False  # the channels are blue, green and red
    output: str | None = None  # that is the vector
    photos: Path | None = None  # to compare the bundle with the file on

    def preprocessing(self, processor: Mapping[str, Any] | None, *, side: int | None, raw: bool) -> Preprocessing:
        """Return the preprocessing of the encoder.

        Parameters
        ----------
        processor:
            The values of its image processor, if there is one.
        side:
            The side of its input in pixels if that is fixed.
        raw:
            Whether the input takes values from 0 to 255 as bytes, which are not scaled.

        Raises
        ------
        InvalidParameter
            If values are missing or contradict each other.
        """
        name = str(self.onnx)
        size, view, squash = (side, 1.0, False) if processor is None else _geometry(name, processor)
        if self.size or self.crop:
            size = self.size or self.crop
        if self.resize:
            view, squash = min(1.0, (size or self.resize) / self.resize), False
        if size is None:
            raise InvalidParameter("--size", "be given where the input takes any size", name)
        if side not in (None, size) or self.crop not in (None, size):
            inputs = f"{name}: the input has {side or self.crop} pixels, the preprocessing {size}"
            raise InvalidParameter(
                "the size", "be that of the model's input", inputs, remedy="Correct --size or --crop"
            )
        if self.mean and max(self.mean) > 1:
            rule = "be for values from 0 to 1"
            raise InvalidParameter("--mean", rule, self.mean, remedy="Divide --mean and --std by 255")
        if self.crop and not (self.resize or self.size):
            rule = "be given with --resize, the shorter side that the centre is cut from"
            raise InvalidParameter("--crop", rule, self.crop)
        if raw and (self.mean or self.std):
            remedy = "Leave --mean and --std out"
            raise InvalidParameter("--mean and --std", "belong to an input of numbers", f"{name}: bytes", remedy=remedy)
        return Preprocessing(size, view, *self._scale(name, processor, raw=raw), squash)

    def _scale(self, name: str, processor: Mapping[str, Any] | None, *, raw: bool) -> tuple[Channels, Channels]:
        """Return mean and std for values from 0 to 1."""
        if raw:
            return PIXEL_VALUES
        if processor is None and not (self.mean and self.std):
            remedy = "They are on its page; for values from 0 to 255, --mean 0 0 0 --std .0039216 .0039216 .0039216"
            rule = "be given where the file has no preprocessor_config.json"
            raise InvalidParameter("--preprocessor, or --mean and --std,", rule, name, remedy=remedy)
        mean, std = ((0.0,) * 3, (1.0,) * 3) if processor is None else _scaling(name, processor)
        return self.mean or mean, self.std or std


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
    raise InvalidParameter("the image processor", "have a size", name, remedy="Add it to its file")


def _square(name: str, size: Mapping[str, Any]) -> int:
    height, width = int(size["height"]), int(size["width"])
    if height != width:
        raise InvalidParameter("the image processor", "have a square input", f"{name}: {height} × {width}")
    return height


def _scaling(name: str, processor: Mapping[str, Any]) -> tuple[Channels, Channels]:
    """Return mean and std for values from 0 to 1; a processor may first multiply the values by a factor."""
    rescales, normalizes = processor.get("do_rescale", True), bool(processor.get("do_normalize"))
    factor = 255 * float(processor.get("rescale_factor", 1 / 255) if rescales else 1)
    offset = 1.0 if rescales and processor.get("rescale_offset") else 0.0
    divisions = normalizes + bool(processor.get("include_top"))  # EfficientNet's processor divides once more
    mean = _channels(name, processor, "image_mean") if normalizes else (0.0, 0.0, 0.0)
    std = _channels(name, processor, "image_std") if divisions else (1.0, 1.0, 1.0)
    red, green, blue = ((value + offset) / factor for value in mean)
    spread_red, spread_green, spread_blue = (value**divisions / factor for value in std)
    return (red, green, blue), (spread_red, spread_green, spread_blue)


def _channels(name: str, processor: Mapping[str, Any], key: str) -> Channels:
    values = processor.get(key)
    if isinstance(values, int | float):
        return float(values), float(values), float(values)
    if values is None or len(values) != 3:
        raise InvalidParameter("the image processor", f"have three values of {key}", f"{name}: {values}")
    red, green, blue = (float(value) for value in values)
    return red, green, blue
