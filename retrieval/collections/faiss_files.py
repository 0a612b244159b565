"""Index files of Faiss: their vectors are reconstructed, and their ids are item ids unless a file names the items.

Shapes: n vectors, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import DataError, importing

from . import ROWS, Block, Columns, Neighbour
from .arrays import lines_of_ids, read_ids
from .naming import refuse_condition

BUILT_OF = "Give the vectors and items that the index was built of, as .npz"


class FaissFile:
    """An index in a file, which stays mapped. Searches have the parameters that the file holds, such as nprobe."""

    def __init__(self, path: str, columns: Columns) -> None:
        refuse_condition(path, columns)
        with importing("faiss", "collections"):
            import faiss
        self.name, self._columns = path, columns
        self._open(faiss)
        self._photos, self._items, self._groups = self._names(columns)

    def _open(self, faiss: Any) -> None:
        """Read the index, its keys and its metric; raise DataError if it cannot give its vectors back."""
        try:
            self._whole = faiss.read_index(self.name, faiss.IO_FLAG_MMAP_IFC)
            self._numbered = hasattr(self._whole, "id_map")
            self._index = faiss.downcast_index(self._whole.index) if self._numbered else self._whole
            self._keys, self._labels = self._ids(faiss)
            if len(self._keys):
                self._index.reconstruct(int(self._keys[0]))
        except RuntimeError as error:
            raise DataError(
                f"{self.name} cannot be read, or gives no vectors back: {str(error)[-200:]}", remedy=BUILT_OF
            ) from error
        metrics = {faiss.METRIC_INNER_PRODUCT: "ip", faiss.METRIC_L2: "squared_l2"}
        if self._whole.metric_type not in metrics:
            raise DataError(
                f"{self.name} compares by metric {self._whole.metric_type} of Faiss", remedy="Build it for IP or L2"
            )
        self.metric = metrics[self._whole.metric_type]
        exact = (faiss.IndexFlat, faiss.IndexIVFFlat, faiss.IndexHNSWFlat, faiss.IndexNSGFlat, faiss.IndexRefineFlat)
        self._is_exact = isinstance(self._index, exact)

    def _ids(self, faiss: Any) -> tuple[NDArray[np.int64], NDArray[np.int64] | None]:
        """Return the keys (n,) that reconstruct the vectors, and the ids (n,) if the index has others than rows."""
        keys = np.arange(self._index.ntotal)
        lists = faiss.try_extract_index_ivf(self._index)
        if lists is not None:
            lists.set_direct_map_type(faiss.DirectMap.Hashtable)  # in memory: it finds the vector of an id
            stored = [_ids_of_list(faiss, lists.invlists, number) for number in range(lists.nlist)]
            keys = np.sort(np.concatenate(stored))
            if (keys[1:] == keys[:-1]).any():
                raise DataError(f"vectors of {self.name} share an id, so it gives one of them back", remedy=BUILT_OF)
        if self._numbered:
            return keys, faiss.vector_to_array(self._whole.id_map)
        return keys, None if np.array_equal(keys, np.arange(len(keys))) else keys

    def _names(self, columns: Columns) -> tuple[list[str], list[str], list[str] | None]:
        """Return photo ids, items and groups (n,)."""
        labels = None if self._labels is None else list(map(str, self._labels.tolist()))
        if labels is None and columns.items is None:
            raise DataError(
                f"{self.name} holds vectors alone, numbered by rows",
                remedy="Name a file of items, an id per line: --items FILE",
            )
        if labels and columns.items and not self._numbered:
            raise DataError(f"the ids of {self.name} are in no order that a file of items could have", remedy=BUILT_OF)
        rows = list(map(str, range(len(self._keys))))
        items = read_ids(columns.items) if columns.items else labels or rows
        groups = read_ids(columns.groups) if columns.groups else None
        for file, values in ((columns.items, items), (columns.groups, groups)):
            if values is not None and len(values) != len(rows):
                raise DataError(
                    f"{self.name} has {len(rows):,} vectors, {file} has {len(values):,} ids",
                    remedy="Write an id per vector, in the order in which they were added",
                )
        return labels if labels and len(set(labels)) == len(labels) else rows, items, groups

    @property
    def remarks(self) -> Sequence[str]:
        """Say that vectors are approximate unless the index stores them as they are."""
        kind = type(self._index).__name__
        return () if self._is_exact else (f"{kind} compresses vectors: those that it gives back are approximate",)

    def __len__(self) -> int:
        return len(self._keys)

    def blocks(self) -> Iterator[Block]:
        """Yield the rows in the order of their numbers."""
        for start in range(0, len(self), ROWS):
            rows = slice(start, start + ROWS)
            vectors = self._index.reconstruct_batch(self._keys[rows])
            yield Block(self._photos[rows], self._items[rows], vectors, self._groups and self._groups[rows])

    def search(self, vectors: NDArray[Any], k: int) -> list[list[Neighbour]] | None:
        """Search the index inside its map of ids, whose results are rows."""
        scores, keys = self._index.search(np.ascontiguousarray(vectors, dtype=np.float32), k)
        rows = np.searchsorted(self._keys, keys)
        return [
            [
                Neighbour(self._photos[row], self._items[row], score)
                for row, key, score in zip(*each, strict=True)
                if key >= 0
            ]
            for each in zip(rows.tolist(), keys.tolist(), scores.tolist(), strict=True)
        ]

    def recipe(self, promise: str) -> str:
        """Return lines of Python that search the index."""
        lines = [
            "import faiss",
            "import numpy as np",
            "from retrieval import Promise",
            f"index = faiss.read_index({self.name!r})",
        ]
        item = "str(row)"
        if self._columns.items:
            item = "str(items[row])"
            items = lines_of_ids(self._columns.items)
            ids = "faiss.vector_to_array(index.id_map).tolist()"
            lines.append(f"items = {f'dict(zip({ids}, {items}))' if self._numbered else items}")
        return "\n".join(
            (
                *lines,
                "scores, rows = index.search(np.array([vector], dtype=np.float32), 20)",
                f"neighbours = [({item}, score) for row, score in zip(rows[0], scores[0]) if row >= 0]",
                f"answer = Promise.load({promise!r}).decide(vector, neighbours)",
            )
        )

    def close(self) -> None:
        """Forget the index, which closes its file."""
        self._whole = self._index = None


def _ids_of_list(faiss: Any, lists: Any, number: int) -> NDArray[np.int64]:
    """Return a copy of the ids in an inverted list."""
    size = lists.list_size(number)
    return np.array(faiss.rev_swig_ptr(lists.get_ids(number), size)) if size else np.empty(0, np.int64)
