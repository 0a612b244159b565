"""Collections: vectors with item ids that lie elsewhere. They are only read.

Shapes: b rows of a block, n queries, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

ROWS = 8192  # rows that are read at a time, at most


@dataclass(frozen=True)
class Columns:
    """Names of the columns, fields or arrays of a collection; None for the usual name or for none."""

    items: str | None = None
    vectors: str | None = None
    groups: str | None = None
    where: str | None = None  # restricts the rows, in the collection's own language


@dataclass(frozen=True)
class Block:
    """Up to ROWS rows of a collection, as they are stored."""

    ids: Sequence[str]  # (b,) of the photos
    items: Sequence[str]  # (b,), "" for none
    vectors: NDArray[Any]  # (b, d) of any float type, not scaled
    groups: Sequence[str] | None = None  # (b,) of the items, "" for none
    without_vector: int = 0  # rows without a vector that are not among these


class Neighbour(NamedTuple):
    """A photo that a collection's own search returns."""

    photo_id: str
    item_id: str
    score: float  # in the collection's metric


class Collection(Protocol):
    """Vectors that lie elsewhere."""

    @property
    def name(self) -> str:
        """The name in messages and files, without credentials."""

    @property
    def metric(self) -> str | None:
        """The metric of its scores (`retrieval.promise.metric.METRICS`), None if it does not say."""

    @property
    def remarks(self) -> Sequence[str]:
        """Sentences that users must know of the vectors, such as that they are approximate."""

    def __len__(self) -> int:
        """Return the number of rows now, or of the snapshot if the rows are read from one."""

    def blocks(self) -> Iterator[Block]:
        """Yield every row once."""

    def search(self, vectors: NDArray[Any], k: int) -> list[list[Neighbour]] | None:
        """Return what its own search finds for vectors (n, d), nearest first, None if it has no search of its own.

        The search has the parameters that serve, so it may be approximate. The vectors are as the collection stores
        them, not scaled. Photos without an item are left out of the answers.
        """

    def recipe(self, promise: str) -> str:
        """Return lines of Python that search the collection and decide by the promise file of the given name."""

    def close(self) -> None:
        """Close connections and files."""
