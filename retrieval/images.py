"""Image decoding and preprocessing, shared by training, calibration, indexing and serving.

A different decoder or resampler changes the distances and invalidates the threshold, so all code paths use this
module: bytes, path or PIL image → checked upright RGB (`open_image`) → square of pixels (`resize`) → model input
(`to_tensor`). The limits on hostile input are also enforced here.
"""

from __future__ import annotations

import io
import math
import os
import stat
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from .avif import check_avif
from .deep_gray import from_deep
from .errors import ImageTooLarge, ImageUnreadable, ImageUnsupported, InvalidParameter
from .formats import FORMATS, NAMES, format_of, prepare
from .gif import check_gif
from .heif import check_heif
from .tiff import check_directories, check_exif, check_jpeg, check_parts

MAX_BYTES = 10 * 2**20
MAX_PIXELS = 25_000_000
MIN_SIDE = 8
MAX_ASPECT = 50
MOVING = frozenset(form.name for form in FORMATS if form.may_move)
CHECKS: Mapping[str, Callable[[bytes], None]] = {
    "AVIF": partial(check_avif, max_pixels=MAX_PIXELS),
    "GIF": check_gif,
    "HEIF": check_heif,
    "JPEG": check_jpeg,
    "TIFF": check_directories,
}
CHUNK = 2**16  # bytes per read if a file reports no size
BACKGROUND = (255, 255, 255)  # colour behind transparent pixels

warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # MAX_PIXELS is stricter, and an error

Source = bytes | io.BytesIO | str | Path | Image.Image | NDArray[np.uint8]
ACCEPTED = "be an encoded image (bytes or BytesIO), a path, a PIL image or an RGB array, uint8 (height, width, 3)"


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
        red, green, blue = values["mean"]
        spread_red, spread_green, spread_blue = values["std"]
        mean, std = (red, green, blue), (spread_red, spread_green, spread_blue)
        return cls(int(values["size"]), float(values["view"]), mean, std, bool(values.get("squash", False)))

    @property
    def min_side(self) -> int:
        """The shorter side below which an image is upscaled; pass it to `open_image`."""
        return math.ceil(self.size / self.view)


def open_image(source: Source, *, min_side: int = 0) -> Image.Image:
    """Return a checked, upright RGB image.

    Parameters
    ----------
    source:
        Encoded bytes or a BytesIO of them, a path, a PIL image, or RGB pixels uint8 (height, width, 3).
    min_side:
        Side that the image will be resized to. A larger JPEG is decoded at a reduced scale of at least twice this
        side; with 0, at full size.

    Raises
    ------
    ImageUnreadable, ImageTooLarge, ImageUnsupported
        If the photo cannot be used.
    InvalidParameter
        If `source` has an unsupported type or shape.
    """
    source = plain_source(source)
    if isinstance(source, Image.Image):
        _check_shape(source)
        _load(source)
        return _upright_rgb(source, in_place=False)
    data = source if isinstance(source, bytes) else read_file(Path(source))
    if len(data) > MAX_BYTES:
        raise ImageTooLarge(f"the file has {len(data):,} bytes, the limit is {MAX_BYTES:,}")
    form = format_of(data)
    if form is None:
        raise _foreign()
    prepare(form)
    try:
        if form.name in CHECKS:
            CHECKS[form.name](data)
        with Image.open(io.BytesIO(data), formats=(form.name,)) as image:
            _check_shape(image)
            check_exif(image)
            if image.format in ("JPEG", "MPO") and min_side:
                image.draft(None, (2 * min_side, 2 * min_side))
            image.load()
            return _upright_rgb(image, in_place=True)
    except (ImageTooLarge, ImageUnsupported):
        raise
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(f"the image has more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise _foreign() from error
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise ImageUnreadable(f"the image is damaged: {error}", remedy="Save or take the photo again") from error


def _foreign() -> ImageUnreadable:
    return ImageUnreadable(f"this is not a {NAMES} image", remedy="Convert it to one of these")


def plain_source(source: Source) -> bytes | Path | Image.Image:
    """Convert a source to bytes, a path or a PIL image; raise InvalidParameter for anything else."""
    if isinstance(source, bytes | Image.Image):
        return source
    if isinstance(source, str | Path):
        return Path(source)
    if isinstance(source, io.BytesIO):
        return source.getvalue()
    if not isinstance(source, np.ndarray):
        raise InvalidParameter("image", ACCEPTED, None if source is None else type(source))
    if source.dtype != np.uint8 or source.ndim != 3 or source.shape[2] != 3 or not source.size:
        raise InvalidParameter("image", ACCEPTED, f"{source.dtype} {source.shape}")
    return Image.fromarray(np.ascontiguousarray(source))


def crop(image: Image.Image, bbox: tuple[float, float, float, float] | None) -> Image.Image:
    """Crop an image to a bounding box, in pixels of the upright image; None returns the whole image."""
    if bbox is None:
        return image
    left, upper, right, lower = (round(value) for value in bbox)
    if right > image.width or lower > image.height:
        raise ImageUnsupported(f"the bbox {bbox} reaches beyond the {image.width}×{image.height} pixels of the image")
    return image.crop((left, upper, right, lower))


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


def read_file(path: Path, *, follow_links: bool = True) -> bytes:
    """Return the bytes of a regular file, at most `MAX_BYTES`.

    Pipes, sockets and devices are refused without being opened; so are symbolic links unless `follow_links`. Reading
    stops after `MAX_BYTES` + 1 bytes, whatever size the file system reports.

    Raises
    ------
    ImageUnreadable, ImageTooLarge
        If the file cannot be read or is too large.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        if stat.S_ISREG(path.stat(follow_symlinks=follow_links).st_mode):
            with os.fdopen(os.open(path, flags), "rb", buffering=0) as file:
                status = os.fstat(file.fileno())
                if stat.S_ISREG(status.st_mode):  # again: the path may have been replaced since
                    return _read_limited(file, path, status.st_size)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        reason = getattr(error, "strerror", None) or error
        raise ImageUnreadable(f"{path} cannot be read: {reason}") from error
    raise ImageUnreadable(f"{path} is not a regular file", remedy="Give the path of a photo")


def _read_limited(file: io.FileIO, path: Path, expected: int) -> bytes:
    parts, left = [], MAX_BYTES + 1
    while left and (part := file.read(min(left, max(expected + 1, CHUNK)))):
        parts.append(part)
        left -= len(part)
    if not left:
        raise ImageTooLarge(f"{path} has more than {MAX_BYTES:,} bytes")
    return b"".join(parts)


def _load(image: Image.Image) -> None:
    """Decode a PIL image that may have been opened lazily."""
    try:
        image.load()
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise ImageUnreadable(f"the image is damaged: {error}", remedy="Save or take the photo again") from error


def _check_shape(image: Image.Image) -> None:
    """Check the dimensions in the header, before any pixel is decoded."""
    width, height = image.size
    if width * height > MAX_PIXELS:
        raise ImageTooLarge(f"the image has {width}×{height} pixels, the limit is {MAX_PIXELS:,}")
    if min(width, height) < MIN_SIDE:
        raise ImageUnsupported(f"the image has {width}×{height} pixels, a side needs at least {MIN_SIDE}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageUnsupported(f"the image is {width}×{height}: longer than {MAX_ASPECT} times its breadth")
    if image.format in MOVING and getattr(image, "n_frames", 1) > 1:  # for a GIF or TIFF, n_frames reads the whole file
        raise ImageUnsupported("the image is animated", remedy="Send one frame of it")
    check_parts(image, MAX_PIXELS)


def _upright_rgb(image: Image.Image, *, in_place: bool) -> Image.Image:
    """Return an upright RGB image; with `in_place`, this may change and return the given image."""
    upright = image
    if in_place:
        ImageOps.exif_transpose(image, in_place=True)  # without this, large images are copied
    else:
        upright = ImageOps.exif_transpose(image)
    if upright.mode.startswith(("I", "F")):
        return from_deep(upright)
    if upright.has_transparency_data:
        layers = upright.convert("RGBA")
        ground = Image.new("RGBA", layers.size, (*BACKGROUND, 255))
        upright = Image.alpha_composite(ground, layers)
    return upright if upright.mode == "RGB" else upright.convert("RGB")
