"""Read query photos from folders, tables, single files, addresses and standard input."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrieval.catalogue.photos import LABELS, QUERIES, UNLABELLED, Labels, Photo
from retrieval.catalogue.read import is_table, photos_of, read_catalogue
from retrieval.catalogue.remote import is_url, remote, shown
from retrieval.errors import DataError, InvalidParameter
from retrieval.images.formats import SUFFIXES
from retrieval.text import as_utf8

STDIN = "-"
STDIN_FILE = Path("standard input")  # its paths are relative to the current folder


def is_bulk(place: Path | str) -> bool:
    """Return whether a place is an address, standard input, a folder or a table, rather than a local photo."""
    if is_url(place) or str(place) == STDIN:
        return True
    return Path(place).is_dir() or is_table(place)


def read_queries(places: Sequence[Path | str], *, truth: str | None, lines: Iterable[str]) -> list[Photo]:
    """Return the photos of places: folders, tables, photos, addresses, or "-" for the lines of the standard input.

    A line is a path, or a JSON object as in a JSON-lines catalogue. With `truth`, tables need this column, and the
    sub-folders of a folder name the items; without it, items are ignored.

    The photo_id comes from the table, or is the path relative to the folder, or the path as given; bytes of a file name
    that are not UTF-8 are escaped. Raise DataError if two photos have the same id.
    """
    labels = UNLABELLED if truth is None else replace(QUERIES, columns=(truth,))
    photos: list[Photo] = []
    for place in places:
        photos += _from_lines(lines, labels) if str(place) == STDIN else _photos(place, labels)
    photos = [replace(photo, photo_id=as_utf8(photo.photo_id), item_id=as_utf8(photo.item_id)) for photo in photos]
    seen: set[str] = set()
    for photo in photos:
        if photo.photo_id in seen:
            raise DataError(
                f"two photos have the id {photo.photo_id}", remedy="Search in two runs, or name the photos in a table"
            )
        seen.add(photo.photo_id)
    return photos


def _photos(place: Path | str, labels: Labels) -> list[Photo]:
    if is_bulk(place) and not _is_remote_photo(place):
        photos = read_catalogue(place, labels=labels)
        if not is_table(place) and labels.columns[0] not in LABELS and any(photo.span is None for photo in photos):
            rule = f"be {LABELS[0]} for a folder of photos, whose sub-folders are the items"
            raise InvalidParameter("truth", rule, labels.columns[0])
        return photos
    if not labels.may_be_missing:
        raise DataError(f"the item that {place} shows is unknown", remedy="Name it in a table, or leave out --truth")
    photo = Photo(str(place), Path(place), "")
    return [remote(photo, str(place)) if is_url(place) else photo]


def _is_remote_photo(place: Path | str) -> bool:
    """Return whether an address is that of one photo, rather than of a folder on a store."""
    return is_url(place) and (str(place).startswith("https:") or Path(shown(str(place))).suffix.lower() in SUFFIXES)


def _from_lines(lines: Iterable[str], labels: Labels) -> list[Photo]:
    """Return the photos of lines, each a path, an address, or a JSON object."""
    rows = [_row(line.rstrip("\r\n"), number) for number, line in enumerate(lines, 1) if line.strip()]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    if not rows:
        raise DataError("the standard input names no photos", remedy="Write one path or JSON object per line")
    return photos_of(STDIN_FILE, columns, rows, labels, first_line=1)


def _row(text: str, number: int) -> dict[str, Any]:
    if not text.lstrip().startswith("{"):
        return {"path": text}
    try:
        return dict(json.loads(text))
    except (ValueError, RecursionError) as error:
        raise DataError(f"line {number} of the standard input is not a JSON object: {error}") from error
