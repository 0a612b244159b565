"""Remove the files that an interrupted write has left."""

from __future__ import annotations

from collections.abc import Set
from contextlib import suppress
from pathlib import Path


def remove_unused(folder: Path, names: Set[str], endings: tuple[str, ...]) -> None:
    """Delete files other than `names`, which an interrupted write has left; only the writer may call this."""
    if not folder.exists():
        return
    for place in (folder, *(path for path in folder.iterdir() if path.is_dir())):
        for file in place.iterdir():
            name = file.relative_to(folder).as_posix().split(".")[0]
            if name not in names and file.name.endswith(endings):
                file.unlink()
        if place != folder and not any(place.iterdir()):
            with suppress(OSError):  # a link to a folder elsewhere stays
                place.rmdir()
