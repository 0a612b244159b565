"""Checks of an opened image, its conversion to RGB, and the errors of decoders as refusals."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable

import numpy as np
from PIL import Image, UnidentifiedImageError

from retrieval.errors import ImageRefused, ImageTooLarge, ImageUnreadable, ImageUnsupported

from .formats import FORMATS, names

MAX_JPEG, MAX_PIXELS = 200_000_000, 50_000_000  # of a JPEG, which is decoded at a reduced scale, and of other files
MAX_DECODED = 25_000_000  # pixels of an image in memory: larger ones are reduced
MAX_WEBP = 13_000_000  # pixels that are decoded here; a WebP takes 16 to 20 bytes per pixel, others at most 12
FULL_SIZE = "retrieval_full_size"  # in the info of an image that was decoded at a reduced scale: width and height
MIN_SIDE = 8
MAX_ASPECT = 50
ROWS = 256  # of pixels converted at once
BACKGROUND = (255, 255, 255)  # colour behind transparent pixels
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
MOVING = ("WEBP", "PNG", "AVIF")  # formats whose file with several frames is an animation

warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # MAX_PIXELS is stricter, and an error


def decoded(work: Callable[[], Image.Image]) -> Image.Image:
    """Run a decoder, and raise its errors as refusals."""
    try:
        return work()
    except ImageRefused:
        raise
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(
            f"the image has more than {MAX_PIXELS:,} pixels", remedy="Save it with fewer pixels"
        ) from error
    except UnidentifiedImageError as error:
        raise foreign() from error
    except MemoryError as error:
        raise ImageTooLarge("the image takes too much memory to decode", remedy="Convert it to JPEG or PNG") from error
    except Exception as error:  # Pillow's decoders raise many types on damaged files
        raise ImageUnreadable(f"the image is damaged: {error}", remedy="Save or take the photo again") from error


def foreign() -> ImageUnreadable:
    """Return the refusal of a file that is not an image of a known format."""
    return ImageUnreadable(f"this is not a {names(FORMATS)} image", remedy="Convert it to JPEG or PNG")


def check_shape(image: Image.Image) -> None:
    """Check the dimensions in the header, before any pixel is decoded."""
    width, height = image.size
    check_pixels(width, height, MAX_JPEG if image.format == "JPEG" else MAX_PIXELS)
    if min(width, height) < MIN_SIDE:
        raise ImageUnsupported(f"the image has {width}×{height} pixels, a side needs at least {MIN_SIDE}")
    if max(width, height) > MAX_ASPECT * min(width, height):
        raise ImageUnsupported(f"the image is {width}×{height}: longer than {MAX_ASPECT} times its breadth")
    if image.format in MOVING and getattr(image, "n_frames", 1) > 1:  # for a GIF or TIFF, n_frames reads the whole file
        raise ImageUnsupported("the image is animated", remedy="Send one frame of it")


def check_pixels(width: int, height: int, most: int) -> None:
    """Raise ImageTooLarge if an image has more than `most` pixels."""
    if width * height > most:
        longest = math.floor(max(width, height) * math.sqrt(most / (width * height)))
        raise ImageTooLarge(
            f"the image has {width}×{height} pixels, the limit is {most:,}",
            remedy=f"Save it with at most {longest:,} pixels on its longer side",
        )


def full_size(image: Image.Image) -> tuple[int, int]:
    """Return the width and height of the photo that an image was decoded from, which may be reduced."""
    size: tuple[int, int] = image.info.get(FULL_SIZE, image.size)
    return size


def fitted(image: Image.Image) -> Image.Image:
    """Return an upright image as RGB (`to_rgb`), at half the scale if it has more than MAX_DECODED pixels."""
    if image.width * image.height <= MAX_DECODED:
        small = to_rgb(image)
    else:
        small = Image.new("RGB", (-(-image.width // 2), -(-image.height // 2)))
        for top in range(0, image.height, ROWS // 4):
            strip = image.crop((0, top, image.width, min(top + ROWS // 4, image.height)))
            rgb = to_rgb(strip.reduce(2)) if strip.mode == "RGBA" else to_rgb(strip).reduce(2)
            small.paste(rgb, (0, top // 2))
    small.info[FULL_SIZE] = image.size
    return small


def turned(image: Image.Image, orientation: int) -> Image.Image:
    """Return an image upright, given its EXIF orientation."""
    if orientation not in TURNS:
        return image
    size, upright = full_size(image), image.transpose(TURNS[orientation])
    upright.info[FULL_SIZE] = size[::-1] if orientation in LYING else size
    return upright


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
