"""CSV export of a gallery's ids and metadata."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from .protocol import GalleryProtocol

BATCH = 5000  # photos written at a time
IDS = ("photo_id", "item_id")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates text that starts with one of these


def write_table(gallery: GalleryProtocol, path: Path) -> int:
    """Write one line per live photo of one version, with one column per metadata key; return the number of photos.

    Keys that start with _ are internal and left out. Text that a spreadsheet would evaluate as a formula is prefixed
    with a quote (').
    """
    with gallery.one_version():
        first, second = gallery.walk(BATCH), gallery.walk(BATCH)
    keys = sorted({key for photos in first for photo in photos for key in photo.metadata if not key.startswith("_")})
    names = [f"metadata.{key}" if key in IDS else key for key in keys]
    count = 0
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # Excel recognises UTF-8 by its byte order mark
        writer = csv.writer(file)
        writer.writerow([_cell(name) for name in (*IDS, *names)])
        for photos in second:
            writer.writerows(
                [_cell(value) for value in (photo.photo_id, photo.item_id, *map(photo.metadata.get, keys))]
                for photo in photos
            )
            count += len(photos)
    return count


def _cell(value: Any) -> str:
    """Return a JSON value as a cell: text unchanged, null as an empty cell, everything else as JSON."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
