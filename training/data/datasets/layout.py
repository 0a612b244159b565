"""What the readers share: finding the folder, reading its lists, and checking that the photos are there."""

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
AGAIN = "Take the list from the official archive again"


def locate(root: Path, marker: str, *, folder: str) -> Path:
    """Return `root`, or the official folder inside it: the one that holds the file `marker`."""
    for place in (root, root / folder):
        if (place / marker).is_file():
            return place
    raise DataError(
        f"{root} holds no {marker}", remedy=f"Name the folder {folder} of the official archive, or the one it lies in"
    )


def read_rows(path: Path, columns: int, parse: Callable[[list[str]], T], *, heads: int = 0) -> list[T]:
    """Return `parse(words)` of every line of a list with `columns` words a line, after `heads` lines.

    DataError names the line that has another form; `parse` refuses one with ValueError.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", remedy="Unpack the official archive") from error
    except UnicodeDecodeError as error:
        raise DataError(f"{path} is not UTF-8 text: {error}") from error
    found = []
    for number, line in enumerate(text.splitlines(), 1):
        words = line.split()
        if number <= heads or not words:
            continue
        try:
            if len(words) != columns:
                raise ValueError(f"{len(words)} words")
            found.append(parse(words))
        except ValueError as error:
            raise DataError(
                f"{path}, line {number} is not in the official form of {columns} columns ({error})", remedy=AGAIN
            ) from error
    if not found:
        raise DataError(f"{path} is empty", remedy=AGAIN)
    return found


def numbered(pairs: Sequence[tuple[int, T]], path: Path) -> dict[int, T]:
    """Return a list of (id, value) as a mapping, or say which id it holds twice."""
    found: dict[int, T] = {}
    for key, value in pairs:
        if key in found:
            raise DataError(f"{path} holds the id {key} twice", remedy=AGAIN)
        found[key] = value
    return found


def require_photos(photos: Sequence[Photo], *, root: Path, archive: str) -> list[Photo]:
    """Return the photos, or say how many of their files are missing; each folder is listed once."""
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
            f"the first is {missing[0]}",
            remedy=f"Unpack {archive} there",
        )
    return list(photos)


def _names(folder: Path) -> frozenset[str]:
    try:
        return frozenset(os.listdir(folder))  # noqa: PTH208 - names alone, of up to a million files
    except OSError:
        return frozenset()
