"""Photos with their catalogue data, and their construction from rows."""

from __future__ import annotations

import logging
import math
import os
import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from sys import intern
from typing import Any, ClassVar
from urllib.parse import unquote

from index.groups import GROUP, group_key, group_of
from retrieval.errors import DataError, ImageUnreadable, counted
from retrieval.files import read_stretch
from retrieval.images import MAX_BYTES, check_bytes

from .shards import SPAN

LABELS = ("item_id", "label")
OPTIONAL = ("group", "source", "partition", "role")
ROLES = frozenset(("", "gallery", "query"))
NOTHING = re.compile(  # what databases, programs and spreadsheets write for no value
    r"[(<\[]?(?:null|nil|none|nan|na|n/a|nat|undefined)[)>\]]?|\(blank\)|n\.a\.|\\n|[-–—?#]+"
    r"|#(?:na|nv|n/\w+|[^\s\d]\S* ?[!?])",
    re.IGNORECASE,
)
ROUNDED = re.compile(r"[-+]?\d(?:[.,]\d+[eE]\+?|[eE]\+)\d{1,3}")  # a number as a spreadsheet shows long ones
FILE = re.compile("^file:(//(localhost(?=/))?)?", re.IGNORECASE)  # before the path in an address of a file
ODD = re.compile(r"[\\%]|[^\x00-\x7f]")  # in paths that may be spelled otherwise
BLANK = (
    *(*range(0x21), 0x85, 0xA0, 0x1680, 0x205F, 0x2060, 0x3000, 0xFEFF),
    *(*range(0x2000, 0x2010), *range(0x2028, 0x2030)),
)
EDGES = "".join(map(chr, BLANK))  # spaces and what has no width: joiners, directions, byte order marks

log = logging.getLogger("retrieval.catalogue")


@dataclass(frozen=True)
class Labels:
    """The column of a table with the items, and whether it may be empty or missing."""

    columns: tuple[str, ...] = LABELS  # the first one that the table has counts
    may_be_empty: bool = False
    may_be_missing: bool = False

    def column(self, names: Sequence[str]) -> str | None:
        """Return the column among the names of a table, None if there is none."""
        return next((name for name in self.columns if name in names), None)

    def missing(self, names: Sequence[str]) -> bool:
        """Return whether a table lacks the column `path`, or a label that it needs."""
        return "path" not in names or not (self.may_be_missing or self.column(names))

    def __str__(self) -> str:
        """Name the columns: "`item_id` or `label`"."""
        return " or ".join(f"`{name}`" for name in self.columns)


CATALOGUE = Labels()
QUERIES = Labels(may_be_empty=True)  # a photo without an item shows an unknown one
UNLABELLED = Labels(may_be_empty=True, may_be_missing=True)


@dataclass(frozen=True, slots=True)
class Photo:
    """One image of one item; `metadata` holds the other columns of the catalogue."""

    photo_id: str
    path: Path
    item_id: str
    group: str = ""
    source: str = ""
    partition: str = ""
    role: str = ""
    bbox: tuple[float, float, float, float] | None = None  # left, upper, right, lower in pixels
    metadata: Mapping[str, Any] = field(default_factory=dict)
    span: tuple[int, int] | None = None  # offset and size of the photo in a file with other content
    reads_ahead: ClassVar[bool] = True  # whether it may be read long before it is decoded

    @property
    def group_key(self) -> str:
        """What identifies the group of the item, as a gallery has it, or the item without one."""
        return group_key(self.item_id, group_of(self.item_id, {GROUP: self.group}))

    def read(self) -> bytes:
        """Return the encoded photo; raise ImageUnreadable if it is missing, and ImageTooLarge if it is too large."""
        try:
            offset, size = self.span or (0, self.path.stat().st_size)
            check_bytes(self.path, size)
            return read_stretch(self.path, offset, size if self.span else MAX_BYTES + 1)
        except OSError as error:
            raise ImageUnreadable(
                f"{self.path} cannot be read: {error.strerror}"
                + " (the backslashes are those of a path on Windows)" * ("\\" in str(self.path))
            ) from error
        except ValueError as error:  # a path that no file can have, with a zero byte
            raise ImageUnreadable(f"{str(self.path)!r} cannot be read: {error}") from error

    def state(self) -> str:
        """Return a text that changes with the file, without reading it: its size, time and place; "" if unknown."""
        try:
            file = self.path.stat()
        except (OSError, ValueError):
            return ""
        return " ".join(map(str, (file.st_size, file.st_mtime_ns, *(self.span or ()))))


@dataclass(frozen=True, slots=True)
class UploadedPhoto(Photo):
    """A photo whose encoded content is in memory."""

    content: bytes = b""
    reads_ahead: ClassVar[bool] = False

    def read(self) -> bytes:
        """Return the encoded photo."""
        return self.content

    def state(self) -> str:
        """Return "": the photo is not a file."""
        return ""


class PhotoMaker:
    """Construct photos from the rows of one file, sharing repeated values because catalogues have millions of rows."""

    def __init__(self, catalogue: Path, columns: Sequence[str], labels: Labels = CATALOGUE) -> None:
        self._catalogue, self._labels = catalogue, labels
        self._label = labels.column(columns)
        self._others = [
            name for name in columns if name not in {"", "path", "photo_id", "bbox", SPAN, *OPTIONAL, self._label}
        ]
        self._path: tuple[str, str, Path] = ("", "", catalogue)  # as written, the photo's id, and the file
        self._respelled: dict[str, list[str]] = {}  # paths that differ from what the table has, by the reason
        self._metadata: dict[str, Any] = {}

    def photo(self, line: int, cells: Mapping[str, Any]) -> Photo:
        """Return the photo of a row; raise DataError with its line number if the row is invalid."""
        name, where = cells.get("path"), f"line {line}"
        item = None if self._label is None else cells.get(self._label)
        item_id = _text(item)
        if not name or not (item_id or self._labels.may_be_empty):
            needed = "path" if self._label is None else f"path or {self._label}"
            told = (
                f"{self._label} is {item!r}, a word for no item" if name and has_value(item) else f"{needed} is empty"
            )
            raise DataError(f"{where}: {told}", remedy="Fill it in, or remove the line")
        if ROUNDED.fullmatch(item_id) and not self._labels.may_be_missing:
            raise DataError(
                f"{where}: {self._label} is {item_id!r}, a rounded number",
                remedy="Save it again with that column as text",
            )
        for column in ("path", "photo_id", self._label, *OPTIONAL):
            if column is not None and isinstance(cells.get(column), dict | list):  # of JSON lines or parquet
                raise DataError(f"{where}: {column} is {cells[column]!r}", remedy="Write ids and paths as text")
        if str(name) != self._path[0]:  # photos of one shard share the path
            self._path = (str(name), *self._found(str(name)))
        group, source, partition, role = (intern(_text(cells.get(name))) for name in OPTIONAL)
        if role not in ROLES:
            raise DataError(f"{where}: role is {role!r}", remedy="Use gallery or query")
        return Photo(
            photo_id=str(cells.get("photo_id") or self._path[1]),
            path=self._path[2],
            item_id=intern(item_id),
            group=group,
            source=source,
            partition=partition,
            role=role,
            bbox=_bbox(cells.get("bbox"), where),
            metadata=self._rest(cells),
            span=span if isinstance(span := cells.get(SPAN), tuple) else None,  # a table has no tuples
        )

    def _found(self, name: str) -> tuple[str, Path]:
        """Return a path as the table should have it, and its file, or the one at a path that looks alike."""
        home, bare = self._catalogue.parent, name.strip(EDGES)
        local = FILE.sub("", bare)
        if "://" in local or (local == name and not ODD.search(name)) or _is_there(home / name):
            return name, home / name
        slashes = local.replace("\\", "/")
        spellings = {  # the last one of a text counts
            unquote(slashes): "with %20 and the like decoded",
            slashes: "with / for \\",
            local: "without file:",
            bare: "without the spaces around it",
        }
        for text, how in reversed(spellings.items()):
            if place := _existing(home, text):
                is_form = place != home / text and plain(str(place)) == plain(str(home / text))
                form = "in another normal form" if is_form and text == bare else how
                self._respelled.setdefault(form, []).append(name)
                return text, place
        return name, home / name

    def tell(self) -> None:
        """Say how many paths were found in another spelling."""
        for reason, names in self._respelled.items():
            log.warning(
                "%s found %s, such as %s", counted(len(names), "path was", "paths were"), reason, ascii(names[0])
            )

    def _rest(self, cells: Mapping[str, Any]) -> dict[str, Any]:
        """Return the metadata; adjacent photos with equal metadata share the object."""
        metadata = {name: _plain(cells[name]) for name in self._others if has_value(cells.get(name))}
        if metadata != self._metadata or [*map(type, metadata.values())] != [*map(type, self._metadata.values())]:
            self._metadata = metadata  # 1 == True, but their JSON differs
        return self._metadata


def has_value(value: Any) -> bool:
    """Return whether a cell has a value other than None, a text of spaces or NaN."""
    return value is not None and not (isinstance(value, float) and math.isnan(value)) and str(value).strip(EDGES) != ""


def plain(text: str) -> str:
    """Return an id in the form in which ids are compared: nothing invisible around it, in Unicode's normal form C."""
    return unicodedata.normalize("NFC", text.strip(EDGES))


def _text(value: Any) -> str:
    """Return the plain text of a cell, "" for one that says that there is nothing."""
    text = plain(str(value)) if has_value(value) else ""
    return "" if NOTHING.fullmatch(text) else text


def _plain(value: Any) -> Any:
    """Return a cell as a JSON value, with dates and other types as text."""
    return value if isinstance(value, int | float | bool) else str(value).strip()


def _is_there(path: Path) -> bool:
    return os.path.exists(path)  # noqa: PTH110 (False, and no error, for a name that is too long)


def _existing(home: Path, name: str) -> Path | None:
    """Return the file at a path whose parts may have another normal form, or spaces around them; None without one."""
    for part in PurePosixPath(name).parts:
        forms = [unicodedata.normalize(form, text) for text in (part, part.strip()) for form in ("NFC", "NFD")]
        home = next((home / text for text in (part, *forms) if _is_there(home / text)), home / part)
    return home if _is_there(home) else None


def _bbox(value: Any, where: str) -> tuple[float, float, float, float] | None:
    if not has_value(value):
        return None
    try:
        words = value.replace(",", " ").split() if isinstance(value, str) else list(value)
        left, upper, right, lower = (float(word) for word in words)
        sides = round(right) - round(left), round(lower) - round(upper)
    except (TypeError, ValueError, OverflowError) as error:
        raise DataError(f"{where}: bbox is {value!r}", remedy="Write left upper right lower in pixels") from error
    if min(left, upper) < 0 or min(sides) < 1:
        raise DataError(
            f"{where}: bbox {value!r} is empty when read as left upper right lower in pixels",
            remedy="Write these four, not the width and height or shares",
        )
    return (left, upper, right, lower)
