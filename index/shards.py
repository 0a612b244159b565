"""Shards: parts of a large gallery, each with its own vectors and its own index.

An item belongs to the shard that the hash of its id chooses, with all its photos. The files of a shard are in a folder
of its own, so the name of a segment or an index in the database is a path: "03/NAME". One database lists the files of
all shards, and each change is one transaction.
"""

from __future__ import annotations

import hashlib

from .errors import InvalidParameter

MOST_SHARDS = 64
NOWHERE = -1
SHARDS = "shards"  # name of the fact that holds their number; a gallery without it is not divided


def check_shards(shards: int) -> int:
    """Return a number of shards; raise InvalidParameter if no gallery can have as many."""
    if not 1 <= shards <= MOST_SHARDS:
        raise InvalidParameter("shards", f"be from 1 to {MOST_SHARDS}", shards)
    return shards


def shard_of(item_id: str, shards: int) -> int:
    """Return the number of the shard that an item belongs to."""
    return int.from_bytes(hashlib.sha256(item_id.encode()).digest()[:8], "big") % shards


def shard_folder(shard: int, shards: int) -> str:
    """Return the folder of a shard's files, with a slash; "" in a gallery that is not divided."""
    return f"{shard:02}/" if shards > 1 else ""


def shard_in(name: str) -> int:
    """Return the shard that a segment or an index belongs to, by its name; NOWHERE for a damaged name."""
    folder, slash, _ = name.rpartition("/")
    if not slash:
        return 0
    return int(folder) if folder.isdecimal() else NOWHERE
