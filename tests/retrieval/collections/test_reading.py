"""Reading a collection once: what is copied, what is left out, and a source that changes meanwhile."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from retrieval.collections import Block, Columns, Neighbour
from retrieval.collections.open import open_collection
from retrieval.collections.reading import Collected, read
from retrieval.errors import DataError


@dataclass
class Blocks:
    """A collection that gives prepared blocks, and prepared numbers of rows."""

    prepared: Sequence[Block]
    counts: list[int]
    name: str = "prepared"
    metric: str | None = "l2"
    remarks: Sequence[str] = field(default=("approximate",))

    def __len__(self) -> int:
        return self.counts.pop(0)

    def blocks(self) -> Iterator[Block]:
        return iter(self.prepared)

    def search(self, vectors: Any, k: int) -> list[list[Neighbour]] | None:
        return None

    def recipe(self, promise: str) -> str:
        return ""

    def close(self) -> None:
        pass


def block(ids: str, items: str, vectors: Any, **more: Any) -> Block:
    return Block(ids.split(), [item.strip("-") for item in items.split()], np.array(vectors), **more)


def test_read_of_blocks_with_gaps_keeps_the_rows_that_have_vector_and_item() -> None:
    blocks = [
        block("a b", "x -", [[3.0, 4.0], [1, 0]]),
        Block([], [], np.zeros((0, 0), np.float32), without_vector=3),
        block("c d", "- y", np.array([[1, 0], [1, 1]], np.float16), groups=["", "g"], without_vector=1),
    ]
    collected = read(Blocks(blocks, [8, 8]))
    assert collected == Collected(
        "prepared", "l2", ["a", "d"], ["x", "y"], collected.vectors, collected.norms, ["", "g"], 2, 4, ("approximate",)
    )
    assert collected.vectors.tolist() == [[3, 4], [1, 1]]
    assert isinstance(collected.vectors, np.memmap)
    assert collected.vectors.dtype == np.float32
    np.testing.assert_allclose(collected.norms, [5, 2**0.5])


@pytest.mark.parametrize(
    ("counts", "ids", "message"),
    [
        ([3, 2], "a b", "it had 3 rows before, 2 were read, it has 2 now"),
        ([2, 3], "a b", "it had 2 rows before, 2 were read, it has 3 now"),
        ([1, 2], "a b", "it had 1 rows before and has more now"),
        ([2, 2], "a a", "the id 'a' was read twice"),
    ],
)
def test_read_of_a_source_that_changes_meanwhile_is_refused_with_the_remedy_to_run_it_again(
    counts: list[int], ids: str, message: str
) -> None:
    with pytest.raises(DataError, match=rf"prepared changed while it was read: {message}\. Run it again"):
        read(Blocks([block(ids, "x y", np.eye(2))], counts))


def test_read_of_blocks_with_different_dimensions_is_refused_with_the_first_id() -> None:
    blocks = [block("a", "x", [[1.0, 0]]), block("b c", "x y", [[1.0, 0, 0]] * 2)]
    with pytest.raises(DataError, match=r"the vector of 'b' in prepared has 3 numbers, those before it have 2"):
        read(Blocks(blocks, [3, 3]))


def test_read_of_rows_without_items_is_refused_with_their_number() -> None:
    with pytest.raises(DataError, match="prepared has no rows with a vector and an item: 2 lack an item, 1 a vector"):
        read(Blocks([block("a b", "- -", np.eye(2), without_vector=1)], [3, 3]))
    with pytest.raises(DataError, match=r"prepared has no rows with a vector and an item$"):
        read(Blocks([], [0, 0]))


def test_read_of_a_mapped_file_of_float32_copies_nothing(tmp_path: Path) -> None:
    vectors = np.random.default_rng(0).normal(size=(9, 4))
    np.save(tmp_path / "photos.npy", vectors.astype(np.float32))
    np.save(tmp_path / "double.npy", vectors)
    np.save(tmp_path / "items.npy", np.arange(9) // 2)
    (tmp_path / "gap.txt").write_text("a\n" * 8 + "\n")
    items = Columns(items=str(tmp_path / "items.npy"))
    collected = read(open_collection(str(tmp_path / "photos.npy"), items))
    assert collected.vectors.filename == tmp_path / "photos.npy"
    assert collected.items == list("001122334")
    np.testing.assert_array_equal(collected.vectors, vectors.astype(np.float32))
    np.testing.assert_allclose(collected.norms, np.linalg.norm(vectors, axis=1), rtol=1e-6)
    with pytest.raises(ValueError, match="read-only"):
        collected.vectors[0] = 0
    doubles = read(open_collection(str(tmp_path / "double.npy"), items))
    assert doubles.vectors.filename is None
    np.testing.assert_array_equal(doubles.vectors, vectors.astype(np.float32))
    gap = read(open_collection(str(tmp_path / "photos.npy"), Columns(items=str(tmp_path / "gap.txt"))))
    assert (len(gap.ids), gap.without_item) == (8, 1)
    np.testing.assert_array_equal(gap.vectors, vectors[:8].astype(np.float32))
