"""Catalogues from folders: each folder with photos is an item, and the folders above it form its group.

In a folder of photos without sub-folders, each photo is an item.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path, PurePosixPath

from retrieval.errors import DataError

from .photos import Photo

SHOWN = 3  # names shown in a message
WORDS = {1: "one", 2: "two", 3: "three", 4: "four"}


def read_folder(folder: Path, suffixes: frozenset[str], *, has_items: bool = True) -> list[Photo]:
    """Return the photos below a folder in path order; raise DataError if the items are ambiguous.

    `kiwi/1.jpg` shows the item `kiwi`; `veg/kiwi/1.jpg` shows the item `veg/kiwi` of the group `veg`. Without
    sub-folders, `kiwi.jpg` shows the item `kiwi.jpg`, with the name `kiwi` in its metadata. Files and folders whose
    names start with a dot are ignored. If not `has_items`, photos may lie anywhere and have no items, and links to
    folders are not followed.
    """
    names = list(_names(folder, "", suffixes, (), follow_links=has_items))
    photos = folder_items(names, str(folder), has_items=has_items)
    return [replace(photo, path=folder / photo.path) for photo in photos]


def folder_items(names: Sequence[str], place: str, *, has_items: bool) -> list[Photo]:
    """Return photos with the items that their paths relative to a folder say; `place` is its name in errors."""
    if not has_items:
        return [Photo(name, Path(name), "") for name in sorted(names)]
    folders: dict[str, list[str]] = {}
    for name in sorted(names, key=lambda name: name.split("/")):
        folders.setdefault(name.rpartition("/")[0], []).append(name)
    for folder in folders:
        above = [str(parent).removeprefix(".") for parent in PurePosixPath(folder).parents] if folder else []
        if both := [parent for parent in above if parent in folders]:
            raise _ambiguous(place, both[0], folders)
    if "" in folders:
        return [Photo(name, Path(name), name, metadata={"name": Path(name).stem}) for name in folders[""]]
    return [
        Photo(name, Path(name), item, item.rpartition("/")[0]) for item, photos in folders.items() for name in photos
    ]


def describe_folders(photos: Sequence[Photo]) -> str:
    """Describe the item folders: "one folder per item", "folders two levels deep"."""
    if all(photo.photo_id == photo.item_id for photo in photos):
        return "a folder with one photo per item"
    depths = sorted({photo.item_id.count("/") + 1 for photo in photos})
    if depths == [1]:
        return "one folder per item"
    levels = " to ".join(WORDS.get(depth, str(depth)) for depth in dict.fromkeys((depths[0], depths[-1])))
    return f"folders {levels} levels deep"


def _names(
    folder: Path, inside: str, suffixes: frozenset[str], above: tuple[tuple[int, int], ...], *, follow_links: bool
) -> Iterator[str]:
    """Yield the paths of all photos below a folder; `above` identifies its parent folders."""
    try:
        state = folder.stat()
        with os.scandir(folder) as listing:
            entries = [entry for entry in listing if not entry.name.startswith(".")]
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
    here = (state.st_dev, state.st_ino)
    if here in above:
        raise DataError(f"{folder} is a link to one of its parent folders", remedy="Remove the link")
    for entry in entries:
        if _is_folder(entry, follow_links=follow_links):
            deeper = f"{inside}{entry.name}/"
            yield from _names(folder / entry.name, deeper, suffixes, (*above, here), follow_links=follow_links)
        elif Path(entry.name).suffix.lower() in suffixes and _is_photo(entry):
            yield inside + entry.name


def _is_folder(entry: os.DirEntry[str], *, follow_links: bool) -> bool:
    """Return whether an entry is a folder, or a link to one if links are followed."""
    return entry.is_dir(follow_symlinks=False) or (follow_links and entry.is_symlink() and Path(entry).is_dir())


def _is_photo(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a file, or a link to one or to nothing, which is refused when it is read."""
    if not entry.is_symlink():
        return entry.is_file()
    return Path(entry).is_file() or not Path(entry).exists()


def _ambiguous(place: str, folder: str, folders: dict[str, list[str]]) -> DataError:
    names = [name for name in folders if name != folder and name.startswith(f"{folder}/" if folder else "")]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    first = folders[folder][0].rpartition("/")[2]
    return DataError(
        f"{place}{'/' if folder else ''}{folder} holds photos ({len(folders[folder])}, such as {first}) beside folders "
        f"of photos ({', '.join(names[:SHOWN])}{more}): what is an item is unclear",
        remedy="Move these photos into a folder of their own, or list all photos in a CSV with `path` and `item_id`",
    )
