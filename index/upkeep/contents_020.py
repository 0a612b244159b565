"""Vectors that version 0.2.0 kept by photo number. They get photo ids before a gallery changes.

An update gives a photo a new number, and a rebuild forgets the numbers of photos that are gone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.database import FOLDS_FILE, Database
from index.errors import GalleryError
from index.files import load_arrays, pack_arrays, sha256
from index.photos import CONTENT
from index.snapshot import Snapshot

WINDOWS, FOLDS = "windows", "fold vectors"  # contents: ids of photos, hashes of their files, and vectors
FOLDS_HASH = "folds"  # content of version 0.2.0: the hash of FOLDS_FILE
MOVES = "moves"  # content of version 0.2.0: old and new numbers of updated photos
NUMBERS = b"seqs.npy"  # name of an array in a content of version 0.2.0


def with_ids(database: Database, newest: Callable[[], Snapshot], folder: Path) -> dict[str, bytes | None]:
    """Return contents by photo id that replace contents by number, empty if there are none; damaged contents stay."""
    new: dict[str, bytes | None] = {}
    for name in (WINDOWS, FOLDS):
        try:
            arrays = _numbered(database, name, folder)
            if arrays is not None:
                ids, contents = by_number(newest(), database.kept(MOVES), arrays.pop("seqs"))
                new[name] = pack_arrays({**arrays, "ids": ids, "contents": contents})
        except (GalleryError, ValueError, KeyError):
            continue
    return new | ({FOLDS_HASH: None} if FOLDS in new else {})


def _numbered(database: Database, name: str, folder: Path) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a content, None if there is none or it names photos by ids."""
    content, digest = database.kept(name), database.kept(FOLDS_HASH) if name == FOLDS else None
    if content is None and digest is not None:
        return read_folds_file(folder, digest)
    return load_arrays(content) if content is not None and NUMBERS in content else None


def read_folds_file(folder: Path, digest: bytes) -> dict[str, NDArray[Any]]:
    """Return the arrays of FOLDS_FILE; raise ValueError if it is missing or differs from its hash."""
    path = folder / FOLDS_FILE
    try:
        if sha256(path).encode() != digest:
            raise ValueError(f"{path} has changed since it was written: its sha256 differs")
        return load_arrays(path.read_bytes())
    except OSError as error:
        raise ValueError(f"{path} is missing or cannot be read: {error.strerror}") from error


def by_number(now: Snapshot, moves: bytes | None, seqs: NDArray[np.int64]) -> tuple[NDArray[np.str_], NDArray[np.str_]]:
    """Return the ids (n,) of photos by their numbers, and the hashes of their files then; "" for unknown photos."""
    if moves is not None:
        moved = load_arrays(moves)
        new = dict(zip(moved["old"].tolist(), moved["new"].tolist(), strict=True))
        seqs = np.array([new.get(seq, seq) for seq in seqs.tolist()], dtype=np.int64)
    there, places = np.isin(seqs, now.seqs), np.searchsorted(now.seqs, seqs)
    texts = np.full((2, len(seqs)), "", dtype=object)
    for row, (photo_id, _, metadata) in zip(np.flatnonzero(there), now.photos_at(places[there]), strict=True):
        texts[:, row] = photo_id, str(metadata.get(CONTENT) or "")
    ids, contents = texts.astype(str)
    return ids, contents
