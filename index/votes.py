"""Votes: photos that share visual words with a query, from inverted lists of each segment.

The score of a photo is the cosine between its set of words and that of the query, where a word counts as the square
root of its weight, times the norm of the query: the sum of the weights of the shared words, divided by the root of the
sum of the weights of the photo's words. It depends on the query, the photo and the weights alone.
Shapes: n photos, w words in the vocabulary, t words of all photos together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from .cached import SegmentCache, read_cached, write_cached
from .database import RESTORE
from .distance import Floats
from .errors import GalleryCorrupt
from .segments import OpenSegment
from .verified import Verifier

CACHED_FROM = 64  # minimum photos of a segment whose words are cached on disk

Words = NDArray[np.uint16]


@dataclass(frozen=True)
class PhotoWords:
    """The distinct visual words of n photos, ascending for each photo."""

    starts: NDArray[np.int64]  # (n + 1,)
    words: Words  # (t,)

    @classmethod
    def of(cls, photos: Sequence[Words]) -> PhotoWords:
        """Return the words of photos from the words of each, distinct and ascending."""
        starts = np.concatenate([[0], np.cumsum([len(words) for words in photos], dtype=np.int64)]).astype(np.int64)
        return cls(starts, np.concatenate([np.zeros(0, np.uint16), *photos]))

    def photo(self, row: int) -> Words:
        """Return the words of a photo."""
        return self.words[self.starts[row] : self.starts[row + 1]]


@dataclass(frozen=True)
class InvertedLists:
    """The photos of each visual word."""

    words: PhotoWords
    starts: NDArray[np.int64]  # (w + 1,) start of each list
    rows: NDArray[np.int32]  # (t,) photos of each list, ascending
    norms: Floats  # (n,) root of the sum of the weights of each photo's words

    @classmethod
    def of(cls, words: PhotoWords, weights: NDArray[np.float32]) -> InvertedLists:
        """Return the lists of n photos."""
        photos = len(words.starts) - 1
        rows = np.repeat(np.arange(photos, dtype=np.int32), np.diff(words.starts))
        order = np.argsort(words.words, kind="stable")
        starts = np.searchsorted(words.words[order], np.arange(len(weights) + 1))
        sums = np.bincount(rows, weights=weights[words.words].astype(np.float64), minlength=photos)
        return cls(words, starts, rows[order], np.sqrt(sums))

    def scores(self, query: Words, weights: NDArray[np.float32]) -> Floats:
        """Return the score of each photo (n,) for distinct, ascending words of a query."""
        first, counts = self.starts[query], self.starts[query.astype(np.int64) + 1] - self.starts[query]
        ends = np.cumsum(counts)
        places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - ends + counts, counts)
        # bincount adds one after the other, by ascending word: the sum does not depend on the segment
        gained = np.repeat(weights[query].astype(np.float64), counts)
        shared = np.bincount(self.rows[places], weights=gained, minlength=len(self.norms))
        return np.divide(shared, self.norms, out=np.zeros(len(shared)), where=self.norms > 0)


class VisualWords:
    """Inverted lists by verifier and segment."""

    def __init__(self, folder: Path) -> None:
        self._cache: SegmentCache[InvertedLists] = SegmentCache(folder)
        self.forget = self._cache.forget

    def of(self, verifier: Verifier, segments: Sequence[OpenSegment]) -> list[InvertedLists]:
        """Return the lists of each segment."""
        return self._cache.of(
            verifier.key, segments, lambda s: InvertedLists.of(self._of_segment(verifier, s), verifier.weights)
        )

    def _of_segment(self, verifier: Verifier, segment: OpenSegment) -> PhotoWords:
        rows = len(segment.seqs)
        path = self._cache.path(segment, verifier.features_key)
        if rows >= CACHED_FROM:
            cached = read_cached(path, 2)
            if cached is not None and cached[0].shape == (rows + 1,):
                return PhotoWords(*cached)
        words = PhotoWords.of([distinct(verifier, segment.read_features(row)) for row in range(rows)])
        if len(words.words) and int(words.words.max()) >= len(verifier.weights):
            row = int(np.searchsorted(words.starts, np.argmax(words.words), side="right")) - 1
            raise GalleryCorrupt(
                f"the features of photo number {segment.seqs[row]} have a visual word that the bundle does not know",
                remedy=RESTORE,
            )
        if rows >= CACHED_FROM:
            write_cached(path, [words.starts, words.words])
        return words


def distinct(verifier: Verifier, features: bytes) -> Words:
    """Return the distinct visual words of a photo's features, ascending."""
    return np.unique(verifier.words(features))
