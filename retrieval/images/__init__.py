"""Photos: decoding with limits, preprocessing and thumbnails."""

from .decode import FULL_SIZE, MAX_BYTES, Source, open_image, plain_source, read_file
from .formats import check_sent
from .pixels import MAX_PIXELS, MIN_SIDE
from .preprocessing import (
    Appearance,
    Preprocessing,
    center_crop_resize,
    crop,
    resize,
    resized,
    to_tensor,
)

__all__ = [
    "FULL_SIZE",
    "MAX_BYTES",
    "MAX_PIXELS",
    "MIN_SIDE",
    "Appearance",
    "Preprocessing",
    "Source",
    "center_crop_resize",
    "check_sent",
    "crop",
    "open_image",
    "plain_source",
    "read_file",
    "resize",
    "resized",
    "to_tensor",
]
