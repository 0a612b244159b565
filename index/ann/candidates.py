"""Candidate search: the only importer of faiss.

A candidate is a row that might be near; faiss never decides (`index.distance` does). `search(k)` and never
`range_search`, whose radius is strict, whose result has no cap and which on some kinds is slow or silently short.
An index is never changed once it is searched: adding during a search crashes.
Shapes: n vectors, d = embedding size.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.errors import GalleryCorrupt, InvalidParameter, MissingDependency
from index.shell import command

from .kinds import DISK, FLAT, FP16, HNSW, IVF, IVFPQ, KINDS, lists_of, subvectors_of

EXACT = (FLAT, FP16)  # kinds that miss nothing
TRAINING = 64  # vectors a list that its centres are fitted to
PQ_FROM = 256  # vectors that a byte's codes are fitted to at least; fewer are not coded
PQ_ITERATIONS, PQ_POINTS = 8, 32
HNSW_LINKS, HNSW_BUILD = 32, 80
FP16_SLACK = 2.0**-11  # |q · (v - fp16(v))| of unit vectors
GPU_FROM, GPU_MOST = 20_000, 2048  # photos from which a GPU pays, and candidates that it returns at most
REBUILD = f"Build it again: {command('gallery', 'merge', 'GALLERY')}"
PQ_SAMPLE = 256  # vectors that tell how far PQ's cosines are off

Vectors = NDArray[np.float32]
Rows = NDArray[np.int64]


class Candidates:
    """A faiss index over n unit vectors (n, d), numbered from 0; immutable, safe for any number of threads."""

    def __init__(self, index: Any, kind: str, *, slack: float, probes: int = 0) -> None:
        self._faiss = _faiss()
        self._index = index
        self.kind = kind
        self.slack = slack  # by which a cosine may be off
        self._gpu = _GpuCopy(self._faiss, index) if _fits_gpu(self._faiss, index, kind) else None
        self.probes = probes  # lists that are looked at (IVF), or how wide the graph is searched (HNSW); 0: all
        scans = kind in (FLAT, HNSW)
        self._plain = None if scans else self._faiss.SearchParametersIVF(nprobe=max(1, probes))

    @classmethod
    def flat(cls, vectors: Vectors) -> Candidates:
        """Return an exact index over vectors in memory."""
        index = _faiss().IndexFlatIP(vectors.shape[1])
        if len(vectors):
            index.add(np.ascontiguousarray(vectors))
        return cls(index, FLAT, slack=_rounding(vectors.shape[1]))

    @classmethod
    def build(
        cls, kind: str, blocks: Callable[[], Iterator[Vectors]], count: int, dim: int, *, threads: int, seed: int = 0
    ) -> Candidates:
        """Return an index of a kind over the vectors that `blocks` yields, a block at a time, whenever it is called."""
        if kind not in KINDS:
            raise InvalidParameter("kind", f"be one of {', '.join(KINDS)}", kind)
        faiss = _faiss()
        faiss.omp_set_num_threads(threads)
        index = faiss.index_factory(dim, _recipe(kind, count, dim), faiss.METRIC_INNER_PRODUCT)
        if kind == IVFPQ and count >= PQ_FROM:  # k-means of each byte: enough for codes that only propose candidates
            index.pq.cp.niter, index.pq.cp.max_points_per_centroid = PQ_ITERATIONS, PQ_POINTS
            index.pq.cp.min_points_per_centroid = 1
        slack = _rounding(dim)
        if kind in (FP16, IVF, IVFPQ, DISK):
            index.cp.min_points_per_centroid = 1  # few photos are no reason to warn
        if kind == HNSW:
            index.hnsw.efConstruction = HNSW_BUILD
        if not index.is_trained:
            index.train(_sample(blocks, count, TRAINING * max(256, lists_of(count)), seed))
        if kind in (FLAT, HNSW):
            for block in blocks():
                index.add(np.ascontiguousarray(block))
        else:
            _fill(faiss, index, blocks, count)
        if kind in (FP16, IVF, DISK):
            slack += FP16_SLACK
        elif kind == IVFPQ:
            slack += _pq_slack(index, _sample(blocks, count, PQ_SAMPLE, seed))
        probes = {IVF: 8, IVFPQ: 8, DISK: 8, HNSW: 64}.get(kind, 0)
        return cls(index, kind, slack=slack, probes=probes)

    @classmethod
    def read(cls, path: Path, kind: str, settings: Mapping[str, Any], *, count: int) -> Candidates:
        """Read what `write` wrote; GalleryCorrupt where it is none."""
        faiss = _faiss()
        try:
            index = faiss.read_index(str(path), faiss.IO_FLAG_MMAP if kind == DISK else 0)
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
        return cls(index, kind, slack=float(settings["slack"]), probes=int(settings["probes"]))

    def write(self, path: Path) -> None:
        """Write the index as a file that is on the disk when this returns."""
        try:
            self._faiss.write_index(self._index, str(path))
        except RuntimeError as error:
            raise OSError(f"the index could not be written: {str(error)[-200:]}") from error
        with path.open("rb+") as file:
            os.fsync(file.fileno())

    def with_probes(self, probes: int) -> Candidates:
        """Return the same index, searched more or less widely."""
        return Candidates(self._index, self.kind, slack=self.slack, probes=probes)

    def __len__(self) -> int:
        return int(self._index.ntotal)

    @property
    def dim(self) -> int:
        """The size of a vector."""
        return int(self._index.d)

    @property
    def most_probes(self) -> int:
        """The probes beyond which a wider search gains nothing."""
        if self.kind in EXACT:
            return 0
        return len(self) if self.kind == HNSW else int(self._index.nlist)

    def selection(self, allowed: NDArray[np.bool_]) -> Any:
        """Return what confines a search to some of the rows (n,); it belongs to this index alone."""
        bits = np.packbits(allowed, bitorder="little")
        chosen = self._faiss.IDSelectorBitmap(len(allowed), self._faiss.swig_ptr(bits))
        chosen.bits = bits  # kept alive with it
        return chosen

    def search(self, vectors: Vectors, k: int, selection: Any = None) -> tuple[Rows, Vectors]:
        """Return, for each of the vectors (n, d), the rows (n, ≤ k) with the largest cosines, best first, and those.

        A cosine is off by at most `slack`; a row of -1 stands where there are no more where it looked.
        """
        k = min(k, len(self))
        if not k:
            return np.zeros((len(vectors), 0), np.int64), np.zeros((len(vectors), 0), np.float32)
        if self._gpu is not None and selection is None and k <= GPU_MOST:
            return self._gpu.search(vectors, k)
        self._faiss.omp_set_num_threads(1)  # requests run in parallel, not one on all cores; kept by thread
        parameters = self._parameters(k, selection)
        if self.kind in EXACT:  # one pass over the photos for all of them
            cosines, rows = self._index.search(vectors, k, params=parameters)
        else:  # one by one: in a batch the centres are compared with other rounding, and the lists might be others
            found = [self._index.search(vectors[i : i + 1], k, params=parameters) for i in range(len(vectors))]
            cosines, rows = (np.concatenate(part) if len(found) > 1 else part[0] for part in zip(*found, strict=True))
        return rows, cosines

    def _parameters(self, k: int, selection: Any) -> Any:
        if selection is None and self.kind != HNSW:
            return self._plain
        chosen = {} if selection is None else {"sel": selection}
        if self.kind == HNSW:
            return self._faiss.SearchParametersHNSW(efSearch=max(self.probes, k), **chosen)
        if self.kind == FLAT:
            return self._faiss.SearchParameters(**chosen)
        return self._faiss.SearchParametersIVF(nprobe=max(1, self.probes), **chosen)


class _GpuCopy:
    """A flat index on a GPU, one search at a time: faiss allows no more."""

    def __init__(self, faiss: Any, index: Any) -> None:
        self._resources = faiss.StandardGpuResources()
        self._index = faiss.index_cpu_to_gpu(self._resources, 0, index)
        self._guard = threading.Lock()

    def search(self, vectors: Vectors, k: int) -> tuple[Rows, Vectors]:
        """Return rows and cosines, best first."""
        with self._guard:
            cosines, rows = self._index.search(vectors, k)
        return rows, cosines


def _fits_gpu(faiss: Any, index: Any, kind: str) -> bool:
    """Return whether there is a GPU, and enough photos for it to pay."""
    if kind != FLAT or index.ntotal < GPU_FROM or not hasattr(faiss, "StandardGpuResources"):
        return False
    return bool(faiss.get_num_gpus())


def _recipe(kind: str, count: int, dim: int) -> str:
    lists = lists_of(count)
    return {
        FLAT: "Flat",
        FP16: "IVF1,SQfp16",
        IVF: f"IVF{lists},SQfp16",
        DISK: f"IVF{lists},SQfp16",
        HNSW: f"HNSW{HNSW_LINKS},Flat",
        IVFPQ: f"IVF{lists},PQ{subvectors_of(dim)}x8np" if count >= PQ_FROM else "IVF1,SQfp16",
    }[kind]


def _fill(faiss: Any, index: Any, blocks: Callable[[], Iterator[Vectors]], count: int) -> None:
    """Add vectors to lists that are given their size first: lists that grow take up to twice the memory."""
    centres, start = np.empty(count, dtype=np.int64), 0
    for block in blocks():
        centres[start : start + len(block)] = index.quantizer.search(np.ascontiguousarray(block), 1)[1][:, 0]
        start += len(block)
    lists = faiss.downcast_InvertedLists(index.invlists)
    for number, size in enumerate(np.bincount(centres, minlength=index.nlist).tolist()):
        lists.resize(number, size)  # and keeps the room
        lists.resize(number, 0)
    start = 0
    for block in blocks():
        vectors, mine = np.ascontiguousarray(block), centres[start : start + len(block)]
        index.add_core(len(vectors), faiss.swig_ptr(vectors), None, faiss.swig_ptr(mine))
        start += len(block)


def _sample(blocks: Callable[[], Iterator[Vectors]], count: int, wanted: int, seed: int) -> Vectors:
    """Return some of the vectors, evenly drawn, without holding them all."""
    chosen = np.sort(np.random.default_rng(seed).choice(count, size=min(count, wanted), replace=False))
    found, start = [], 0
    for block in blocks():
        mine = chosen[(chosen >= start) & (chosen < start + len(block))] - start
        found.append(np.asarray(block[mine], dtype=np.float32))
        start += len(block)
    return np.concatenate(found)


def _pq_slack(index: Any, sample: Vectors) -> float:
    """Return by how much the product quantizer's cosines are off, for nearly all pairs of a sample."""
    coded = index.sa_decode(index.sa_encode(sample))
    off = np.abs(sample @ (sample - coded).T)
    return float(np.quantile(off, 0.999))


def _rounding(dim: int) -> float:
    """Return by how much a cosine in float32 may be off: d * 2**-24 for unit vectors, which are unit to 1e-6."""
    return 1e-5 + dim * 2.0**-24


def _faiss() -> Any:
    try:
        import faiss
    except ImportError as error:
        raise MissingDependency.of_extra("faiss", "serve") from error
    return faiss
