"""Index kinds, chosen by gallery size and memory limit.

flat    exact, float32 in memory           up to 100,000 photos
fp16    exact scan of float16              up to 200,000: half the memory
ivf     lists of float16, some searched    above 200,000

Every kind only proposes candidates; distances are computed from the stored vectors.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from index.errors import InvalidParameter, counted

FLAT, FP16, IVF = KINDS = ("flat", "fp16", "ivf")
AUTO = "auto"
FLAT_UP_TO, FP16_UP_TO = 100_000, 200_000
ROW_BYTES = 37  # bytes per photo besides the index: numbers, item, order by item, check flag
REBUILD = 1.25  # peak memory of a rebuild relative to one index: vectors are read from disk, one block at a time


@dataclass(frozen=True)
class Choice:
    """An index kind and its memory use."""

    kind: str
    bytes: int  # memory while serving
    rebuild_bytes: int  # peak memory while a new index is built beside the old one
    why: str


def choose_kind(photos: int, dim: int, *, kind: str = AUTO, max_memory: int | None = None) -> Choice:
    """Return the index kind for a number of photos; an explicit kind is only checked.

    `max_memory` (bytes) includes a rebuild.
    """
    if kind not in (AUTO, *KINDS):
        raise InvalidParameter("kind", f"be {AUTO} or one of {', '.join(KINDS)}", kind)
    usual = FLAT if photos <= FLAT_UP_TO else FP16 if photos <= FP16_UP_TO else IVF
    candidates = [kind] if kind != AUTO else [usual, FP16] if usual == FLAT else [usual]
    for name in candidates:
        why = "chosen by hand" if kind != AUTO else f"usual for {counted(photos, 'photo')}"
        choice = _choice(name, photos, dim, why if name in (kind, usual) else "the fastest that fits the memory")
        if max_memory is None or choice.rebuild_bytes <= max_memory:
            return choice
    raise InvalidParameter(
        "max_memory",
        f"be at least {choice.rebuild_bytes:,} for the kind {choice.kind} of {counted(photos, 'photo')}",
        max_memory,
        remedy="Choose the kind auto, allow more, or keep the gallery on Milvus",
    )


def memory_of(kind: str, photos: int, dim: int) -> int:
    """Return the approximate memory use of an index in bytes."""
    if kind == FLAT:
        return 4 * dim * photos
    return (2 * dim + 8) * photos + (4 * dim * lists_of(photos) if kind == IVF else 0)


def lists_of(photos: int) -> int:
    """Return the number of IVF lists: about four times the square root of the photos, a power of two."""
    power = int(4 * math.sqrt(max(1, photos))).bit_length() - 1
    return max(1, min(65_536, 1 << power, photos // 39))


def _choice(kind: str, photos: int, dim: int, why: str) -> Choice:
    index, rows = memory_of(kind, photos, dim), ROW_BYTES * photos
    # one block of the largest task: training vectors and a block of rows
    working = 4 * dim * min(photos, 64 * max(256, lists_of(photos)) + 65_536)
    return Choice(kind, index + rows, int(2 * index + REBUILD * rows + working), why)
