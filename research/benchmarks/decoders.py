"""Decoders from the bytes of a photo to the pixels of a model: ours, and those of other packages."""

from __future__ import annotations

import importlib.util
import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from retrieval.images import Preprocessing, center_crop_resize, open_image

Pixels = NDArray[np.uint8]
OURS = "ours"
SCALES = (8, 4, 2)  # reductions by powers of two, in which the DCT is fast


@dataclass(frozen=True)
class Decoder:
    """A decoder with the formats it reads and the package it needs."""

    name: str
    module: str
    formats: tuple[str, ...]
    pixels: Callable[[bytes, Preprocessing], Pixels]  # of the file, uint8 (size, size, 3)

    @property
    def is_installed(self) -> bool:
        """Return whether its package and the library that the package loads are installed."""
        if importlib.util.find_spec(self.module) is None:
            return False
        try:
            return self.module != "turbojpeg" or _turbojpeg() is not None
        except (OSError, RuntimeError):  # no library
            return False


def ours(data: bytes, preprocessing: Preprocessing) -> Pixels:
    """Decode as training, indexing and serving do."""
    return center_crop_resize(open_image(data, min_side=preprocessing.min_side), preprocessing)


def pillow(data: bytes, preprocessing: Preprocessing) -> Pixels:
    """Decode with Pillow, without any check; JPEG at a reduced scale."""
    with Image.open(io.BytesIO(data)) as image:
        image.draft(None, (2 * preprocessing.min_side, 2 * preprocessing.min_side))
        return center_crop_resize(image.convert("RGB"), preprocessing)


def pillow_heif(data: bytes, preprocessing: Preprocessing) -> Pixels:
    """Decode with pillow-heif, without any check."""
    import pillow_heif

    heif = pillow_heif.open_heif(data, convert_hdr_to_8bit=True)
    return _resampled(np.asarray(heif), preprocessing)


def simplejpeg(data: bytes, preprocessing: Preprocessing) -> Pixels:
    """Decode with simplejpeg at a reduced scale."""
    import simplejpeg  # type: ignore[import-not-found]

    least = 2 * preprocessing.min_side
    return _resampled(simplejpeg.decode_jpeg(data, min_height=least, min_width=least, strict=False), preprocessing)


def turbojpeg(data: bytes, preprocessing: Preprocessing) -> Pixels:
    """Decode with PyTurboJPEG at a reduced scale."""
    import turbojpeg  # type: ignore[import-not-found]

    jpeg = _turbojpeg()
    width, height, *_ = jpeg.decode_header(data)
    scale = (1, scale_of(min(width, height), preprocessing))
    return _resampled(jpeg.decode(data, pixel_format=turbojpeg.TJPF_RGB, scaling_factor=scale), preprocessing)


def opencv(data: bytes, preprocessing: Preprocessing) -> Pixels:
    """Decode upright with OpenCV, and JPEG at a reduced scale."""
    import cv2

    return _resampled(_opencv_pixels(data, preprocessing, cv2.IMREAD_COLOR_RGB), preprocessing)


def opencv_area(data: bytes, preprocessing: Preprocessing) -> Pixels:
    """Decode with OpenCV like `opencv`, and resample with its area filter."""
    import cv2

    image = _opencv_pixels(data, preprocessing, cv2.IMREAD_COLOR_RGB)
    side = min(image.shape[:2])
    top, left = (image.shape[0] - side) // 2, (image.shape[1] - side) // 2
    square = image[top : top + side, left : left + side]
    size = (preprocessing.size, preprocessing.size)
    return np.asarray(cv2.resize(square, size, interpolation=cv2.INTER_AREA), np.uint8)


def vips(data: bytes, preprocessing: Preprocessing) -> Pixels:
    """Decode and resample with libvips, which reduces the scale while it decodes."""
    import pyvips  # type: ignore[import-not-found]

    size = preprocessing.size
    image: Any = pyvips.Image.thumbnail_buffer(data, size, height=size, crop="centre", no_rotate=True)
    return np.asarray(image.numpy()[..., :3])


def scale_of(side: int, preprocessing: Preprocessing) -> int:
    """Return the largest reduction that leaves at least twice the side that the model needs."""
    return next((scale for scale in SCALES if side // scale >= 2 * preprocessing.min_side), 1)


def _opencv_pixels(data: bytes, preprocessing: Preprocessing, full: int) -> Pixels:
    """Return the upright pixels of a file; `full` is the flag for decoding at full size."""
    import cv2

    side = min(Image.open(io.BytesIO(data)).size) if data[:2] == b"\xff\xd8" else 0
    reduced = {8: cv2.IMREAD_REDUCED_COLOR_8, 4: cv2.IMREAD_REDUCED_COLOR_4, 2: cv2.IMREAD_REDUCED_COLOR_2}
    scale = scale_of(side, preprocessing)
    image: Any = cv2.imdecode(np.frombuffer(data, np.uint8), reduced.get(scale, full))
    return np.asarray(image if scale == 1 else cv2.cvtColor(image, cv2.COLOR_BGR2RGB), np.uint8)


def _resampled(pixels: Pixels, preprocessing: Preprocessing) -> Pixels:
    return center_crop_resize(Image.fromarray(pixels[..., :3]), preprocessing)


@cache
def _turbojpeg() -> Any:
    """Return PyTurboJPEG's decoder; its library may be named in TURBOJPEG."""
    import turbojpeg

    return turbojpeg.TurboJPEG(os.environ.get("TURBOJPEG"))


COMMON = ("JPEG", "PNG", "WEBP")
DECODERS = (
    Decoder(OURS, "PIL", (*COMMON, "HEIF"), ours),
    Decoder("Pillow with draft", "PIL", COMMON, pillow),
    Decoder("simplejpeg", "simplejpeg", ("JPEG",), simplejpeg),
    Decoder("PyTurboJPEG", "turbojpeg", ("JPEG",), turbojpeg),
    Decoder("OpenCV", "cv2", COMMON, opencv),
    Decoder("OpenCV, area filter", "cv2", COMMON, opencv_area),
    Decoder("pyvips", "pyvips", (*COMMON, "HEIF"), vips),
    Decoder("pillow-heif", "pillow_heif", ("HEIF",), pillow_heif),
)
