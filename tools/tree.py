"""The files of a checkout, or of an unpacked archive of one."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from fnmatch import fnmatch
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def tree_files(root: Path = ROOT, *, untracked: bool = False) -> list[Path]:
    """Return the files that git tracks, and with `untracked` those that it would add.

    An unpacked archive has no list of git's: there, all files that `.gitignore` does not name are returned.
    """
    if (root / ".git").exists():
        command = ["git", "-c", "safe.directory=*", "ls-files", "-z", "--cached"]  # whoever owns the files
        command += ["--others", "--exclude-standard"] if untracked else []
        listed = subprocess.run(command, cwd=root, capture_output=True, text=True, check=True).stdout
        return [root / name for name in listed.split("\0") if (root / name).is_file()]
    patterns = [line.rstrip("/") for line in (root / ".gitignore").read_text().split()]
    files = list[Path]()
    for folder, below, names in os.walk(root):
        place = Path(folder).relative_to(root)
        below[:] = [name for name in below if not _ignored(place / name, patterns)]
        files += [root / place / name for name in names if not _ignored(place / name, patterns)]
    return files


def _ignored(place: Path, patterns: Sequence[str]) -> bool:
    return any(f"/{place}" == f"/{each.lstrip('/')}" if "/" in each else fnmatch(place.name, each) for each in patterns)
