"""Verify the files and rows of a gallery against their checksums."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from .errors import GalleryCorrupt, GalleryError
from .segments import encode_row, open_segment, segment_paths, sha256
from .store import Store

BLOCK = 10_000  # photos compared at a time
SHOWN = 5  # damaged rows listed per segment


def check_files(store: Store, segments: Path, indexes: Path) -> list[str]:
    """Return the files in use whose hashes differ."""
    problems, features = [], bool(store.features_key())
    for segment in store.segments():
        paths = segment_paths(segments, segment.name, features=features)
        problems += _check_file(f"segment {segment.name}", paths, segment.sha256)
    index = store.index()
    if index is not None:
        paths = [indexes / f"{index.name}{ending}" for ending in (".faiss", ".npy")]
        problems += _check_file(f"index {index.name}", paths, index.sha256)
    return problems


def check_on_own_connection(database: Path, segments: Path, indexes: Path) -> list[str]:
    """Return the problems of the database and the files in use, over a separate connection."""
    try:
        store = Store(database, read_only=True)
    except GalleryError as error:
        return [error.message]
    try:
        problems = store.integrity()
        if problems:  # a damaged database says nothing reliable about its files
            return problems
        state = store.state()
        problems = check_files(store, segments, indexes)
        return problems if store.state() == state else []  # otherwise a rebuild replaced and hashed the files
    except GalleryError as error:
        return [error.message]
    finally:
        store.close()


def check_rows(store: Store, folder: Path, *, dim: int) -> list[str]:
    """Return photos on which database and segments disagree, and rows that fail their checksum."""
    problems: list[str] = []
    removed = set(store.removed().tolist())
    placed = 0
    for segment in store.segments():
        try:
            opened = open_segment(folder, segment, dim=dim, features=bool(store.features_key()))
        except GalleryCorrupt as error:
            problems.append(error.message)
            continue
        wrong = []
        for start in range(0, segment.rows, BLOCK):
            seqs = opened.seqs[start : start + BLOCK].tolist()
            known = {seq: facts for seq, *facts in store.lines(seqs[0], seqs[-1])}
            for row, seq in enumerate(seqs, start):
                try:
                    text = bytes(opened.texts_of(np.array([row]))[0])
                except GalleryCorrupt as error:
                    wrong.append(error.message)
                    continue
                facts = known.pop(seq, None)
                if facts is not None and encode_row(*facts) != text:
                    wrong.append(f"photo number {seq} differs from the database")
                elif facts is None and seq not in removed:
                    wrong.append(f"photo number {seq} is not in the database")
            wrong += [f"photo number {seq} has no vector" for seq in known]
            placed += sum(seq not in removed for seq in seqs)
        problems += [f"segment {segment.name}: {what}" for what in wrong[:SHOWN]]
        if len(wrong) > SHOWN:
            problems.append(f"segment {segment.name}: and {len(wrong) - SHOWN} more rows")
    if placed != store.number("photos"):
        problems.append(f"the segments hold {placed} live photos, the database {store.number('photos')}")
    return problems


def _check_file(what: str, paths: list[Path], digest: str) -> list[str]:
    try:
        same = sha256(*paths) == digest
    except OSError as error:
        return [f"{what} is missing or cannot be read: {error.strerror}"]
    return [] if same else [f"{what} has changed since it was written: its sha256 differs"]
