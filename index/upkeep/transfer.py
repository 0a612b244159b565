"""Copies of galleries: backups, restored backups, photos added to another gallery; and tables of ids and metadata.

A backup is a folder with one version of a gallery, and is a gallery itself.
"""

from __future__ import annotations

import csv
import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from index.checks import check_values
from index.database import DATABASE, FOLDS_FILE, POINT, RESTORE, Database
from index.errors import DataError, GalleryCorrupt, GalleryError, InvalidParameter
from index.features import FeatureFormat, check_features
from index.files import sync_file, sync_folder, working_folder, write_errors
from index.gallery import Gallery
from index.location import AnyGallery, exists, is_address, open_or_create
from index.upkeep import backup_020
from index.upkeep.verify import files_in_use, fold_problems, verify_files

BATCH = 5000  # photos read at a time
FEATURES_BATCH = 250  # the same in a gallery with features, about 40 KB per photo
TABLE = ".csv"
ATTEMPTS = 5  # at copying one version while another process rewrites files
BLOCK = 2**20  # bytes copied at a time
IDS = ("photo_id", "item_id")
FORMULA = ("=", "+", "-", "@", "\t", "\r")  # a spreadsheet evaluates text that starts with one of these


def export_gallery(gallery: AnyGallery, path: Path, names: Sequence[str] = (POINT,)) -> int:
    """Write one version of a gallery as a new folder and return the number of photos; see `copy_gallery`.

    If the path ends in .csv, write a table for spreadsheets with ids and metadata, which cannot be imported. Raise
    GalleryError if the path exists.
    """
    if path.suffix.lower() == backup_020.ENDING:
        rule = "name a new folder, or end in .csv"
        raise InvalidParameter("output", rule, str(path), remedy="Backups are folders since version 0.3.0")
    if path.exists():
        raise GalleryError(f"{path} exists", remedy="Choose a new name")
    if path.suffix.lower() != TABLE:
        return copy_gallery(gallery, path, names)
    with write_errors(path), working_folder(path) as folder:
        count = _write_table(gallery, folder / path.name)
        sync_file(folder / path.name)
        (folder / path.name).replace(path)
        sync_folder(path.parent)
    return count


@contextmanager
def open_backup(path: Path, *, beside: Path | None, feature_format: FeatureFormat | None = None) -> Iterator[Gallery]:
    """Yield the gallery in a folder that was exported, or made of a file that version 0.2.0 exported.

    The file is read into a temporary folder next to `beside`. Raise DataError if the path holds no backup.
    """
    remedy = "Name a folder that `retrieval gallery export` wrote"
    if exists(path):
        with Gallery.open(path, read_only=True) as gallery:
            yield gallery
        return
    if not path.exists():
        raise DataError(f"{path} does not exist", remedy=remedy)
    if path.is_dir() or path.suffix.lower() == TABLE:
        kind = "is not an exported gallery" if path.is_dir() else "is a table without vectors and cannot be imported"
        raise DataError(f"{path} {kind}", remedy=remedy)
    with working_folder(beside) as folder:
        backup_020.read_backup(path, folder / "gallery", feature_format)
        with Gallery.open(folder / "gallery", read_only=True) as gallery:
            yield gallery


def copy_gallery(
    source: AnyGallery,
    place: Path | str,
    names: Sequence[str] = (POINT,),
    *,
    feature_format: FeatureFormat | None = None,
) -> int:
    """Copy one version of a gallery to a path or an address, and return the number of photos.

    A new local copy of a local gallery is the same to the last bit, with all that is kept. It is complete and verified
    before it gets its name. From or to Milvus, the copy has the photos, the columns and the contents with the given
    `names`. An existing gallery gets the photos and columns, and keeps its own contents.

    Raises
    ------
    GalleryCorrupt
        The source is damaged.
    GalleryError
        The place is taken, or holds a gallery of another model.
    InvalidParameter
        A photo has features that lack the `feature_format`, or a value that a column of the existing gallery refuses.
    """
    if is_address(place) or exists(place):
        return _copy_photos(source, place, names, feature_format)
    place = Path(place)
    if place.exists() and any(place.iterdir()):
        raise GalleryError(f"{place} exists and is not empty", remedy="Choose another directory")
    with write_errors(place), working_folder(place) as folder:
        if isinstance(source, Gallery):
            count = _copy_files(source.path, folder / "gallery")
        else:
            count = _copy_photos(source, folder / "gallery", names, feature_format)
        (folder / "gallery").replace(place)
        sync_folder(place.parent)
    return count


def _copy_files(source: Path, folder: Path) -> int:
    """Copy the newest version of a local gallery while others write, verify it, and return the number of photos."""
    for _ in range(ATTEMPTS):
        with closing(Database(source / DATABASE, read_only=True)) as database:
            state = database.state()
            problems = _copy_version(source, database, folder)
            if not problems:
                with closing(Database(folder / DATABASE, read_only=True)) as copy:
                    return copy.number("photos")
            if database.state() == state:  # otherwise a rebuild removed a file meanwhile
                raise GalleryCorrupt(f"{source}: {problems[0]}", remedy=RESTORE)
        shutil.rmtree(folder)
    raise GalleryError(f"{source} changes faster than it can be copied", remedy="Try again")


def _copy_version(source: Path, database: Database, folder: Path) -> list[str]:
    """Copy one version of a local gallery into a new folder; return the problems of the copy.

    Files that are open stay readable when a rebuild deletes them.
    """
    folder.mkdir()
    with ExitStack() as stack:
        with database.transaction("DEFERRED"):  # files and database of one version
            paths = [path for _, paths, _ in files_in_use(source, database) for path in paths]
            paths += [source / FOLDS_FILE] if (source / FOLDS_FILE).exists() else []
            try:
                files = {path: stack.enter_context(path.open("rb")) for path in paths}
            except FileNotFoundError as error:
                return [f"{error.filename} is missing"]
            database.copy(folder / DATABASE)
        for path, file in files.items():
            target = folder / path.relative_to(source)
            target.parent.mkdir(exist_ok=True)
            with target.open("wb") as copied:
                shutil.copyfileobj(file, copied, BLOCK)
            sync_file(target)
    problems = verify_files(folder) + fold_problems(folder)
    sync_file(folder / DATABASE)
    for made in {folder, *((folder / path.relative_to(source)).parent for path in paths)}:
        sync_folder(made)
    return problems


def _copy_photos(
    source: AnyGallery, place: Path | str, names: Sequence[str], feature_format: FeatureFormat | None
) -> int:
    """Add the photos of a gallery to the one at a place, creating it if needed; check all of them before."""
    key, is_new = source.features_key, not exists(place)
    batch = FEATURES_BATCH if key else BATCH
    problems = source.verify(rows=False)
    if problems:
        raise GalleryCorrupt(f"{source.path}: {problems[0]}", remedy=RESTORE)
    with open_or_create(place, dim=source.dim, embedding_id=source.embedding_id, features_key=key) as target:
        if (target.dim, target.embedding_id, target.features_key) != (source.dim, source.embedding_id, key):
            raise GalleryError(
                f"{place} holds vectors or features of another model than {source.path}",
                remedy="Import into a new gallery",
            )
        for photos in source.walk(batch, whole=bool(key)):
            check_values([photo.metadata for photo in photos], target.columns())
            check_features(_features(photos, key), [photo.photo_id for photo in photos], key, feature_format)
        target.declare(source.columns())
        count = 0
        for photos in source.walk(batch, whole=True):
            count += target.add(
                [photo.photo_id for photo in photos],
                [photo.item_id for photo in photos],
                np.stack([photo.vector for photo in photos]),
                metadata=[photo.metadata for photo in photos],
                thumbnails=[photo.thumbnail for photo in photos],
                features=_features(photos, key),
                upsert=True,
            )
        kept = {name: content for name in names if is_new and (content := source.kept(name)) is not None}
        if kept:
            target.keep(kept, f"import the {' and the '.join(sorted(kept))}")
        target.rebuild_if_due()
    return count


def _features(photos: Sequence[Any], key: str) -> list[bytes] | None:
    return [photo.features for photo in photos] if key else None


def _write_table(gallery: AnyGallery, path: Path) -> int:
    """Write one line per photo, with one column per metadata key; keys that start with _ are internal and left out."""
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
    """Return a JSON value as a cell: text that a spreadsheet would evaluate is prefixed with a quote (')."""
    if isinstance(value, str):
        return f"'{value}" if value.startswith(FORMULA) else value
    return "" if value is None else json.dumps(value, ensure_ascii=False)
