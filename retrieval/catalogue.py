"""Photos with labels: read from a folder, a CSV, parquet or JSON-lines file or tar shards, and checked."""

from __future__ import annotations

import csv
import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tqdm import tqdm

from .errors import DataError, ImageRefused, ImageUnreadable
from .images import MAX_BYTES, open_image
from .shards import SPAN, read_shard

SUFFIXES = frozenset((".jpg", ".jpeg", ".png", ".webp"))
OPTIONAL = ("group", "source", "partition", "role")
ROLES = frozenset(("", "gallery", "query"))


@dataclass(frozen=True)
class Photo:
    """One image of one item; `metadata` holds the catalogue's other columns."""

    photo_id: str
    path: Path
    item_id: str
    group: str = ""
    source: str = ""
    partition: str = ""
    role: str = ""
    bbox: tuple[float, float, float, float] | None = None  # left, upper, right, lower in pixels
    metadata: Mapping[str, Any] = field(default_factory=dict)
    span: tuple[int, int] | None = None  # offset and size of its bytes, where the file holds more than the photo

    def read(self) -> bytes:
        """Return the encoded photo, up to just beyond the bytes that are accepted; ImageUnreadable where it is gone."""
        offset, size = self.span or (0, MAX_BYTES + 1)
        try:
            with self.path.open("rb") as file:
                file.seek(offset)
                return file.read(min(size, MAX_BYTES + 1))
        except OSError as error:
            raise ImageUnreadable(f"{self.path} cannot be read: {error.strerror}") from error


@dataclass(frozen=True)
class CatalogueReport:
    """What is wrong with a catalogue; every list is empty when nothing is."""

    photos: int
    items: int
    unreadable: list[tuple[str, str]]  # photo_id, reason
    duplicates: list[list[str]]  # photo_ids with the same bytes
    single_photo_items: list[str]
    split_items: list[str]  # items that stand in more than one partition

    @property
    def usable(self) -> bool:
        """Whether training can use it: every photo opens and no item is in two partitions."""
        return not (self.unreadable or self.split_items)


def read_catalogue(path: str | Path) -> list[Photo]:
    """Return the photos of a folder (one sub-folder an item), a CSV, parquet or JSON-lines file, or tar shards.

    Shards are a .tar file or a folder of them, photos beside their lines (`shards`). A file needs a column `path`
    (relative to the file) and `item_id` or `label`; it may have `photo_id`, `group`, `source`, `partition`, `role`
    (gallery or query), `bbox` ("left upper right lower") and any
    other columns, which become metadata. Raises DataError.
    """
    path = Path(path)
    if path.suffix.lower() == ".tar" or (path.is_dir() and any(path.glob("*.tar"))):
        photos = _read_shards(sorted(path.glob("*.tar")) if path.is_dir() else [path])
    elif path.is_dir():
        photos = _read_folder(path)
    elif not path.exists():
        raise DataError(f"{path} does not exist", remedy="Name a folder, a table or tar shards of photos")
    elif path.suffix.lower() == ".csv":
        photos = _read_csv(path)
    elif path.suffix.lower() in (".parquet", ".pq"):
        photos = _read_parquet(path)
    elif path.suffix.lower() in (".jsonl", ".ndjson"):
        photos = _read_json_lines(path)
    else:
        raise DataError(f"{path} is no folder, CSV, parquet, JSON-lines or tar file", remedy="Name one of these")
    if not photos:
        raise DataError(f"{path} holds no photo", remedy=f"Photos end in {', '.join(sorted(SUFFIXES))}")
    _refuse_twice([photo.photo_id for photo in photos], path)
    return photos


def check_catalogue(photos: Sequence[Photo], *, progress: bool = True) -> CatalogueReport:
    """Open every photo and look for what would spoil training or a gallery."""
    unreadable: list[tuple[str, str]] = []
    by_content: dict[str, list[str]] = defaultdict(list)
    counts: dict[str, int] = defaultdict(int)
    partitions: dict[str, set[str]] = defaultdict(set)
    for photo in tqdm(photos, desc="checking", unit="photo", disable=not progress):
        counts[photo.item_id] += 1
        partitions[photo.item_id].add(photo.partition)
        try:
            data = photo.read()
            open_image(data, min_side=64)
            by_content[hashlib.sha256(data).hexdigest()].append(photo.photo_id)
        except ImageRefused as error:
            unreadable.append((photo.photo_id, error.message))
    return CatalogueReport(
        photos=len(photos),
        items=len(counts),
        unreadable=unreadable,
        duplicates=[ids for ids in by_content.values() if len(ids) > 1],
        single_photo_items=sorted(item for item, count in counts.items() if count == 1),
        split_items=sorted(item for item, found in partitions.items() if len(found) > 1),
    )


def _read_folder(folder: Path) -> list[Photo]:
    files = sorted(f for f in folder.glob("*/**/*") if f.is_file() and f.suffix.lower() in SUFFIXES)
    loose = [f for f in folder.iterdir() if f.suffix.lower() in SUFFIXES]
    if loose and not files:
        raise DataError(
            f"{folder} holds photos, but no folder an item",
            remedy=f"Move {loose[0].name} to ITEM/{loose[0].name}",
        )
    return [
        Photo(photo_id=f.relative_to(folder).as_posix(), path=f, item_id=f.relative_to(folder).parts[0]) for f in files
    ]


def _read_csv(path: Path) -> list[Photo]:
    try:
        with path.open(newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, strict=True)
            columns = reader.fieldnames or []
            return _photos(path, columns, reader)
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(f"{path} is not a UTF-8 CSV file: {error}") from error


def _read_parquet(path: Path) -> list[Photo]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path} is not a parquet file: {error}") from error
    return _photos(path, table.column_names, table.to_pylist())


def _read_json_lines(path: Path) -> list[Photo]:
    rows = []
    try:
        with path.open(encoding="utf-8-sig") as file:
            for number, line in enumerate(file, 1):
                if line.strip():
                    rows.append(json.loads(line))
                    if not isinstance(rows[-1], dict):
                        raise DataError(f"{path}, line {number} holds no object", remedy="Write one object a line")
    except ValueError as error:  # no UTF-8, or no JSON
        raise DataError(f"{path}, line {len(rows) + 1} is not JSON: {error}") from error
    return _photos(path, list(dict.fromkeys(name for row in rows for name in row)), rows)


def _read_shards(paths: Sequence[Path]) -> list[Photo]:
    photos = []
    for path in paths:
        rows = list(read_shard(path, SUFFIXES))
        photos += _photos(path, list(dict.fromkeys(name for row in rows for name in row)), rows) if rows else []
    return photos


def _photos(path: Path, columns: Sequence[str], rows: Iterable[Mapping[str, Any]]) -> list[Photo]:
    label = next((name for name in ("item_id", "label") if name in columns), None)
    if "path" not in columns or label is None:
        raise DataError(
            f"{path} has the columns {', '.join(columns) or 'none'}",
            remedy="It needs `path`, and `item_id` or `label`",
        )
    return [_photo(path, number, row, label) for number, row in enumerate(rows, start=2)]


def _photo(catalogue: Path, line: int, row: Mapping[str, Any], label: str) -> Photo:
    values = {key: value for key, value in row.items() if key is not None}
    if not values.get("path") or values.get(label) in (None, ""):
        raise DataError(f"{catalogue}, line {line}: path or {label} is empty", remedy="Fill it, or drop the line")
    plain = {name: str(values.get(name) or "") for name in OPTIONAL}
    if plain["role"] not in ROLES:
        raise DataError(f"{catalogue}, line {line}: role is {plain['role']!r}", remedy="Use gallery or query")
    known = {"path", "photo_id", "bbox", SPAN, label, *OPTIONAL}
    return Photo(
        photo_id=str(values.get("photo_id") or values["path"]),
        path=catalogue.parent / str(values["path"]),
        item_id=str(values[label]),
        bbox=_bbox(values.get("bbox"), f"{catalogue}, line {line}"),
        metadata={key: _plain(value) for key, value in values.items() if key not in known and _says(value)},
        span=values.get(SPAN),
        **plain,
    )


def _says(value: Any) -> bool:
    """Return whether a cell holds anything: not nothing, not an empty text, not NaN."""
    return value is not None and value != "" and not (isinstance(value, float) and math.isnan(value))


def _plain(value: Any) -> Any:
    """Return a cell as a JSON value: dates and anything unusual as text."""
    return value if isinstance(value, str | int | float | bool) else str(value)


def _bbox(value: Any, where: str) -> tuple[float, float, float, float] | None:
    if value is None or value == "":
        return None
    words = value.replace(",", " ").split() if isinstance(value, str) else list(value)
    try:
        left, upper, right, lower = (float(word) for word in words)
    except ValueError as error:
        raise DataError(f"{where}: bbox is {value!r}", remedy="Write left upper right lower in pixels") from error
    if not (0 <= left < right and 0 <= upper < lower):
        raise DataError(f"{where}: bbox {value!r} is empty", remedy="Write left upper right lower in pixels")
    return (left, upper, right, lower)


def _refuse_twice(ids: Sequence[str], path: Path) -> None:
    seen: set[str] = set()
    for photo_id in ids:
        if photo_id in seen:
            raise DataError(f"{path} names the photo {photo_id} twice", remedy="Give each photo one line")
        seen.add(photo_id)
