"""Catalogues from folders: each folder with photos is an item, and the folders above it form its group.

In a folder of photos without sub-folders, each photo is an item.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path

from retrieval.errors import DataError

from .photos import Photo

SHOWN = 3  # names shown in a message
WORDS = {1: "one", 2: "two", 3: "three", 4: "four"}


def read_folder(folder: Path, suffixes: frozenset[str]) -> list[Photo]:
    """Return the photos below a folder in path order; raise DataError if the items are ambiguous.

    `kiwi/1.jpg` shows the item `kiwi`; `veg/kiwi/1.jpg` shows the item `veg/kiwi` of the group `veg`. Without
    sub-folders, `kiwi.jpg` shows the item `kiwi.jpg`, with the name `kiwi` in its metadata. Files and folders whose
    names start with a dot are ignored.
    """
    photos: list[Photo] = []
    for files in _leaves(folder, folder, suffixes, ()):
        if files[0].parent == folder:
            return [Photo(file.name, file, file.name, metadata={"name": file.stem}) for file in files]
        item = files[0].parent.relative_to(folder).as_posix()
        group = item.rpartition("/")[0]
        photos += [Photo(f"{item}/{file.name}", file, item, group) for file in files]
    return photos


def all_photos(folder: Path, suffixes: frozenset[str]) -> list[Photo]:
    """Return all photos below a folder in path order, without items; names that start with a dot are ignored.

    Raise DataError if the folder cannot be read. Links to folders are not followed.
    """

    def failed(error: OSError) -> None:
        raise DataError(f"{error.filename} cannot be read: {error.strerror}") from error

    photos: list[Photo] = []
    for place, folders, files in os.walk(folder, onerror=failed):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith(".") and Path(name).suffix.lower() in suffixes:
                path = Path(place, name)
                photos.append(Photo(path.relative_to(folder).as_posix(), path, ""))
    return sorted(photos, key=lambda photo: photo.photo_id)


def describe_folders(photos: Sequence[Photo]) -> str:
    """Describe the item folders: "one folder per item", "folders two levels deep"."""
    if all(photo.photo_id == photo.item_id for photo in photos):
        return "a folder with one photo per item"
    depths = sorted({photo.item_id.count("/") + 1 for photo in photos})
    if depths == [1]:
        return "one folder per item"
    levels = " to ".join(WORDS.get(depth, str(depth)) for depth in dict.fromkeys((depths[0], depths[-1])))
    return f"folders {levels} levels deep"


def _leaves(
    folder: Path, root: Path, suffixes: frozenset[str], above: tuple[tuple[int, int], ...]
) -> Iterator[list[Path]]:
    """Yield the photos of each folder below `folder` that contains any; `above` identifies its parent folders."""
    try:
        state = folder.stat()
        with os.scandir(folder) as listing:
            entries = sorted(
                (entry for entry in listing if not entry.name.startswith(".")), key=lambda entry: entry.name
            )
    except OSError as error:
        raise DataError(f"{folder} cannot be read: {error.strerror}") from error
    here = (state.st_dev, state.st_ino)
    if here in above:
        raise DataError(f"{folder} is a link to one of its parent folders", remedy="Remove the link")
    photos = [entry for entry in entries if Path(entry.name).suffix.lower() in suffixes and entry.is_file()]
    files = [folder / entry.name for entry in photos]
    folders = [folder / entry.name for entry in entries if entry.is_dir()]
    leaves = [leaf for below in folders for leaf in _leaves(below, root, suffixes, (*above, here))]
    if files and leaves:
        raise _ambiguous(folder, root, files, leaves)
    yield from [files] if files else leaves


def _ambiguous(folder: Path, root: Path, files: Sequence[Path], leaves: Sequence[Sequence[Path]]) -> DataError:
    names = [leaf[0].parent.relative_to(root).as_posix() for leaf in leaves]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return DataError(
        f"{folder} holds photos ({len(files)}, such as {files[0].name}) beside folders of photos "
        f"({', '.join(names[:SHOWN])}{more}): what is an item is unclear",
        remedy="Move these photos into a folder of their own, or list all photos in a CSV with `path` and `item_id`",
    )
