"""Checks of an opened image, its conversion to RGB, and the errors of decoders as refusals."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
from PIL import Image, UnidentifiedImageError

from retrieval.errors import ImageRefused, ImageTooLarge, ImageUnreadable, ImageUnsupported

from .formats import FORMATS, names

MAX_PIXELS = 25_000_000
MAX_WEBP = 13_000_000  # pixels; a WebP takes 16 to 20 bytes per pixel to decode, others at most 12
MIN_SIDE = 8
MAX_ASPECT = 50
ROWS = 256  # of pixels converted at once
BACKGROUND = (255, 255, 255)  # colour behind transparent pixels
MOVING = ("WEBP", "PNG", "AVIF")  # formats whose file with several frames is an animation

warnings.filterwarnings("ignore", category=Image.DecompressionBombWarning)  # MAX_PIXELS is stricter, and an error


def decoded(work: Callable[[], Image.Image]) -> Image.Image:
    """Run a decoder, and raise its errors as refusals."""
    try:
        return work()
    except ImageRefused:
        raise
    except Image.DecompressionBombError as error:
        raise ImageTooLarge(f"the image has more than {MAX_PIXELS:,} pixels") from error
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
