"""Read and check labelled photos from a folder, a table, tar shards, parquet files with images, or a store."""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tqdm import tqdm

from retrieval.errors import DataError, ImageRefused
from retrieval.images import crop, open_image
from retrieval.images.formats import SUFFIXES
from retrieval.memory import no_collection

from .folders import all_photos, describe_folders, read_folder
from .kinds import set_kinds
from .photos import CATALOGUE, Labels, Photo, PhotoMaker
from .remote import is_url, read_remote_folder, remote
from .remote_tables import name_of, read_remote_table
from .shards import read_shard
from .tables import no_columns, read_header

__all__ = ["CatalogueReport", "Photo", "check_catalogue", "describe_catalogue", "read_catalogue"]

CSV, PARQUET, JSON_LINES, TAR = (".csv", ".tsv"), (".parquet", ".pq"), (".jsonl", ".ndjson"), ".tar"


@dataclass(frozen=True)
class CatalogueReport:
    """Problems of a catalogue; every list is empty for a valid one."""

    photos: int
    items: int
    unreadable: list[tuple[str, str]]  # photo_id, reason
    duplicates: list[list[str]]  # photo_ids with the same bytes
    single_photo_items: list[str]
    split_items: list[str]  # items in more than one partition

    @property
    def usable(self) -> bool:
        """Return whether training can use the catalogue: every photo opens and no item is in two partitions."""
        return not (self.unreadable or self.split_items)


def read_catalogue(
    path: str | Path,
    *,
    columns: Mapping[str, str] | None = None,
    known: Mapping[str, str] | None = None,
    labels: Labels = CATALOGUE,
) -> list[Photo]:
    """Return the photos of a folder, a CSV, parquet or JSON-lines file, or tar shards; raise DataError on invalid data.

    A folder or a table may be on a store, and paths in a table may be addresses (`remote`, `remote_tables`). A parquet
    file, or a folder of them, may hold the images (`embedded`).

    Each folder with photos is an item, and the folders above it form its group (`folders`). Shards are a .tar file or a
    folder of them, with labels beside the photos (`shards`). A file needs a column `path` (relative to the file) and
    `item_id` or `label`. It may have `photo_id`, `group`, `source`, `partition`, `role` (gallery or query), `bbox`
    ("left upper right lower") and any other columns, which become metadata. A CSV may use commas, semicolons, tabs or
    vertical bars as separators (`tables`). Its numbers, booleans and dates are recognized (`kinds`), unless `columns`
    says what a column holds (text, number, boolean or date) or it is `known` from a gallery.

    `labels` may name another column for the items, and allow photos without an item: they have the item_id "". If a
    table may lack the column, the photos of a folder may lie anywhere in it and have no items.
    """
    photos = _read_remote(str(path), labels) if is_url(path) else _read_local(Path(path), labels)
    if not photos:
        raise DataError(
            f"{path} contains no photos", remedy=f"File names of photos end in {', '.join(sorted(SUFFIXES))}"
        )
    _refuse_repeated([photo.photo_id for photo in photos], path)
    is_csv = suffix_of(path) in CSV
    set_kinds(photos, columns or {}, known=known or {}, infer=is_csv, place=path)
    return photos


def is_table(path: str | Path) -> bool:
    """Return whether a path or an address names a table or a tar shard, by its suffix."""
    return suffix_of(path) in (*CSV, *PARQUET, *JSON_LINES, TAR)


def suffix_of(path: str | Path) -> str:
    """Return the suffix of the file at a path or an address, in lower case."""
    return Path(name_of(str(path)) if is_url(path) else path).suffix.lower()


def _read_remote(url: str, labels: Labels) -> list[Photo]:
    if is_table(url):
        return read_remote_table(url, lambda copy: _read_local(copy, labels))
    return read_remote_folder(url, SUFFIXES, labels)


def _read_local(path: Path, labels: Labels) -> list[Photo]:
    if path.suffix.lower() == TAR or (path.is_dir() and any(path.glob("*.tar"))):
        photos = _read_shards(sorted(path.glob("*.tar")) if path.is_dir() else [path], labels)
    elif path.is_dir():
        files = _parquet_files(path)
        folder = all_photos if labels.may_be_missing else read_folder
        photos = [photo for file in files for photo in _read_parquet(file, path, labels)] or folder(path, SUFFIXES)
    elif not path.exists():
        raise DataError(f"{path} does not exist", remedy="Name a folder, a table or tar shards of photos")
    elif path.suffix.lower() in CSV:
        photos = _read_csv(path, labels)
    elif path.suffix.lower() in PARQUET:
        photos = _read_parquet(path, path.parent, labels)
    elif path.suffix.lower() in JSON_LINES:
        photos = _read_json_lines(path, labels)
    else:
        raise DataError(f"{path} is not a folder, CSV, parquet, JSON-lines or tar file", remedy="Name one of these")
    return photos


def _parquet_files(folder: Path) -> list[Path]:
    """Return the parquet files of a folder without photos, as Hugging Face `datasets` writes it."""
    files = sorted(folder.rglob("*.parquet"))
    has_photos = bool(files) and any(file.suffix.lower() in SUFFIXES for file in folder.rglob("*"))
    return [] if has_photos else files


def describe_catalogue(path: str | Path, photos: Sequence[Photo]) -> str:
    """Describe how a catalogue was read: "60 photos of 12 items, from a CSV with commas"."""
    groups = {photo.group for photo in photos} - {""}
    text = f"{len(photos)} photos of {len({photo.item_id for photo in photos})} items"
    text += f" in {len(groups)} group{'s' * (len(groups) > 1)}" if groups else ""
    if is_url(path):
        return text
    path = Path(path)
    if path.is_dir() and not any(path.glob("*.tar")) and not _parquet_files(path):
        return f"{text}, from {describe_folders(photos)}"
    return f"{text}, from {read_header(path).describe()}" if path.suffix.lower() in CSV else text


def check_catalogue(photos: Sequence[Photo], *, progress: bool = True) -> CatalogueReport:
    """Open every photo and report problems that would affect training or a gallery."""
    unreadable: list[tuple[str, str]] = []
    by_content: dict[str, list[str]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    partitions: dict[str, set[str]] = defaultdict(set)
    for photo in tqdm(photos, desc="checking", unit="photo", disable=not progress):
        counts[photo.item_id] += 1
        partitions[photo.item_id].add(photo.partition)
        try:
            data = photo.read()
            crop(open_image(data, min_side=64 if photo.bbox is None else 0), photo.bbox)
            by_content[hashlib.sha256(data).hexdigest()].append(photo.photo_id)
        except ImageRefused as error:
            unreadable.append((photo.photo_id, error.message))
    return CatalogueReport(
        photos=len(photos),
        items=len(counts),
        unreadable=unreadable,
        duplicates=[ids for ids in by_content.values() if len(ids) > 1],
        single_photo_items=sorted(item for item, count in counts.items() if count == 1),
        split_items=sorted(item for item, names in partitions.items() if len(names) > 1),
    )


def _read_csv(path: Path, labels: Labels) -> list[Photo]:
    table = read_header(path, labels)
    return _photos(path, table.columns, table.rows(), labels)


def _read_parquet(path: Path, root: Path, labels: Labels) -> list[Photo]:
    """Return the photos of a parquet file, with the folders below `root` in the ids of photos inside of the file."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from .embedded import embedded, embedded_rows, has_images

    try:
        with pq.ParquetFile(path) as file:
            if has_images(file.schema_arrow):
                names, rows = embedded_rows(file, path)
                above = path.parent.relative_to(root)
                photos = [embedded(photo) for photo in _photos(path, names, rows, labels)]
                return [replace(photo, photo_id=(above / photo.photo_id).as_posix()) for photo in photos]
            columns = file.schema_arrow.names
            blocks = (
                zip(*(column.to_pylist() for column in block.columns), strict=True) for block in file.iter_batches()
            )
            return _photos(path, columns, (row for block in blocks for row in block), labels)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a parquet file: {error}") from error


def _read_json_lines(path: Path, labels: Labels) -> list[Photo]:
    columns: dict[str, int] = {}
    rows: list[list[Any]] = []
    number = 0
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    row = json.loads(line)
                    if not isinstance(row, dict):
                        raise DataError(
                            f"{path}, line {number} is not a JSON object", remedy="Write one object per line"
                        )
                    rows.append(_in_columns(row, columns))
    except (ValueError, RecursionError) as error:  # invalid UTF-8 or JSON
        raise DataError(f"{path}, line {number} is not JSON: {error}") from error
    return _photos(path, list(columns), rows, labels)


def _read_shards(paths: Sequence[Path], labels: Labels) -> list[Photo]:
    photos = []
    for path in paths:
        columns: dict[str, int] = {}
        rows = [_in_columns(row, columns) for row in read_shard(path, SUFFIXES)]
        photos += _photos(path, list(columns), rows, labels) if rows else []
    return photos


def _in_columns(row: Mapping[str, Any], columns: dict[str, int]) -> list[Any]:
    """Return the values of a row in column order, appending its new keys to `columns`."""
    for name in row:
        columns.setdefault(name, len(columns))
    return [row.get(name) for name in columns]


def _photos(
    path: Path, columns: Sequence[str], rows: Iterable[Sequence[Any]], labels: Labels = CATALOGUE
) -> list[Photo]:
    if labels.missing(columns):
        raise no_columns(path, columns, labels)
    maker = PhotoMaker(path, columns, labels)
    place = list(columns).index("path")
    with no_collection():
        return [_placed(maker.photo(number, row), row[place]) for number, row in enumerate(rows, start=2)]


def _placed(photo: Photo, place: Any) -> Photo:
    """Return a photo whose path may be an address."""
    return remote(photo, place) if is_url(place) else photo


def _refuse_repeated(ids: Sequence[str], path: object) -> None:
    seen: set[str] = set()
    for photo_id in ids:
        if photo_id in seen:
            raise DataError(f"{path} names the photo {photo_id} twice", remedy="Give each photo one line")
        seen.add(photo_id)
