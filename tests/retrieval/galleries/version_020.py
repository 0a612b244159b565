"""Contents as version 0.2.0 kept them: photos are numbers."""

from __future__ import annotations

import json
from collections.abc import Collection

import numpy as np

from index.files import pack_arrays as pack
from index.gallery import Gallery
from index.photos import NONE
from retrieval.galleries.kept import ABOUT, SEPARATOR
from retrieval.measuring.draws import AllDraws

LATER = ("groups", "rivals", "without")  # fields of draws that the first program of this version did not know


def seqs_of(gallery: Gallery, photo_ids: np.ndarray) -> np.ndarray:
    """Return the numbers of photos (n,), -1 for no photo."""
    now = gallery.snapshot()
    positions = now.positions(photo_ids.tolist())
    return np.where(positions == NONE, NONE, now.seqs[positions])


def pack_draws_020(draws: AllDraws, gallery: Gallery, *, left_out: Collection[str] = LATER) -> bytes:
    """Return the draws of a gallery as version 0.2.0 kept them, without some fields."""
    *fingerprint, until = draws.mark
    about = {"model": draws.model, "fitted": sorted(draws.fitted), "version": draws.version}
    about |= {"fingerprint": fingerprint, "until": until}
    arrays = {ABOUT: np.frombuffer(json.dumps(about).encode(), dtype=np.uint8)}
    for source, sample in draws.sources.items():
        numbers = {name: seqs_of(gallery, getattr(sample, name)) for name in ("nearest", "duplicates")}
        numbers |= {"seqs": seqs_of(gallery, sample.ids), "own_nearest": np.full(len(sample), NONE)}
        values = {name: value for name, value in (sample.arrays() | numbers).items() if name not in left_out}
        arrays |= {f"{source}{SEPARATOR}{name}": value for name, value in values.items()}
    return pack(arrays)


def pack_vectors_020(gallery: Gallery, photo_ids: np.ndarray, vectors: np.ndarray, **more: np.ndarray) -> bytes:
    """Return vectors of photos, by fold models or of windows, as version 0.2.0 kept them."""
    return pack({"seqs": seqs_of(gallery, photo_ids), "vectors": vectors, **more})
