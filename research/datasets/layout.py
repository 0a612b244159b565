"""Helpers of the readers: locate the folder, read its lists, check that the photos exist."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError

T = TypeVar("T")
PROTOCOL_OPEN, PROTOCOL_SHARED = "open", "shared"
TRAIN, TEST = "train", "test"
AGAIN = "Extract the list from the official archive again"


def locate(root: Path, marker: str, *, folder: str) -> Path:
    """Return `root` or the official folder inside it, whichever contains the file `marker`."""
    for candidate in (root, root / folder):
        if (candidate / marker).is_file():
            return candidate
    raise DataError(
        f"{root} does not contain {marker}", remedy=f"Name the folder {folder} of the official archive, or its parent"
    )


def read_rows(path: Path, columns: int, parse: Callable[[list[str]], T], *, heads: int = 0) -> list[T]:
    """Return `parse(words)` of every line of a list with `columns` words per line, after `heads` header lines.

    Raises DataError for a malformed line, for which `parse` raises ValueError.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", remedy="Unpack the official archive") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error
    rows = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if number <= heads or not words:
            continue
        try:
            if len(words) != columns:
                raise ValueError(f"{len(words)} words")
            rows.append(parse(words))
        except ValueError as error:
            raise DataError(
                f"{path}, line {number} is not in the official format of {columns} columns ({error})", remedy=AGAIN
            ) from error
    if not rows:
        raise DataError(f"{path} is empty", remedy=AGAIN)
    return rows


def numbered(pairs: Sequence[tuple[int, T]], path: Path) -> dict[int, T]:
    """Return a list of (id, value) as a mapping; raise DataError for a duplicate id."""
    values: dict[int, T] = {}
    for key, value in pairs:
        if key in values:
            raise DataError(f"{path} contains the id {key} twice", remedy=AGAIN)
        values[key] = value
    return values


def require_photos(photos: Sequence[Photo], *, root: Path, archive: str) -> list[Photo]:
    """Return the photos; raise DataError if files are missing. Each folder is listed once."""
    listed: dict[Path, frozenset[str]] = {}
    missing = []
    for photo in photos:
        parent = photo.path.parent
        if parent not in listed:
            listed[parent] = _names(parent)
        if photo.path.name not in listed[parent]:
            missing.append(photo.path)
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(photos)} photos of the official lists are not in {root}, "
            f"starting with {missing[0]}",
            remedy=f"Unpack {archive} there",
        )
    return list(photos)


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - only names, of up to a million files
    except OSError:
        return frozenset()
