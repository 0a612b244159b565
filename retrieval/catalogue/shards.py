"""Catalogues in tar shards (WebDataset layout), read without unpacking: KEY.jpg with KEY.json or KEY.cls.

A shard is an uncompressed tar file, in which each photo is a range of bytes that can be read directly.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from retrieval.errors import DataError

SPAN = "_span"  # key for the offset and size of a photo in its file
LABEL = "cls"  # suffix of a file that contains only the label


def read_shard(path: Path, suffixes: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield a catalogue row for each photo of a shard, with its byte offset and size under SPAN.

    The row is the content of KEY.json; `item_id` may come from KEY.cls. `photo_id` consists of the shard's name and
    KEY.
    """
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
            yield {"photo_id": f"{path.stem}/{name}", **line, "path": path.name}


def _values(text: str, path: Path, name: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: {name} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: {name} is not a JSON object", remedy='Write {"item_id": ...}')
    return {key: value for key, value in values.items() if key not in ("path", SPAN)}
