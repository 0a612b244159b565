"""Vectors on disk: append-only files, each written once and then only read through a memory map.

A segment is a .npy file of float32 (n, d). It is written aside, synced, renamed and hashed; it counts only once a
transaction of the store names it. A file that no transaction names is rubbish of an interrupted write.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .errors import GalleryCorrupt

Vectors = NDArray[np.float32]


def write_segment(folder: Path, vectors: Vectors) -> tuple[str, str]:
    """Write vectors (n, d) as a new file and return its name and sha256; it is on the disk when this returns."""
    name = f"{uuid.uuid4().hex}.npy"
    aside = folder / f"{name}.partial"
    with aside.open("wb") as file:
        np.save(file, np.ascontiguousarray(vectors, dtype=np.float32), allow_pickle=False)
        file.flush()
        os.fsync(file.fileno())
    digest = sha256(aside)
    aside.replace(folder / name)
    sync_folder(folder)
    return name, digest


def open_segment(folder: Path, name: str, *, rows: int, dim: int) -> Vectors:
    """Map a segment read-only; GalleryCorrupt when it is missing or not of the shape that was written."""
    try:
        mapped: Vectors = np.load(folder / name, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise GalleryCorrupt(
            f"segment {name} cannot be read: {error}",
            remedy="Restore the gallery from a copy, or index again",
        ) from error
    if mapped.shape != (rows, dim) or mapped.dtype != np.float32:
        raise GalleryCorrupt(
            f"segment {name} holds {mapped.shape} {mapped.dtype}, not ({rows}, {dim}) float32",
            remedy="Restore the gallery from a copy, or index again",
        )
    return mapped


def remove_strangers(folder: Path, named: set[str]) -> None:
    """Delete what an interrupted write left behind; only the writer may call this."""
    for file in folder.iterdir():
        if file.name not in named and file.name.endswith((".npy", ".partial")):
            file.unlink()


def sha256(path: Path) -> str:
    """Return the hash of a file."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync_folder(folder: Path) -> None:
    """Make renames in a folder durable."""
    handle = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
