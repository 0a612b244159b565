"""Visual words: cluster centres of descriptors, used to find photos with many common words without comparing all.

A key point has a signature in its word: bits that show how close two descriptors of a word are (Hamming embedding). A
descriptor and the centre of its word are projected on Walsh functions (sums and differences of their numbers). Each
bit says whether one projection of the descriptor is greater than that of the centre.
Jegou, Douze, Schmid: Hamming embedding and weak geometric consistency for large scale image search. ECCV 2008.
Shapes: k descriptors, w words, a words per descriptor.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray
from threadpoolctl import threadpool_limits

from index.search.details import BITS
from retrieval.errors import DataError, InvalidParameter, importing

from .features import LENGTH

WORDS = 4096
SAMPLED = 100_000  # descriptors that the centres are fitted to
PASSES = 5  # over the sample
PER_WORD = 8  # minimum number of descriptors per word
FEWEST_PHOTOS = 2
NEIGHBOURS = 32  # words around that of a descriptor, among which its next nearest ones are looked for

_NUMBERS = np.arange(LENGTH)
_ODD = np.bitwise_count(_NUMBERS[:, None] & _NUMBERS[1 : BITS + 1]) % 2
_WALSH = np.where(_ODD, -1, 1).astype(np.float32)  # (128, BITS)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """Centres of the visual words and the weight of each in a vote."""

    centres: NDArray[np.uint8]  # (w, 128)
    weights: NDArray[np.float32]  # (w,) inverse document frequency

    def __post_init__(self) -> None:
        words = len(self.centres)
        if self.centres.dtype != np.uint8 or self.centres.shape != (words, LENGTH) or not 1 <= words <= 2**16:
            raise InvalidParameter(
                "centres", f"be uint8 (w, {LENGTH}), w from 1 to 65,536", f"{self.centres.dtype} {self.centres.shape}"
            )
        if self.weights.shape != (words,) or not np.isfinite(self.weights).all() or (self.weights < 0).any():
            raise InvalidParameter("weights", "be finite and at least 0, one per word", self.weights.shape)

    @classmethod
    def fit(cls, photos: Sequence[NDArray[np.uint8]], *, words: int = WORDS, seed: int = 0) -> Vocabulary:
        """Fit a vocabulary to the descriptors (k, 128) of each photo; the same photos and seed give the same one.

        With few descriptors there are fewer words, one for every eight.
        """
        if not 1 <= words <= 2**16:
            raise InvalidParameter("words", "lie between 1 and 65,536", words)
        described = [descriptors for descriptors in photos if len(descriptors)]
        if len(described) < FEWEST_PHOTOS:
            raise DataError(
                f"only {len(described)} of {len(photos)} photos have key points, a vocabulary needs {FEWEST_PHOTOS}",
                remedy="Use photos of printed things, or export without --verify",
            )
        every = np.concatenate(described)
        generator = np.random.default_rng(seed)
        sample = every[np.sort(generator.permutation(len(every))[:SAMPLED])]
        centres = _clustered(sample, max(1, min(words, len(sample) // PER_WORD)), seed)
        fitted = cls(centres, np.zeros(len(centres), np.float32))
        counts = np.zeros(len(centres))
        for descriptors in described:
            counts[np.unique(fitted.assign(descriptors))] += 1
        return cls(centres, np.log((len(described) + 1) / (counts + 1)).astype(np.float32))

    def assign(self, descriptors: NDArray[np.uint8]) -> NDArray[np.uint16]:
        """Return the nearest word of each descriptor (k, 128)."""
        centres, halves = self._exact
        return np.asarray(np.argmax(descriptors.astype(np.float32) @ centres - halves, axis=1), dtype=np.uint16)

    def nearest(self, descriptors: NDArray[np.uint8], words: NDArray[np.uint16], count: int) -> NDArray[np.uint16]:
        """Return up to `count` of the nearest words (k, a) of descriptors (k, 128); `words` (k,) are the nearest."""
        if count == 1:
            return words[:, None]
        centres, halves = self._exact
        around = self._neighbours[words]  # (k, NEIGHBOURS)
        products = (centres.T[around] @ descriptors.astype(np.float32)[:, :, None])[..., 0]
        order = np.argsort(halves[around] - products, axis=1, kind="stable")[:, :count]
        return np.asarray(np.take_along_axis(around, order, axis=1), dtype=np.uint16)

    def signatures(self, descriptors: NDArray[np.uint8], words: NDArray[np.uint16]) -> NDArray[np.uint64]:
        """Return the signatures of descriptors (k, 128) in each of their words (k, a)."""
        return signatures_of(projected(descriptors), self._projected[words])

    @cached_property
    def _projected(self) -> NDArray[np.float32]:
        """The projected centres (w, BITS)."""
        return projected(self.centres)

    @cached_property
    def _neighbours(self) -> NDArray[np.int64]:
        """The nearest words of each word (w, NEIGHBOURS or w), including itself, ascending."""
        (centres, halves), count = self._exact, len(self.centres)
        width, found = min(NEIGHBOURS, count), []
        for start in range(0, count, 512):
            apart = 2 * (halves - centres.T[start : start + 512] @ centres)  # whole numbers
            ranks = apart.astype(np.int64) * count + np.arange(count)  # of equally near words, the first comes first
            found.append(np.sort(np.argpartition(ranks, width - 1, axis=1)[:, :width], axis=1))
        return np.concatenate(found)

    @cached_property
    def _exact(self) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The centres (128, w) and half of their squared lengths (w,): float32 holds every product exactly."""
        centres = np.ascontiguousarray(self.centres.T, dtype=np.float32)
        return centres, np.vecdot(centres.T, centres.T) / 2


def _clustered(descriptors: NDArray[np.uint8], words: int, seed: int) -> NDArray[np.uint8]:
    with importing("sklearn", "train", called="scikit-learn"):
        from sklearn.cluster import MiniBatchKMeans
    size = max(1024, 2 * words)
    means = MiniBatchKMeans(words, batch_size=size, n_init=1, init="random", max_iter=PASSES, random_state=seed)
    with threadpool_limits(1):  # sums of several threads would depend on their number
        means.fit(descriptors.astype(np.float32))
    return np.unique(np.rint(means.cluster_centers_).clip(0, 255).astype(np.uint8), axis=0)


def projected(descriptors: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Return the projections (k, BITS) of descriptors (k, 128), which are exact in float32."""
    return descriptors.astype(np.float32) @ _WALSH


def signatures_of(projections: NDArray[np.float32], centres: NDArray[np.float32]) -> NDArray[np.uint64]:
    """Return the signatures (k, a) of projected descriptors (k, BITS), compared with projected centres (k, a, BITS)."""
    return np.packbits(projections[:, None] > centres, axis=2).view("<u8")[..., 0].astype(np.uint64)
