"""Candidate search: the only importer of faiss.

A candidate is a row that might be near; faiss never decides (`index.distance` does). `search(k)` and never
`range_search`, whose radius is strict and whose speed depends on the kind of index.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from .errors import MissingDependency


class FlatCandidates:
    """Exact inner-product search over float32 unit vectors (n, d); immutable, safe for any number of threads."""

    def __init__(self, vectors: NDArray[np.float32]) -> None:
        try:
            import faiss
        except ImportError as error:
            raise MissingDependency("faiss is not installed", remedy="pip install 'retrieval[serve]'") from error
        self._limit_threads = faiss.omp_set_num_threads
        self._index = faiss.IndexFlatIP(vectors.shape[1])
        if len(vectors):
            self._index.add(np.ascontiguousarray(vectors))
        # |float32 product - exact product| <= d * 2**-24 for unit vectors, and they are unit to 1e-6
        self.slack = 1e-5 + vectors.shape[1] * 2.0**-24

    def __len__(self) -> int:
        return int(self._index.ntotal)

    def search(self, vector: NDArray[np.float32], k: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """Return the rows (≤ k,) with the largest cosine to one vector (d,), best first, and the cosines.

        A cosine is off by at most `slack`.
        """
        if not len(self):
            return np.zeros(0, np.int64), np.zeros(0, np.float32)
        self._limit_threads(1)  # requests run in parallel, not one on all cores; OpenMP keeps this by thread
        cosines, rows = self._index.search(np.ascontiguousarray(vector[None], dtype=np.float32), min(k, len(self)))
        found = rows[0] >= 0  # faiss pads with -1
        return rows[0][found], cosines[0][found]
