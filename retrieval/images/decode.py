"""Decoding of photos, shared by training, calibration, indexing and serving, with limits on hostile input.

A different decoder changes the distances and invalidates the threshold, so all code paths use this module: bytes, path
or PIL image → checked upright RGB (`open_image`). A file costs at most about 2 s of CPU and 300 MB.
"""

from __future__ import annotations

import io
import os
import stat
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps, UnidentifiedImageError

from retrieval.errors import ImageRefused, ImageTooLarge, ImageUnreadable, ImageUnsupported, InvalidParameter

from .formats import FORMATS, SENT, format_of, names
from .guards import plain_file

MAX_BYTES = 10 * 2**20
MAX_PIXELS = 25_000_000
MAX_WEBP = 13_000_000  # pixels; a WebP takes 16 to 20 bytes per pixel to decode, others at most 12
MIN_SIDE = 8
MAX_ASPECT = 50
CHUNK = 2**16  # bytes per read if a file reports no size
ROWS = 256  # of pixels converted at once
BACKGROUND = (255, 255, 255)  # colour behind transparent pixels
MOVING = ("WEBP", "PNG", "AVIF")  # formats whose file with several frames is an animation
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF orientation

warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # MAX_PIXELS is stricter, and an error

Source = bytes | io.BytesIO | str | Path | Image.Image | NDArray[np.uint8]
ACCEPTED = "be an encoded image (bytes or BytesIO), a path, a PIL image or an RGB array, uint8 (height, width, 3)"


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
        check_shape(source)
        return decoded(lambda: to_rgb(ImageOps.exif_transpose(source)))
    data = source if isinstance(source, bytes) else read_file(Path(source))
    if len(data) > MAX_BYTES:
        raise ImageTooLarge(f"the file has {len(data):,} bytes, the limit is {MAX_BYTES:,}")
    form = format_of(data)
    if form is None:
        raise _foreign()
    if form in SENT:
        return decoded(lambda: _open_sent(data, form.name, min_side))
    from .isolated import open_isolated  # rarely needed

    return open_isolated(data, form)


def _open_sent(data: bytes, name: str, min_side: int) -> Image.Image:
    plain = plain_file(name, data)
    with Image.open(io.BytesIO(plain.data), formats=(name,)) as image:
        check_shape(image)
        if name == "JPEG" and min_side:
            image.draft(None, (2 * min_side, 2 * min_side))
        image.load()
        upright = to_rgb(image)
    del image  # a large one takes 100 MB, and so does each of the next
    return upright.transpose(TURNS[plain.orientation]) if plain.orientation in TURNS else upright


def decoded(work: Callable[[], Image.Image]) -> Image.Image:
    """Run a decoder, with its errors as refusals."""
    try:
        return work()
    except ImageRefused:
        raise
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(f"the image has more than {MAX_PIXELS:,} pixels") from error
    except UnidentifiedImageError as error:
        raise _foreign() from error
    except MemoryError as error:
        raise ImageTooLarge("the image takes too much memory to decode", remedy="Convert it to JPEG or PNG") from error
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise ImageUnreadable(f"the image is damaged: {error}", remedy="Save or take the photo again") from error


def _foreign() -> ImageUnreadable:
    return ImageUnreadable(f"this is not a {names(FORMATS)} image", remedy="Convert it to JPEG or PNG")


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


def read_file(path: Path) -> bytes:
    """Return the bytes of a regular file, at most `MAX_BYTES`.

    Pipes, sockets and devices are refused without being opened. Reading stops after `MAX_BYTES` + 1 bytes, whatever
    size the file system reports.

    Raises
    ------
    ImageUnreadable, ImageTooLarge
        If the file cannot be read or is too large.
    """
    try:
        if stat.S_ISREG(path.stat().st_mode):
            with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC), "rb", buffering=0) as file:
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


def check_shape(image: Image.Image) -> None:
    """Check the dimensions in the header, before any pixel is decoded."""
    width, height = image.size
    most = MAX_WEBP if image.format == "WEBP" else MAX_PIXELS
    if width * height > most:
        raise ImageTooLarge(f"the image has {width}×{height} pixels, the limit is {most:,}")
    if min(width, height) < MIN_SIDE:
        raise ImageUnsupported(f"the image has {width}×{height} pixels, a side needs at least {MIN_SIDE}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageUnsupported(f"the image is {width}×{height}: longer than {MAX_ASPECT} times its breadth")
    if image.format in MOVING and getattr(image, "n_frames", 1) > 1:  # for a GIF or TIFF, n_frames reads the whole file
        raise ImageUnsupported("the image is animated", remedy="Send one frame of it")


def to_rgb(image: Image.Image) -> Image.Image:
    """Return an upright image as RGB, on white if it is transparent; 16-bit gray is scaled.

    Raises ImageUnsupported for deeper images.
    """
    if image.mode.startswith(("I", "F")):
        return _from_deep(image)
    if not image.has_transparency_data:
        return image if image.mode == "RGB" else image.convert("RGB")
    opaque = Image.new("RGB", image.size)
    for top in range(0, image.height, ROWS):  # in strips, because each copy of a large image takes 100 MB
        layer = image.crop((0, top, image.width, min(top + ROWS, image.height))).convert("RGBA")
        ground = Image.new("RGBA", layer.size, (*BACKGROUND, 255))
        opaque.paste(Image.alpha_composite(ground, layer).convert("RGB"), (0, top))
    return opaque


def _from_deep(image: Image.Image) -> Image.Image:
    """Convert a 16-bit gray image to RGB. Pillow's own conversion clips most values to white."""
    if not image.mode.startswith("I"):
        raise ImageUnsupported(f"images of mode {image.mode} are not accepted", remedy="Save it with 8 bits")
    values = np.asarray(image)
    if values.min() < 0 or values.max() > 65535:
        raise ImageUnsupported("the image has more than 16 bits a channel", remedy="Save it with 8 bits")
    pixels = np.empty(values.shape, np.uint8)
    for row in range(0, len(values), ROWS):
        pixels[row : row + ROWS] = (values[row : row + ROWS].astype(np.uint32) + 128) // 257  # rounded
    return Image.fromarray(pixels).convert("RGB")
