"""Which kind of candidate index fits a gallery: by its size and the memory that it may take.

    flat    exact, float32 in memory           up to about 100,000 photos
    fp16    exact scan of float16              up to about a million: half the memory, twice the speed
    ivf     lists of float16, some looked at   above
    hnsw    a graph over float32               by hand: fast, twice the memory, slow to build
    ivfpq   lists of short codes               where memory is short: a tenth of it, and re-scored
    disk    ivf, mapped from the disk          where not even that fits

Every kind gives candidates only; distances are worked out from the stored vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from index.errors import InvalidParameter

FLAT, FP16, IVF, HNSW, IVFPQ, DISK = "flat", "fp16", "ivf", "hnsw", "ivfpq", "disk"
AUTO = "auto"
KINDS = (FLAT, FP16, IVF, HNSW, IVFPQ, DISK)
APPROXIMATE = (IVF, HNSW, IVFPQ, DISK)
FLAT_UP_TO, FP16_UP_TO = 100_000, 1_000_000
ROW_BYTES = 25  # that a photo takes beside its index: numbers, item, density, whether it has been checked
REBUILD = 1.25  # of an index, while another one is made beside it: the vectors come from the disk, a block at a time


@dataclass(frozen=True)
class Choice:
    """A kind, and what it takes."""

    kind: str
    bytes: int  # in memory while serving
    rebuild_bytes: int  # at most, while a new index is made beside the old one
    why: str


def choose_kind(photos: int, dim: int, *, kind: str = AUTO, max_memory: int | None = None) -> Choice:
    """Return the kind for so many photos; `max_memory` (bytes) covers a rebuild. A kind by hand is only checked."""
    if kind not in (AUTO, *KINDS):
        raise InvalidParameter("kind", f"be {AUTO} or one of {', '.join(KINDS)}", kind)
    if kind != AUTO:
        found = _choice(kind, photos, dim, "chosen by hand")
        if max_memory is not None and found.rebuild_bytes > max_memory:
            raise InvalidParameter(
                "max_memory",
                f"be at least {found.rebuild_bytes:,} for the kind {kind} of {photos:,} photos",
                max_memory,
                remedy="Choose --kind auto, ivfpq or disk",
            )
        return found
    usual = FLAT if photos <= FLAT_UP_TO else FP16 if photos <= FP16_UP_TO else IVF
    smaller = {FLAT: (FLAT, FP16, IVFPQ, DISK), FP16: (FP16, IVFPQ, DISK), IVF: (IVF, IVFPQ, DISK)}
    for name in smaller[usual]:
        why = f"usual for {photos:,} photos" if name == usual else "the fastest that fits the memory"
        found = _choice(name, photos, dim, why)
        if max_memory is None or found.rebuild_bytes <= max_memory:
            return found
    raise InvalidParameter(
        "max_memory",
        f"be at least {found.rebuild_bytes:,} for {photos:,} photos even on disk",
        max_memory,
        remedy="Allow more, or spread the gallery over several machines",
    )


def memory_of(kind: str, photos: int, dim: int) -> int:
    """Return the bytes that an index takes in memory, about."""
    lists = lists_of(photos)
    by_kind: dict[str, int] = {
        FLAT: 4 * dim * photos,
        FP16: (2 * dim + 8) * photos,
        IVF: (2 * dim + 8) * photos + 4 * dim * lists,
        HNSW: (4 * dim + 2 * 32 * 4 + 16) * photos,
        IVFPQ: (subvectors_of(dim) + 8) * photos + 4 * dim * (lists + 256),
        DISK: 4 * dim * lists,
    }
    return by_kind[kind]


def lists_of(photos: int) -> int:
    """Return how many lists photos are sorted into: about four times the square root, a power of two."""
    power = int(4 * math.sqrt(max(1, photos))).bit_length() - 1
    return max(1, min(65_536, 1 << power, photos // 39))


def subvectors_of(dim: int) -> int:
    """Return into how many bytes a vector is coded: two numbers a byte, where the dimension allows it."""
    return next(parts for parts in range(max(1, dim // 2), 0, -1) if dim % parts == 0)


def _choice(kind: str, photos: int, dim: int, why: str) -> Choice:
    index, rows = memory_of(kind, photos, dim), ROW_BYTES * photos
    # one block of the largest kind of work: training vectors and a block of rows
    working = 4 * dim * min(photos, 64 * max(256, lists_of(photos)) + 65_536)
    return Choice(kind, index + rows, int(2 * index + REBUILD * rows + working), why)
