"""Decoding of photos, shared by training, calibration, indexing and serving, with limits on hostile input.

A different decoder changes the distances and invalidates the threshold, so all code paths use this module: bytes, path
or PIL image → checked upright RGB (`open_image`). A file costs at most about 2 s of CPU and 300 MB here; formats that
cost more are decoded in a process of its own (`isolated`).
"""

from __future__ import annotations

import io
import os
import stat
from importlib.util import find_spec
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageOps
from PIL.JpegImagePlugin import JpegImageFile
from PIL.PngImagePlugin import PngImageFile
from PIL.WebPImagePlugin import WebPImageFile

from retrieval.errors import ImageTooLarge, ImageUnreadable, ImageUnsupported, InvalidParameter, install_command

from .formats import NAMES, PHONES, SENT, Format, format_of
from .guards import Plain, jpeg_size, plain_file
from .isolated import open_isolated
from .pixels import (
    FULL_SIZE,
    MAX_DECODED,
    MAX_WEBP,
    check_pixels,
    check_shape,
    decoded,
    fitted,
    foreign,
    to_rgb,
    turned,
)

MAX_BYTES = 60 * 2**20
OPENERS = {"JPEG": JpegImageFile, "PNG": PngImageFile, "WEBP": WebPImageFile}
SMALLER = "Save it with fewer pixels, or at a lower quality"
CHUNK = 2**16  # bytes per read if a file reports no size
Source = bytes | io.BytesIO | str | Path | Image.Image | NDArray[np.uint8]
END = b"\xff\xd9"  # of a JPEG
DAMAGED = "retrieval_damaged"  # in the info of an image from a JPEG with lost or noisy blocks
SPARE = b"\x55" * 8  # more than a decoder reads ahead
LEAST_LEFT = 2  # bytes of a scan without which its last block cannot be decoded
ACCEPTED = "be an encoded image (bytes or BytesIO), a path, a PIL image or an RGB array, uint8 (height, width, 3)"


def open_image(source: Source, *, min_side: int = 0) -> Image.Image:
    """Return a checked, upright RGB image.

    Parameters
    ----------
    source:
        Encoded bytes or a BytesIO of them, a path, a PIL image, or RGB pixels uint8 (height, width, 3).
    min_side:
        Side that the image will be resized to. A larger JPEG is decoded at a reduced scale of at least twice this
        side; with 0, at full size, or at the largest reduced scale of at most MAX_DECODED pixels.

    The `info` of the image has the size of the photo (FULL_SIZE), and DAMAGED if blocks of a JPEG are lost or noisy.

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
    check_bytes("the file", len(data))
    form = format_of(data)
    if form is None:
        raise foreign()
    if form in SENT:
        return decoded(lambda: _open_sent(data, form, min_side))
    return open_isolated(data, form)


def _open_sent(data: bytes, form: Format, min_side: int) -> Image.Image:
    plain = plain_file(form.name, data)
    file = _Jpeg(plain) if form.name == "JPEG" else io.BytesIO(plain.data)
    with OPENERS[form.name](file) as image:  # not by Image.open, which has a limit of its own
        check_shape(image)
        size = image.size
        if form.name == "WEBP" and image.width * image.height > MAX_WEBP:
            return open_isolated(plain.data, form, plain.orientation)
        if form.name == "JPEG":
            image.draft(None, _draft_size(size, min_side))
        image.load()
        small = fitted(image)
    del image  # a large one takes 100 MB, and so does each of the next
    small.info[FULL_SIZE] = size
    upright = turned(small, plain.orientation)
    if isinstance(file, _Jpeg) and file.check():
        upright.info[DAMAGED] = True
    return upright


def _draft_size(size: tuple[int, int], min_side: int) -> tuple[int, int]:
    """Return the least size to decode a JPEG at: twice `min_side` a side, or at most MAX_DECODED pixels."""
    scale = next(scale for scale in (1, 2, 4, 8) if size[0] * size[1] <= MAX_DECODED * scale**2)
    if min_side:
        scale = max(scale, min(size) // (2 * min_side))
    return max(1, size[0] // scale), max(1, size[1] // scale)


class _Jpeg(io.BytesIO):
    """A JPEG file for its decoder, which tells by how much is read whether the data fit the pixels.

    A decoder that is done before the end of the scan, or reads on after it, has met lost or noisy blocks.
    """

    def __init__(self, plain: Plain) -> None:
        self._plain, end = plain, plain.scan_end or len(plain.data)
        self._fewest, self._most = end - LEAST_LEFT, end + len(SPARE)
        super().__init__(plain.data + SPARE * bool(plain.scan_end) + END)

    def read(self, size: int | None = -1) -> bytes:
        """Return the next bytes, not beyond the next place that says something."""
        at = self.tell()
        stop = self._fewest if at < self._fewest else self._most
        return super().read(min(size, stop - at) if self._plain.scan_end and size and 0 < stop - at < size else size)

    def check(self) -> bool:
        """Return whether the decoded JPEG is damaged; raise ImageUnreadable if only its beginning is there."""
        plain, read = self._plain, self.tell()
        is_cut = read > self._most if plain.scan_end else plain.is_damaged
        if is_cut and not plain.has_end:
            raise ImageUnreadable("the image is damaged: its end is missing", remedy="Save or take the photo again")
        return plain.is_damaged or is_cut or (plain.scan_end > 0 and read <= self._fewest)


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


def check_bytes(name: object, size: int, most: int = MAX_BYTES) -> None:
    """Raise ImageTooLarge if a file has more than `most` bytes."""
    if size > most:
        raise ImageTooLarge(f"{name} has {size:,} bytes, the limit is {most:,}", remedy=SMALLER)


def check_sent(photo: bytes, *, most_bytes: int, most_pixels: int) -> None:
    """Raise ImageUnsupported or ImageTooLarge for a file that is not taken over HTTP.

    HEIC and AVIF are taken where the extra `sources` is installed. `most_pixels` is for JPEGs.
    """
    check_bytes("the file", len(photo), most_bytes)
    form = format_of(photo)
    if form is None or form in SENT:
        check_pixels(*(jpeg_size(photo) if form is SENT[0] else (0, 0)), most_pixels)
    elif form.name not in PHONES or find_spec("pillow_heif") is None:
        remedy = f", or install the extra `sources` on the server: {install_command('sources')}"
        raise ImageUnsupported(
            f"a photo is sent as {NAMES}, and this one is {form.shown}",
            remedy=f"Convert it to JPEG or PNG{remedy if form.name in PHONES else ''}",
        )


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
        check_bytes(path, max(expected, MAX_BYTES + 1))
    return b"".join(parts)
