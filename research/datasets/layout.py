"""Helpers of the readers: find the folder, read its lists, find the photos."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError

T = TypeVar("T")
PROTOCOL_OPEN, PROTOCOL_SHARED = "open", "shared"
TRAIN, TEST = "train", "test"
AGAIN = "Extract the list from the official archive again"


def locate(root: Path, marks: Sequence[str]) -> Path | None:
    """Return the folder with one of the files or folders `marks`: `root`, or one up to two levels below.

    Returns None if there is none; raises DataError if several folders of the same level have one.
    """
    level = [root]
    for _ in range(3):
        found = [folder for folder in level if has(folder, marks)]
        if len(found) > 1:
            raise DataError(f"{found[0]} and {found[1]} both contain the data set", remedy="Name one of them")
        if found:
            return found[0]
        level = [Path(entry) for folder in level for entry in sorted(_folders(folder))]
    return None


def has(folder: Path, marks: Sequence[str]) -> bool:
    """Return whether a folder has any of these files or folders; one that may not be read has none."""
    try:
        return any((folder / mark).exists() for mark in marks)
    except PermissionError:
        return False


def read_rows(path: Path, columns: int, parse: Callable[[list[str]], T], *, heads: int = 0) -> list[T]:
    """Return `parse(words)` of every line of a list with `columns` words per line, after `heads` header lines.

    Raises DataError for a malformed line, for which `parse` raises ValueError.
    """
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", remedy="Unpack it from the archive") from error
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
    """Return the photos with their paths as they are on disk, where a suffix may have become .JPG.

    Raises DataError if files are missing. Each folder is listed once.
    """
    listed: dict[Path, Mapping[str, str]] = {}
    present, missing = [], []
    for photo in photos:
        parent = photo.path.parent
        if parent not in listed:
            listed[parent] = _names(parent)
        wanted = photo.path.name
        if (name := listed[parent].get(wanted, listed[parent].get(wanted.lower()))) is None:
            missing.append(photo.path)
        else:
            present.append(photo if name == wanted else replace(photo, path=parent / name))
    if missing:
        raise DataError(
            f"{len(missing)} of the {len(photos)} photos of the official lists are not in {root}, "
            f"starting with {missing[0]}",
            remedy=f"Unpack {archive} there",
        )
    return present


def _names(folder: Path) -> Mapping[str, str]:
    """Return the names in a folder, by themselves and by their lower-case form."""
    try:
        names = os.listdir(folder)  # noqa: PTH208 - only names, of up to a million files
    except OSError:
        return {}
    return {name.lower(): name for name in names} | {name: name for name in names}


def _folders(folder: Path) -> list[str]:
    try:
        with os.scandir(folder) as entries:
            return [entry.path for entry in entries if entry.is_dir()]
    except OSError:
        return []
