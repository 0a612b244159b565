"""Catalogues from folders: each folder with photos is an item, and the folders above it form its group.

In a folder of photos without sub-folders, each photo is an item. Hidden files and the folders that systems make are
left out. What is passed over is counted by kind.
"""

from __future__ import annotations

import os
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import Literal

from retrieval.errors import DataError, command, counted, listed
from retrieval.files import read_stretch
from retrieval.images.formats import BRANDS, SUFFIXES, format_of
from retrieval.text import printable

from .photos import Photo, log, plain

SHOWN = 3  # names shown in a message
WORDS = {1: "one", 2: "two", 3: "three", 4: "four"}
SYSTEM = {  # names of folders, in lower case
    *("@eadir", "@recycle", "@recently-snapshot", "@sharebin", "@snapshot", "@snapshots", "@tmp", "#recycle"),
    *("#snapshot", "~snapshot", "$recycle.bin", "recycler", "system volume information", "__macosx", "lost+found"),
    *("network trash folder", "temporary items", "found.000"),
}
SPLITS = {
    **dict.fromkeys(("train", "training"), "train"),
    **dict.fromkeys(("val", "valid", "validation"), "validation"),
    **dict.fromkeys(("test", "testing"), "test"),
}


@dataclass(frozen=True)
class FolderRules:
    """What is left out below a folder, and what folders such as `train` and `val` above the items mean."""

    ignore: tuple[str, ...] = ()  # patterns of names, or of paths below the folder, that are left out
    splits: Literal["merge", "partitions"] | None = None  # items of one name are one; partitions keeps the folders


@dataclass
class Listing:
    """The photos below a folder, and the number of other files and folders by kind."""

    rules: FolderRules
    passed: Counter[str] = field(default_factory=Counter)

    def names(
        self, folder: Path, inside: str = "", above: tuple[tuple[int, int], ...] = (), *, follow_links: bool
    ) -> Iterator[str]:
        """Yield the paths of all photos below a folder; `above` identifies its parent folders."""
        try:
            state = folder.stat()
            with os.scandir(folder) as listing:
                entries = list(listing)
        except OSError as error:
            raise DataError(f"{folder} cannot be read: {error.strerror}") from error
        here = (state.st_dev, state.st_ino)
        if here in above:
            raise DataError(f"{folder} is a link to one of its parent folders", remedy="Remove the link")
        for entry in entries:
            name, is_folder = inside + entry.name, _is_folder(entry, follow_links=follow_links)
            kind = self._kind(name, is_folder=is_folder)
            if kind or not (is_folder or _is_photo(entry)):
                self.passed[kind or _suffix(name) or "no suffix"] += 1
            elif is_folder:
                yield from self.names(folder / entry.name, f"{name}/", (*above, here), follow_links=follow_links)
            else:
                yield name

    def takes(self, name: str) -> bool:
        """Return whether the path of an object below a folder of a store is that of a photo, by its suffix."""
        above = reversed(PurePosixPath(name).parents[:-1])
        kinds = [*(self._kind(str(folder), is_folder=True) for folder in above), self._kind(name, is_folder=False)]
        kind = next(filter(None, kinds), "" if _suffix(name) in SUFFIXES else _suffix(name) or "no suffix")
        self.passed.update([kind] if kind else [])
        return not kind

    def _kind(self, path: str, *, is_folder: bool) -> str:
        """Return the kind of a file or folder that is left out whatever it holds, "" for any other."""
        name = path.rpartition("/")[2]
        for pattern in self.rules.ignore:
            form = plain(pattern).removeprefix("**/").removesuffix("/**").rstrip("/")
            if fnmatchcase(plain(name), form) or fnmatchcase(plain(path), form):
                return f"--ignore {pattern}"
        if is_folder and (name.lower() in SYSTEM or name.lower().startswith((".", "@__", "@gmt-"))):
            return f"{name}/"
        return "hidden" if name.startswith(".") else ""

    def tell(self, place: object) -> None:
        """Say what was passed over in a folder, by kind, and which patterns match nothing."""
        self.passed.update({f"--ignore {pattern}": 0 for pattern in self.rules.ignore})
        if kinds := [f"{printable(kind)} {count:,}" for kind, count in self.passed.most_common()]:
            log.warning(
                "%s passed over in %s: %s",
                counted(self.passed.total(), "file or folder", "files or folders"),
                place,
                listed(kinds),
            )


def read_folder(folder: Path, rules: FolderRules, *, has_items: bool = True) -> list[Photo]:
    """Return the photos below a folder in path order; raise DataError if the items are ambiguous.

    `kiwi/1.jpg` shows the item `kiwi`; `veg/kiwi/1.jpg` shows the item `veg/kiwi` of the group `veg`. Without
    sub-folders, `kiwi.jpg` shows the item `kiwi`, which is also the name in its metadata. A file is a photo by its
    suffix, or else by its first bytes. If not `has_items`, photos may lie anywhere and have no items, and links to
    folders are not followed.
    """
    listing = Listing(rules)
    names = list(listing.names(folder, follow_links=has_items))
    listing.tell(folder)
    photos = folder_items(names, str(folder), rules, has_items=has_items)
    return [replace(photo, path=folder / photo.path) for photo in photos]


def folder_items(names: Sequence[str], place: str, rules: FolderRules, *, has_items: bool) -> list[Photo]:
    """Return photos with the items that their paths relative to a folder say; `place` is its name in errors.

    Raise DataError if the items are ambiguous: photos beside folders, or folders such as `train` and `val` with items
    of one name, about which `rules` say nothing.
    """
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
        return [Photo(name, Path(name), _stem(name), metadata={"name": _stem(name)}) for name in folders[""]]
    items = {folder: _without_split("/".join(map(plain, folder.split("/")))) for folder in folders}
    if rules.splits is None:
        _refuse_splits(place, items.values())
        items = {folder: ("/".join(map(plain, folder.split("/"))), "") for folder in folders}
    return [
        Photo(
            name,
            Path(name),
            item,
            item.rpartition("/")[0],
            partition=SPLITS.get(split.lower() * (rules.splits == "partitions"), ""),
        )
        for folder, (item, split) in items.items()
        for name in folders[folder]
    ]


def _stem(name: str) -> str:
    """Return the name of a file without the suffix of a photo, such as .jpg or .jpg_large."""
    return plain(PurePosixPath(name).stem if _suffix(name).startswith(tuple(SUFFIXES)) else name)


def _suffix(name: str) -> str:
    return PurePosixPath(name).suffix.lower()


def _without_split(item: str) -> tuple[str, str]:
    """Return an item without the folder of a split in its path, and the name of this folder, "" if there is none."""
    parts = item.split("/")
    at = next((place for place, part in enumerate(parts) if part.lower() in SPLITS and len(parts) > 1), None)
    return (item, "") if at is None else ("/".join(parts[:at] + parts[at + 1 :]), parts[at])


def _refuse_splits(place: str, items: Iterable[tuple[str, str]]) -> None:
    """Raise DataError if folders of several splits have items of one name."""
    folders: dict[str, set[str]] = defaultdict(set)
    for item, split in items:
        folders[item].update({split} - {""})
    if shared := [item for item, splits in folders.items() if len(splits) > 1]:
        raise DataError(
            f"{place}: the folders {' and '.join(sorted({split for item in shared for split in folders[item]}))} "
            f"have items of one name ({len(shared):,}, such as {shared[0]})",
            remedy="If a name is one item, pass --splits merge, or --splits partitions to keep these folders as the "
            "column `partition`. A command without this option reads the table of "
            f"`{command('data', 'table', place, '-o', 'photos.csv', '--splits', 'merge')}`",
        )


def describe_folders(photos: Sequence[Photo]) -> str:
    """Describe the item folders: "one folder per item", "folders two levels deep"."""
    if all("/" not in photo.photo_id for photo in photos):
        return "a folder with one photo per item"
    depths = sorted({photo.item_id.count("/") + 1 for photo in photos})
    if depths == [1]:
        return "one folder per item"
    levels = " to ".join(WORDS.get(depth, str(depth)) for depth in dict.fromkeys((depths[0], depths[-1])))
    return f"folders {levels} levels deep"


def _is_folder(entry: os.DirEntry[str], *, follow_links: bool) -> bool:
    """Return whether an entry is a folder, or a link to one if links are followed."""
    return entry.is_dir(follow_symlinks=False) or (follow_links and entry.is_symlink() and Path(entry).is_dir())


def _is_photo(entry: os.DirEntry[str]) -> bool:
    """Return whether an entry is a photo by its suffix or first bytes; a link to nothing is refused when it is read."""
    suffix = _suffix(entry.name)
    if suffix in SUFFIXES:
        link = Path(entry)
        return entry.is_file(follow_symlinks=False) or (entry.is_symlink() and (link.is_file() or not link.exists()))
    try:
        head = read_stretch(entry.path, 0, BRANDS)
    except OSError:
        return False
    form = format_of(head)
    if form is None or (form.name in ("TIFF", "BMP") and suffix):  # what cameras write beside a photo, or a text
        return False
    return form.name != "WEBP" or head[8:12] == b"WEBP"  # not a sound or a film


def _ambiguous(place: str, folder: str, folders: dict[str, list[str]]) -> DataError:
    names = [name for name in folders if name != folder and name.startswith(f"{folder}/" if folder else "")]
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    first = folders[folder][0].rpartition("/")[2]
    return DataError(
        f"{place}{'/' if folder else ''}{folder} holds photos ({len(folders[folder])}, such as {first}) beside folders "
        f"of photos ({', '.join(names[:SHOWN])}{more}): what is an item is unclear",
        remedy="Move these photos into a folder of their own, leave folders out with --ignore NAME, or list all photos "
        "in a CSV with `path` and `item_id`",
    )
