"""Fresh queries of the demo and their answers.

Symbols: n = queries.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.search.distance import accepts
from index.search.item_distance import NEAREST_PHOTO
from index.search.neighbours import Neighbour
from retrieval.catalogue.read import Photo
from retrieval.retriever import Retriever
from retrieval.search.result import Match
from training.data.synthetic.catalogue import KNOWN, UNKNOWN
from training.export.variants import embed_with_onnx

RESAMPLES, ENDS = 2000, (0.025, 0.975)  # of a bootstrap, and the quantiles of its 95 % intervals

Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Rates:
    """Rates of one threshold over the queries. Each unknown item and each known item has one query."""

    threshold: float
    fpir: float
    interval: Floats  # 95 % interval of the FPIR (2,), by bootstrap
    tpir: float
    misidentification: float

    @property
    def precision(self) -> float:
        """Share of answers whose first item is right, where half of the queries are for unknown items; 0 if none."""
        return self.tpir / max(1e-12, self.tpir + self.misidentification + self.fpir)


@dataclass(frozen=True)
class Nearest:
    """Nearest gallery item of each query (n,) and its distance (n,), by one distance form."""

    items: NDArray[np.str_]
    distances: Floats


@dataclass(frozen=True)
class Answers:
    """Queries in their order, with the nearest item by the bundle's distance and by the plain distance."""

    photos: Sequence[Photo]
    served: Nearest
    plain: Nearest
    threshold: float  # that serves

    @property
    def matched(self) -> NDArray[np.bool_]:
        """Return whether each query has a match at the serving threshold (n,)."""
        return accepts(self.served.distances, self.threshold)

    @property
    def kinds(self) -> NDArray[np.str_]:
        """Kind of each query (n,)."""
        return np.array([photo.metadata["kind"] for photo in self.photos])

    @property
    def items(self) -> NDArray[np.str_]:
        """Item that each query shows (n,)."""
        return np.array([photo.item_id for photo in self.photos])

    def rates(self, nearest: Nearest, threshold: float) -> Rates:
        """Return the rates of a threshold on distances to the nearest items."""
        hits = accepts(nearest.distances, threshold)
        known, unknown = self.kinds == KNOWN, self.kinds == UNKNOWN
        right = nearest.items == self.items
        return Rates(
            threshold,
            float(hits[unknown].mean()),
            bootstrap_interval(hits[unknown]),
            float((hits & right)[known].mean()),
            float((hits & ~right)[known].mean()),
        )


def bootstrap_interval(hits: NDArray[np.bool_]) -> Floats:
    """Return the 95 % interval (2,) of the share of hits (n,), by bootstrap."""
    drawn = np.random.default_rng(0).integers(0, len(hits), (RESAMPLES, len(hits)))
    return np.asarray(np.quantile(hits[drawn].mean(axis=1), ENDS))


def ask(retriever: Retriever, photos: Sequence[Photo]) -> Answers:
    """Search the gallery with every query."""
    vectors = embed_with_onnx(retriever.embedder, photos)[0].vectors
    plain = [items[0] for items in retriever.gallery.search(vectors, 1, item_distance=NEAREST_PHOTO)]
    served = [result.nearest for photo in photos if (result := retriever.search(photo.read())).nearest is not None]
    return Answers(photos, _nearest(served), _nearest(plain), retriever.point.threshold)


def _nearest(items: Sequence[Match] | Sequence[Neighbour]) -> Nearest:
    return Nearest(np.array([item.item_id for item in items]), np.array([item.distance for item in items]))
