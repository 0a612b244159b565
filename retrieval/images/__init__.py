"""Photos: decoding with limits, preprocessing and thumbnails."""

from .decode import DAMAGED, MAX_BYTES, Source, check_bytes, check_sent, open_image, plain_source, read_file
from .pixels import FULL_SIZE, MAX_DECODED, MAX_JPEG, MAX_PIXELS, MIN_SIDE, full_size
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
    "DAMAGED",
    "FULL_SIZE",
    "MAX_BYTES",
    "MAX_DECODED",
    "MAX_JPEG",
    "MAX_PIXELS",
    "MIN_SIDE",
    "Appearance",
    "Preprocessing",
    "Source",
    "center_crop_resize",
    "check_bytes",
    "check_sent",
    "crop",
    "full_size",
    "open_image",
    "plain_source",
    "read_file",
    "resize",
    "resized",
    "to_tensor",
]
