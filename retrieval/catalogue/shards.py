"""Catalogues in tar shards (WebDataset layout), read without unpacking: KEY.jpg with KEY.json or KEY.cls.

A shard is an uncompressed tar file, in which each photo is a range of bytes that can be read directly. A large shard is
scanned once: its index is written to NAME.tar.index if the folder is writable, and is valid until the shard changes.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import tarfile
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.errors import DataError
from retrieval.files import read_stretch

SPAN = "_span"  # key for the offset and size of a photo in its file
LABEL = "cls"  # suffix of a file that contains only the label
INDEXED = 1_000  # number of photos from which a shard gets an index
ENDS = 4_096  # bytes at both ends of a shard that the index records


def read_shard(path: Path, suffixes: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield a catalogue row for each photo of a shard, with its byte offset and size under SPAN.

    The row is the content of KEY.json; `item_id` may come from KEY.cls. `photo_id` consists of the shard's name and
    KEY.
    """
    lines = _read_index(path, suffixes)
    if lines is None:
        before = _state(path, suffixes)
        lines = list(_search(path, suffixes))
        if len(lines) >= INDEXED:
            _write_index(path, before, lines)
    for line in lines:
        yield line | {"path": path.name}


def _search(path: Path, suffixes: frozenset[str]) -> Iterator[dict[str, Any]]:
    try:
        with tarfile.open(path, mode="r:") as shard:
            lines: dict[str, dict[str, Any]] = {}
            for member in shard:
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if not member.isfile() or not ending:
                    continue
                line = lines.setdefault(key, {})
                if f".{ending.lower()}" in suffixes:
                    line |= {SPAN: (member.offset_data, member.size), "_name": member.name}
                elif ending in ("json", LABEL):
                    file = shard.extractfile(member)
                    text = file.read().decode("utf-8") if file is not None else ""
                    line |= {"item_id": text.strip()} if ending == LABEL else _values(text, path, member.name)
    except (tarfile.TarError, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as an uncompressed tar file: {error}", remedy="Write it again with plain `tar -cf`"
        ) from error
    for line in lines.values():
        if SPAN in line:
            name = line.pop("_name")
            yield {"photo_id": f"{path.stem}/{name}", **line}


def _values(text: str, path: Path, name: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: {name} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: {name} is not a JSON object", remedy='Write {"item_id": ...}')
    return {key: value for key, value in values.items() if key not in ("path", SPAN)}


def _index_of(path: Path) -> Path:
    return path.with_name(f"{path.name}.index")


def _state(path: Path, suffixes: frozenset[str]) -> dict[str, Any]:
    """Return the properties of a shard that its index must match."""
    try:
        now = path.stat()
        ends = read_stretch(path, 0, ENDS) + read_stretch(path, max(0, now.st_size - ENDS), ENDS)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    return {
        "format": "shard-index-1",
        "size": now.st_size,
        "changed": now.st_mtime_ns,
        "ends": hashlib.sha256(ends).hexdigest(),
        "suffixes": sorted(suffixes),
    }


def _read_index(path: Path, suffixes: frozenset[str]) -> list[dict[str, Any]] | None:
    """Return the rows of a shard's index, or None if there is no complete index that matches the shard."""
    try:
        with _index_of(path).open(encoding="utf-8") as file:
            head = json.loads(next(file, "null"))
            if not isinstance(head, dict) or head != _state(path, suffixes) | {"photos": head.get("photos")}:
                return None
            lines = [json.loads(line) for line in file]
        starts = [line[SPAN][0] for line in lines]
        ends = [sum(line[SPAN]) for line in lines]
    except (OSError, ValueError, KeyError, TypeError):
        return None
    whole = len(lines) == head["photos"] and min(starts, default=0) >= 0 and max(ends, default=0) <= head["size"]
    return lines if whole else None


def _write_index(path: Path, state: dict[str, Any], lines: list[dict[str, Any]]) -> None:
    """Write the index of a shard atomically; if the folder is not writable, write none.

    `state` was taken before the scan, which makes the index invalid if the shard changed meanwhile.
    """
    index = _index_of(path)
    partial_path = index.with_name(f".{index.name}.{uuid.uuid4().hex}")
    with contextlib.suppress(OSError):
        try:
            with partial_path.open("x", encoding="utf-8") as file:
                file.write(json.dumps(state | {"photos": len(lines)}) + "\n")
                file.writelines(json.dumps(line) + "\n" for line in lines)
            partial_path.replace(index)
        finally:
            partial_path.unlink(missing_ok=True)
