"""Tables: reading CSV as spreadsheets write it and JSON lines, and writing CSV.

A CSV may have commas, semicolons, tabs or vertical bars, spaces around cells, a byte order mark, upper case, empty rows
and a line `sep=;` above its header.
"""

from __future__ import annotations

import csv
import io
import json
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from retrieval.errors import DataError, listed
from retrieval.files import read_stretch, write_file

from .photos import CATALOGUE, LABELS, OPTIONAL, Labels, Photo, plain

SEPARATORS = {",": "commas", ";": "semicolons", "\t": "tabs", "|": "vertical bars"}
SHEETS = (".xlsx", ".xlsm", ".xlsb", ".xls", ".ods", ".numbers")  # which no part of this program reads
CSV, PARQUET, JSON_LINES, TAR = (".csv", ".tsv"), (".parquet", ".pq"), (".jsonl", ".ndjson"), ".tar"
ABOVE = re.compile(r'\ufeff?"?(?:sep=([,;\t|]))?[,;\t|"\s]*', re.IGNORECASE)  # an empty row or, for Excel, `sep=;`
WORKBOOKS = (b"PK\3\4", b"\xd0\xcf\x11\xe0")  # beginnings of files of Excel
KNOWN = frozenset(("path", "photo_id", "bbox", *LABELS, *OPTIONAL))


@dataclass(frozen=True)
class Table:
    """Header of a CSV file and the format of its lines."""

    path: Path
    separator: str
    columns: tuple[str, ...]
    spaced: bool  # whether names and cells are surrounded by spaces
    first_line: int = 2  # number of the line below the header

    def rows(self) -> Iterator[list[str]]:
        """Yield the cells of each line below the header, none for a blank line; raise DataError for a damaged line."""
        with _explained(self.path), _opened(self.path) as (*_, file):
            lines = csv.reader(file, delimiter=self.separator, strict=True, skipinitialspace=self.spaced)
            next(lines, None)
            for line in lines:
                if any(line[len(self.columns) :]):
                    told = f"{self.path}, line {lines.line_num}: {len(line)} cells in {len(self.columns)} columns"
                    raise DataError(told, remedy="Put cells with separators in quotes")
                yield [cell.strip() for cell in line] if self.spaced else line

    def describe(self) -> str:
        """Describe the separator: "a CSV with semicolons"."""
        return f"a CSV with {SEPARATORS[self.separator]}"


def read_header(path: Path, labels: Labels = CATALOGUE) -> Table:
    """Return the header of a CSV file, with the separator that yields the columns `path` and that of the labels.

    Known column names are case-insensitive; others are kept unchanged. Raise DataError, quoting the start of the file,
    if no separator fits.
    """
    with _explained(path), _opened(path) as (line, named, _):
        separators = (named,) if named else tuple(SEPARATORS)
    headers = {separator: _first_line(path, separator, skip_spaces=True) for separator in separators}
    for separator, header in headers.items():
        columns = tuple(_name(cell) for cell in header)
        if not labels.missing(columns):
            cells = [*header, *_first_line(path, separator, skip_spaces=False)]
            return Table(path, separator, columns, any(cell != cell.strip() for cell in cells), line + 1)
    separator, header = max(headers.items(), key=lambda entry: len(entry[1]))
    between = f", separated by {SEPARATORS[separator]}" if len(header) > 1 else ""
    raise no_columns(path, header, labels, between=between)


def no_columns(path: Path, columns: Sequence[str], labels: Labels, *, between: str = "") -> DataError:
    """Return the error for a catalogue whose columns lack the path or the label."""
    names = ", ".join(repr(name) for name in columns) or "none"
    needed = "`path`" if labels.may_be_missing else f"`path`, and {labels}"
    return DataError(f"{path} has the columns {names}{between}", remedy=f"It needs {needed}")


def _first_line(path: Path, separator: str, *, skip_spaces: bool) -> list[str]:
    with _explained(path), _opened(path) as (*_, file):
        return next(csv.reader(file, delimiter=separator, skipinitialspace=skip_spaces), [])


@contextmanager
def _opened(path: Path) -> Iterator[tuple[int, str, TextIO]]:
    """Open a CSV at its header, with its line number; the separator is that of a line `sep=;` above it, or ""."""
    if read_stretch(path, 0, 4) in WORKBOOKS:
        raise DataError(f"{path} is a spreadsheet", remedy="Save it as CSV UTF-8")
    with path.open(newline="", encoding="utf-8-sig") as file:
        line, at, named = 1, 0, ""
        while (text := file.readline(10_000)) and (above := ABOVE.fullmatch(text)):
            line, at, named = line + 1, file.tell(), named or above[1] or ""
        file.seek(at)
        yield line, named, file


def _name(cell: str) -> str:
    name = plain(cell)
    return name.lower() if name.lower() in KNOWN else name


def refuse_repeated(path: Path, columns: Sequence[str]) -> None:
    """Raise DataError if two columns have one name."""
    repeated = [name for name, count in Counter(columns).items() if name and count > 1]
    if repeated:
        raise DataError(f"{path} has several columns {repeated[0]!r}", remedy="Give each column a name of its own")


@contextmanager
def _explained(path: Path) -> Iterator[None]:
    try:
        yield
    except (UnicodeDecodeError, csv.Error) as error:
        raise DataError(
            f"{path} is not a UTF-8 CSV file: {error}", remedy="Save it as `CSV UTF-8`, cells with separators in quotes"
        ) from error


def json_objects(path: Path) -> Iterator[dict[str, Any]]:
    """Yield the objects of a JSON-lines file, an empty one for a blank line.

    Raise DataError, at the end, for the lines that are none.
    """
    refused = []
    with path.open("rb") as file:
        for number, line in enumerate(file, 1):
            try:
                row = json.loads(line) if line.strip() else {}
                if not isinstance(row, dict):
                    raise ValueError(f"it is a {type(row).__name__}")
            except (ValueError, RecursionError) as error:  # invalid UTF-8 or JSON
                refused.append(f"line {number} is not a JSON object: {error}")
                continue
            yield row
    if refused:
        raise DataError(f"{path}, {listed(refused, between='; ')}", remedy="Write one object per line")


def write_catalogue(photos: Sequence[Photo], path: Path) -> Path:
    """Write photos as a CSV file for `retrieval.catalogue.read.read_catalogue`; return its path.

    Paths are relative to the CSV if the photos are below its folder, and absolute otherwise. Raise DataError for photos
    in tar shards or parquet files, which are not separate files.
    """
    if any(photo.span is not None for photo in photos):
        raise DataError(
            "photos in tar shards or parquet files are not separate files",
            remedy="Unpack them, or use them as they are",
        )
    known = [name for name in ("group", "source") if any(getattr(photo, name) for photo in photos)]
    boxes = ["bbox"] * any(photo.bbox is not None for photo in photos)
    home = path.resolve().parent
    extra = list(dict.fromkeys(name for photo in photos for name in photo.metadata))
    home.mkdir(parents=True, exist_ok=True)
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow(["photo_id", "path", "item_id", "partition", "role", *known, *boxes, *extra])
    for photo in photos:
        where = photo.path.resolve()
        place = where.relative_to(home).as_posix() if where.is_relative_to(home) else where.as_posix()
        place = getattr(photo, "url", place)  # of a remote photo
        values = [getattr(photo, name) for name in known]
        values += [" ".join(map(str, photo.bbox or ())) for _ in boxes]
        values += [photo.metadata.get(name, "") for name in extra]
        writer.writerow([photo.photo_id, place, photo.item_id, photo.partition, photo.role, *values])
    write_file(path, text.getvalue())
    return path
