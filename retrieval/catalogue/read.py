"""Read labelled photos from a folder, a table, tar shards, parquet files with images, or a folder on a store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from retrieval.errors import DataError, InvalidParameter, counted, listed
from retrieval.images.formats import SUFFIXES
from retrieval.process import no_collection

from .folders import FolderRules, read_folder
from .ids import look_alikes
from .kinds import set_kinds
from .photos import CATALOGUE, Labels, Photo, PhotoMaker, has_value, log
from .remote import check_allowed, is_url, read_remote_folder, remote, shown
from .shards import read_shard
from .tables import CSV, JSON_LINES, PARQUET, SHEETS, TAR, json_objects, no_columns, read_header, refuse_repeated

REMEDIES = 3  # named when several rows are refused

__all__ = ["Photo", "is_table", "read_catalogue"]


def read_catalogue(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    known: Mapping[str, str] | None = None,
    labels: Labels = CATALOGUE,
    folders: FolderRules | None = None,
) -> list[Photo]:
    """Return the photos of a folder, a CSV, parquet or JSON-lines file, or tar shards; raise DataError on invalid data.

    A folder may be on a store, and paths in a table may be addresses that the operator allows (`remote`). A parquet
    file, or a folder of them, may hold the images (`embedded`).

    Each folder with photos is an item, and the folders above it form its group (`folders`). Shards are a .tar file or a
    folder of them, with labels beside the photos (`shards`). A file needs a column `path` (relative to the file) and
    `item_id` or `label`. It may have `photo_id`, `group`, `source`, `partition`, `role` (gallery or query), `bbox`
    ("left upper right lower") and any other columns, which become metadata. A CSV may use commas, semicolons, tabs or
    vertical bars as separators (`tables`). Its numbers and booleans are recognized (`kinds`), unless `columns` says
    what a column holds (text, number or boolean) or it is `known` from a gallery.

    `labels` may name another column for the items, and allow photos without an item: they have the item_id "". If a
    table may lack the column, the photos of a folder may lie anywhere in it and have no items. `folders` says what is
    left out of a folder. Raise InvalidParameter if it says so about anything else.
    """
    rules, parts = folders or FolderRules(), [] if is_url(path) else list(_parts(Path(path)))
    if parts and rules != FolderRules():
        raise InvalidParameter("--ignore and --splits", "be left out unless photos lie in a folder", str(path))
    has_items = not labels.may_be_missing
    if is_url(path):
        photos = _read_address(str(path), rules, has_items=has_items)
    elif parts or not Path(path).is_dir():
        photos = [photo for part in parts for photo in _read_table(part, Path(path), labels)]
    else:
        photos = read_folder(Path(path), rules, has_items=has_items)
    if not photos:
        raise DataError(
            f"{path} contains no photos", remedy=f"File names of photos end in {', '.join(sorted(SUFFIXES))}"
        )
    _refuse_repeated([photo.photo_id for photo in photos], path)
    photos = with_groups(photos)
    if alike := look_alikes({photo.item_id for photo in photos}):
        log.warning(
            "%s that look alike: %s. If they are one item, give it one id",
            counted(len(alike), "item has several ids", "items have several ids"),
            listed(alike, between="; "),
        )
    set_kinds(photos, columns or {}, known=known or {}, infer=Path(path).suffix.lower() in CSV, place=path)
    return photos


def with_groups(photos: list[Photo]) -> list[Photo]:
    """Return the photos with the group of their item: the first that one of its photos names."""
    groups: dict[str, str] = {}
    for photo in photos:
        if photo.group and photo.item_id:
            groups.setdefault(photo.item_id, photo.group)
    named = [groups.get(photo.item_id, photo.group) for photo in photos]
    return [
        photo if photo.group == group else replace(photo, group=group)
        for photo, group in zip(photos, named, strict=True)
    ]


def is_table(path: str | Path) -> bool:
    """Return whether a path names a table or a tar shard, by its suffix."""
    return Path(path).suffix.lower() in (*CSV, *PARQUET, *JSON_LINES, *SHEETS, TAR)


def _read_address(url: str, rules: FolderRules, *, has_items: bool) -> list[Photo]:
    if is_table(shown(url)):
        raise DataError(f"{shown(url)} is a table at an address", remedy="Copy it to this machine")
    return read_remote_folder(url, rules, has_items=has_items)


def _parts(path: Path) -> Iterable[Path]:
    """Return the tables of a path: itself, or the tar shards or parquet files of a folder; none for one of photos."""
    if not path.exists():
        raise DataError(f"{path} does not exist", remedy="Name a folder, a table or tar shards of photos")
    if path.is_file():
        return [path]
    if not path.is_dir():  # a pipe or a device may have no end
        raise DataError(f"{path} is not a file or a folder", remedy="Write the table to a file")
    files = sorted(path.glob("*.tar")) or sorted(path.rglob("*.parquet"))  # as Hugging Face `datasets` writes it
    is_of_photos = files and files[0].suffix != TAR and any(f.suffix.lower() in SUFFIXES for f in path.rglob("*"))
    return [] if is_of_photos else files


def _read_table(path: Path, root: Path, labels: Labels) -> list[Photo]:
    """Return the photos of a table; those inside of a parquet file below `root` have its folders in their ids."""
    kind = path.suffix.lower()
    if kind in PARQUET:
        from .embedded import read_parquet

        above = root if root.is_dir() else path.parent
        return read_parquet(path, above, lambda columns, rows: photos_of(path, columns, rows, labels))
    if kind in CSV:
        table = read_header(path, labels)
        rows = (dict(zip(table.columns, cells, strict=False)) for cells in table.rows())
        return photos_of(path, table.columns, rows, labels, first_line=table.first_line)
    if kind in SHEETS:
        raise DataError(f"{path} is a spreadsheet", remedy="Save it as CSV UTF-8")
    if kind not in (*JSON_LINES, TAR):
        raise DataError(f"{path} is not a folder, CSV, parquet, JSON-lines or tar file", remedy="Name one of these")
    objects = list(read_shard(path, SUFFIXES) if kind == TAR else json_objects(path))
    columns = list(dict.fromkeys(name for each in objects for name in each))
    return photos_of(path, columns, objects, labels, first_line=1) if objects or kind != TAR else []


def photos_of(
    path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]], labels: Labels, *, first_line: int = 2
) -> list[Photo]:
    """Return the photos of rows of a table; raise DataError, with the line numbers, if some are invalid."""
    if labels.missing(columns):
        raise no_columns(path, columns, labels)
    refuse_repeated(path, columns)
    maker, photos, refused = PhotoMaker(path, columns, labels), [], []
    with no_collection():
        for line, row in enumerate(rows, start=first_line):
            if not any(map(has_value, row.values())):
                continue  # a spreadsheet writes the empty rows below a table
            try:
                photos.append(_placed(maker.photo(line, row), row["path"], line))
            except DataError as error:
                refused.append(error)
    if refused:
        remedies = list(dict.fromkeys(error.remedy for error in refused))[:REMEDIES]
        told = listed([error.message for error in refused], between="; ")
        raise DataError(f"{path}, {told}", remedy=". ".join(remedies))
    maker.tell()
    return photos


def _placed(photo: Photo, place: Any, line: int) -> Photo:
    """Return a photo whose path may be an address."""
    if not is_url(place):
        return photo
    check_allowed(place, line)
    return remote(photo, place)


def _refuse_repeated(ids: Sequence[str], path: object) -> None:
    if len(set(ids)) < len(ids):
        repeated = [photo_id for photo_id, count in Counter(ids).items() if count > 1]
        raise DataError(f"{path} names photos twice: {listed(repeated)}", remedy="Give each photo one line")
