"""Limit the cost of reading the EXIF data of a HEIC file."""

from __future__ import annotations

from .tiff import check_exif_data


def check_heif(data: bytes) -> None:
    """Check the EXIF data of a HEIC file, before the orientation in it is read; no pixel is decoded.

    Raises ImageTooLarge or ImageUnsupported if its directories are not accepted.
    """
    import pillow_heif

    exif = pillow_heif.open_heif(data).info.get("exif")
    if exif:
        check_exif_data(exif)
