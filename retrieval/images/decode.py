"""Decoding of photos, shared by training, calibration, indexing and serving, with limits on hostile input.

A different decoder changes the distances and invalidates the threshold, so all code paths use this module: bytes, path
or PIL image → checked upright RGB (`open_image`). A file costs at most about 2 s of CPU and 300 MB.
"""

from __future__ import annotations

import io
import os
import stat
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps

from retrieval.errors import ImageTooLarge, ImageUnreadable, InvalidParameter

from .formats import SENT, format_of
from .guards import plain_file
from .isolated import open_isolated
from .pixels import check_shape, decoded, foreign, to_rgb

MAX_BYTES = 10 * 2**20
CHUNK = 2**16  # bytes per read if a file reports no size
TURNS = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}  # by EXIF orientation

LYING = (5, 6, 7, 8)  # orientations whose width is the height of the file

Source = bytes | io.BytesIO | str | Path | Image.Image | NDArray[np.uint8]
FULL_SIZE = "retrieval_full_size"  # in the info of an image that was decoded at a reduced scale: width and height
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
        raise foreign()
    if form in SENT:
        return decoded(lambda: _open_sent(data, form.name, min_side))
    return open_isolated(data, form)


def _open_sent(data: bytes, name: str, min_side: int) -> Image.Image:
    plain = plain_file(name, data)
    with Image.open(io.BytesIO(plain.data), formats=(name,)) as image:
        check_shape(image)
        size = image.size
        if name == "JPEG" and min_side:
            image.draft(None, (2 * min_side, 2 * min_side))
        image.load()
        upright = to_rgb(image)
    del image  # a large one takes 100 MB, and so does each of the next
    upright = upright.transpose(TURNS[plain.orientation]) if plain.orientation in TURNS else upright
    upright.info[FULL_SIZE] = size[::-1] if plain.orientation in LYING else size
    return upright


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
