"""Candidate search with faiss; no other module of the index imports faiss.

A candidate is a row that may be near the query; the decision is made by `index.search.distance`. Searches use
`search(k)` and never `range_search`: its radius is strict, and its result has no size limit. An index is never modified
once it is searched, because adding during a search crashes. Shapes: n vectors, d = embedding size.
"""

from __future__ import annotations

import ctypes
import os
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.errors import GalleryCorrupt, InvalidParameter, importing
from index.search.distance import rounding

from .kinds import FLAT, FP16, IVF, KINDS, lists_of

EXACT = (FLAT, FP16)  # kinds with perfect recall
TRAINING, PROBES = 64, 8  # training vectors per list, and lists that are searched at first
FP16_SLACK = 2.0**-11  # bound of |q · (v - fp16(v))| for unit vectors
GPU_FROM, GPU_MOST = 20_000, 2048  # minimum photos for a GPU to pay off; maximum candidates per GPU search
REBUILD = "Rebuild the gallery"
TOGETHER, NUMBERS = 16, 2**16  # queries, and their numbers, per search: faiss compares larger batches by BLAS

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]


class Candidates:
    """A faiss index over n unit vectors (n, d), numbered from 0; immutable and thread-safe."""

    def __init__(self, index: Any, kind: str, *, slack: float, probes: int = 0, mapped: bool = False) -> None:
        self._faiss = _faiss()
        self._index = index
        self._count = int(index.ntotal)
        self.kind = kind
        self.slack = slack  # maximum error of a cosine
        self._gpu = _GpuCopy.of(index) if kind == FLAT and not mapped else None
        self.probes = probes  # lists searched; 0 searches everything
        self._plain = None if kind == FLAT else self._faiss.SearchParametersIVF(nprobe=max(1, probes))

    @classmethod
    def flat(cls, vectors: Vectors) -> Candidates:
        """Return an exact index over vectors in memory."""
        index = _faiss().IndexFlatIP(vectors.shape[1])
        if len(vectors):
            index.add(np.ascontiguousarray(vectors))
        return cls(index, FLAT, slack=rounding(vectors.shape[1]))

    @classmethod
    def build(
        cls, kind: str, blocks: Callable[[], Iterator[Vectors]], count: int, dim: int, *, threads: int, seed: int = 0
    ) -> Candidates:
        """Build an index of a kind; each call of `blocks` yields all vectors, one block at a time."""
        if kind not in KINDS:
            raise InvalidParameter("kind", f"be one of {', '.join(KINDS)}", kind)
        faiss = _faiss()
        faiss.omp_set_num_threads(threads)
        index = faiss.index_factory(dim, _recipe(kind, count), faiss.METRIC_INNER_PRODUCT)
        if kind == FLAT:
            index.codes.resize(count * index.code_size)  # memory for all vectors at once: growing copies them
            index.codes.resize(0)
            for block in blocks():
                index.add(np.ascontiguousarray(block))
            return cls(index, kind, slack=rounding(dim))
        index.cp.min_points_per_centroid = 1  # no warning for small galleries
        if not index.is_trained:
            index.train(_sample(blocks, count, TRAINING * max(256, lists_of(count)), seed))
        _fill(faiss, index, blocks, count)
        return cls(index, kind, slack=rounding(dim) + FP16_SLACK, probes=PROBES if kind == IVF else 0)

    @classmethod
    def read(
        cls, path: Path, kind: str, settings: Mapping[str, Any], *, count: int, mapped: bool = False
    ) -> Candidates:
        """Load an index written by `write`; raise GalleryCorrupt if it is invalid.

        With `mapped`, its lists stay in the file.
        """
        faiss = _faiss()
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP if mapped else 0)
        except RuntimeError as error:
            raise GalleryCorrupt(
                f"the index {path.name} cannot be read: {str(error)[-200:]}",
                remedy=REBUILD,
            ) from error
        if index.ntotal != count:
            raise GalleryCorrupt(
                f"the index {path.name} holds {index.ntotal} vectors, not {count}",
                remedy=REBUILD,
            )
        return cls(index, kind, slack=float(settings["slack"]), probes=int(settings["probes"]), mapped=mapped)

    def write(self, path: Path) -> None:
        """Write the index to a file and sync it to disk."""
        try:
            self._faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            raise OSError(f"the index could not be written: {str(error)[-200:]}") from error
        with path.open("rb+") as file:
            os.fsync(file.fileno())

    def with_probes(self, probes: int) -> Candidates:
        """Return the same index with another search width."""
        return Candidates(self._index, self.kind, slack=self.slack, probes=probes)

    def __len__(self) -> int:
        return self._count

    @property
    def dim(self) -> int:
        """Return the embedding size."""
        return int(self._index.d)

    @property
    def most_probes(self) -> int:
        """Return the number of probes above which a wider search gains nothing."""
        return 0 if self.kind in EXACT else int(self._index.nlist)

    def selection(self, allowed: NDArray[np.bool_]) -> Any:
        """Return a selector that restricts a search to the rows allowed (n,); it is valid for this index only."""
        bits = np.packbits(allowed, bitorder="little")
        chosen = self._faiss.IDSelectorBitmap(len(allowed), self._faiss.swig_ptr(bits))
        chosen.bits = bits  # the selector does not own its bits
        return chosen

    def search(self, vectors: Vectors, k: int, selection: Any = None) -> tuple[Rows, Vectors]:
        """Return rows (n, ≤ k) and cosines of the nearest candidates for each of the vectors (n, d), best first.

        A cosine has an error of at most `slack`. Rows are padded with -1 if the search found fewer.
        """
        k = min(k, len(self))
        if not k:
            return np.zeros((len(vectors), 0), np.int64), np.zeros((len(vectors), 0), np.float32)
        if self._gpu is not None and selection is None and k <= GPU_MOST:
            return self._gpu.search(vectors, k)
        self._faiss.omp_set_num_threads(1)  # a thread-local setting: requests run in parallel, one core each
        parameters = self._parameters(selection)
        if self.kind in EXACT:  # one pass over the photos for all queries
            cosines, rows = self._index.search(vectors, k, params=parameters)
        else:  # few queries at a time: BLAS rounds the centre distances differently and may select other lists
            step = max(1, min(TOGETHER, NUMBERS // vectors.shape[1]))
            starts = range(0, len(vectors), step)
            found = [self._index.search(vectors[i : i + step], k, params=parameters) for i in starts]
            cosines, rows = found[0] if len(found) == 1 else (np.concatenate(part) for part in zip(*found, strict=True))
        return rows, cosines

    def _parameters(self, selection: Any) -> Any:
        if selection is None:
            return self._plain
        if self.kind == FLAT:
            return self._faiss.SearchParameters(sel=selection)
        return self._faiss.SearchParametersIVF(nprobe=max(1, self.probes), sel=selection)


class _GpuCopy:
    """A flat index on the first GPU, where faiss runs one search at a time.

    Other kinds stay on the cores: one list is scanned by few of a GPU's units, and a search of many lists takes a
    fraction of a millisecond (`docs/tables/gallery.md`).
    """

    def __init__(self, faiss: Any, index: Any) -> None:
        self._resources = faiss.StandardGpuResources()
        self._index = faiss.index_cpu_to_gpu(self._resources, 0, index)
        self._guard = threading.Lock()

    @classmethod
    def of(cls, index: Any) -> _GpuCopy | None:
        """Return a copy, None if there is no GPU, or the index is too small to pay off or too large for its memory."""
        if index.ntotal < GPU_FROM or not count_gpus():
            return None
        try:
            return cls(_faiss(), index)
        except RuntimeError:
            return None

    def search(self, vectors: Vectors, k: int) -> tuple[Rows, Vectors]:
        """Return rows and cosines, best first."""
        with self._guard:
            cosines, rows = self._index.search(vectors, k)
        return rows, cosines


def count_gpus() -> int:
    """Return the number of GPUs that faiss can use, 0 if it was built without them."""
    faiss = _faiss()
    return int(faiss.get_num_gpus()) if hasattr(faiss, "StandardGpuResources") else 0


def _recipe(kind: str, count: int) -> str:
    return {FLAT: "Flat", FP16: "IVF1,SQfp16", IVF: f"IVF{lists_of(count)},SQfp16"}[kind]


def _fill(faiss: Any, index: Any, blocks: Callable[[], Iterator[Vectors]], count: int) -> None:
    """Add vectors to lists of preallocated size; growing lists take up to twice the memory."""
    centres, start = np.empty(count, dtype=np.int64), 0
    for block in blocks():
        centres[start : start + len(block)] = index.quantizer.search(np.ascontiguousarray(block), 1)[1][:, 0]
        start += len(block)
    lists = faiss.downcast_InvertedLists(index.invlists)
    for number, size in enumerate(np.bincount(centres, minlength=index.nlist).tolist()):
        lists.resize(number, size)  # resizing to 0 afterwards keeps the capacity
        lists.resize(number, 0)
    start = 0
    for block in blocks():
        vectors, lists_of_block = np.ascontiguousarray(block), centres[start : start + len(block)]
        index.add_core(len(vectors), faiss.swig_ptr(vectors), None, faiss.swig_ptr(lists_of_block))
        start += len(block)


def _sample(blocks: Callable[[], Iterator[Vectors]], count: int, most: int, seed: int) -> Vectors:
    """Return evenly drawn vectors without loading all of them."""
    chosen = np.sort(np.random.default_rng(seed).choice(count, size=min(count, most), replace=False))
    sample, start = np.empty((len(chosen), 0), dtype=np.float32), 0
    for block in blocks():
        if not start:
            sample = np.empty((len(chosen), block.shape[1]), dtype=np.float32)
        first, last = np.searchsorted(chosen, (start, start + len(block)))
        sample[first:last] = block[chosen[first:last] - start]
        start += len(block)
    return sample


def _faiss() -> Any:
    with importing("faiss", "serve"):
        import faiss
    return faiss


def release_memory() -> None:
    """Return freed memory, such as that of an index or a model, to the operating system; glibc keeps it otherwise.

    Do nothing with other C libraries: they return it by themselves, or cannot be asked.
    """
    if sys.platform == "linux" and hasattr(ctypes.CDLL(None), "malloc_trim"):
        ctypes.CDLL(None).malloc_trim(0)
