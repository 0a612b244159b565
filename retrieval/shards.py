"""Photos in tar shards (the WebDataset layout), read where they lie: KEY.jpg beside KEY.json or KEY.cls.

A shard is an uncompressed tar file: a photo is a stretch of bytes in it, so that nothing is unpacked and any photo is
read at once.
"""

from __future__ import annotations

import json
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from .errors import DataError

SPAN = "_span"  # key of the offset and the size of a photo in its file
LABEL = "cls"  # a file that holds nothing but the label


def read_shard(path: Path, suffixes: frozenset[str]) -> Iterator[dict[str, Any]]:
    """Yield a line of a catalogue for each photo of a shard, with SPAN: offset and size of its bytes.

    The line is what KEY.json holds, and `item_id` is what KEY.cls holds; `photo_id` is the shard's name and KEY's.
    """
    try:
        with tarfile.open(path, mode="r:") as shard:
            found: dict[str, dict[str, Any]] = {}
            for member in shard:
                folder, _, name = member.name.rpartition("/")
                stem, _, ending = name.partition(".")
                key = f"{folder}/{stem}" if folder else stem
                if not member.isfile() or not ending:
                    continue
                line = found.setdefault(key, {})
                if f".{ending.lower()}" in suffixes:
                    line |= {"path": path.name, SPAN: (member.offset_data, member.size), "_name": member.name}
                elif ending in ("json", LABEL):
                    file = shard.extractfile(member)
                    text = file.read().decode("utf-8") if file is not None else ""
                    line |= {"item_id": text.strip()} if ending == LABEL else _values(text, path, member.name)
    except (tarfile.TarError, OSError, UnicodeDecodeError) as error:
        raise DataError(
            f"{path} cannot be read as an uncompressed tar file: {error}", remedy="Write it again with plain `tar -cf`"
        ) from error
    for line in found.values():
        if SPAN in line:
            name = line.pop("_name")
            yield {"photo_id": f"{path.stem}/{name}", **line}


def _values(text: str, path: Path, name: str) -> dict[str, Any]:
    try:
        values = json.loads(text)
    except ValueError as error:
        raise DataError(f"{path}: {name} is not JSON: {error}") from error
    if not isinstance(values, dict):
        raise DataError(f"{path}: {name} holds no object", remedy='Write {"item_id": ...}')
    return {key: value for key, value in values.items() if key not in ("path", SPAN)}
