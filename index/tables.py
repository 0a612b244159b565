"""A gallery's photos as a table for spreadsheets: a CSV file of ids and metadata."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

from .gallery import Gallery

BATCH = 5000  # photos written at a time
IDS = ("photo_id", "item_id")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a cell of text that begins so would be computed


def write_table(gallery: Gallery, path: Path) -> int:
    """Write a line per live photo of one version, a column per metadata key, and return how many.

    Keys that begin with _ are the program's own and left out. Text that a spreadsheet would take for a formula gets a
    quote (') in front of it.
    """
    now = gallery.snapshot()
    keys = sorted(
        {
            key
            for photos in gallery.walk(BATCH, snapshot=now)
            for photo in photos
            for key in photo.metadata
            if not key.startswith("_")
        }
    )
    names = [f"metadata.{key}" if key in IDS else key for key in keys]
    count = 0
    with path.open("w", newline="", encoding="utf-8-sig") as file:  # Excel takes plain UTF-8 for something else
        writer = csv.writer(file)
        writer.writerow([_cell(name) for name in (*IDS, *names)])
        for photos in gallery.walk(BATCH, snapshot=now):
            writer.writerows(
                [_cell(value) for value in (photo.photo_id, photo.item_id, *map(photo.metadata.get, keys))]
                for photo in photos
            )
            count += len(photos)
    return count


def _cell(value: Any) -> str:
    """Return a JSON value as a cell: text as it is, nothing for null, the rest as JSON."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
