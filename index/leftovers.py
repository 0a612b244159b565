"""Remove the files that an interrupted write has left."""

from __future__ import annotations

from collections.abc import Set
from pathlib import Path


def remove_unused(folder: Path, names: Set[str], endings: tuple[str, ...]) -> None:
    """Delete files other than `names`, which an interrupted write has left; only the writer may call this."""
    if not folder.exists():
        return
    for file in folder.iterdir():
        if file.name.split(".")[0] not in names and file.name.endswith(endings):
            file.unlink()
