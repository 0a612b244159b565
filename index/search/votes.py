"""Votes for photos with key points like those of a query, from inverted lists of each segment.

Each key point of a query has a few visual words. It votes for the photos with a key point of one of these words and a
similar signature. A vote is the weight of the word times the agreement of the signatures; of the votes of one key point
for a photo, the greatest counts. The score of a photo is the sum of its votes, divided by the root of the sum of the
weights of its own key points. It depends on the query, the photo and the weights only.
Shapes: n photos, k key points, w words in the vocabulary, t key points of all photos together, a words per key point of
a query.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from .details import Points, Voting
from .distance import Floats

Rows = NDArray[np.int64]


@dataclass(frozen=True)
class PhotoPoints:
    """The key points of n photos."""

    starts: Rows  # (n + 1,)
    words: NDArray[np.uint16]  # (t,)
    signatures: NDArray[np.uint64]  # (t,)

    @classmethod
    def of(cls, photos: Sequence[Points]) -> PhotoPoints:
        """Return the points of photos from those of each."""
        lengths = np.cumsum([len(points.words) for points in photos], dtype=np.int64)
        words = np.concatenate([np.zeros(0, np.uint16), *(points.words for points in photos)])
        signatures = np.concatenate([np.zeros(0, np.uint64), *(points.signatures for points in photos)])
        return cls(np.concatenate([np.zeros(1, np.int64), lengths]), words, signatures)


@dataclass(frozen=True)
class InvertedLists:
    """The key points of each visual word."""

    starts: Rows  # (w + 1,) start of each list
    rows: NDArray[np.int32]  # (t,) photo of each key point, ascending in each list
    signatures: NDArray[np.uint64]  # (t,) of each key point
    norms: Floats  # (n,) root of the sum of the weights of each photo's key points

    @classmethod
    def of(cls, points: PhotoPoints, voting: Voting) -> InvertedLists:
        """Return the lists of n photos."""
        photos = len(points.starts) - 1
        rows = np.repeat(np.arange(photos, dtype=np.int32), np.diff(points.starts))
        order = np.argsort(points.words, kind="stable")
        starts = np.searchsorted(points.words[order], np.arange(len(voting.weights) + 1))
        sums = np.bincount(rows, weights=voting.weights[points.words].astype(np.float64), minlength=photos)
        return cls(starts, rows[order], points.signatures[order], np.sqrt(sums))

    def scores(self, asked: Points, voting: Voting) -> Floats:
        """Return the score of each photo (n,) for the key points of a query."""
        photos, numbers, votes = self._votes(asked, voting)
        if not len(votes):
            return np.zeros(len(self.norms))
        pairs = photos * asked.words.size + numbers // asked.words.shape[1]  # of a photo and a key point of the query
        order = np.argsort(pairs, kind="stable")
        firsts = np.flatnonzero(np.diff(pairs[order], prepend=-1))
        greatest = np.maximum.reduceat(votes[order], firsts)
        # bincount adds one after the other, by key point of the query: the sum does not depend on the segment
        gained = np.bincount(photos[order[firsts]], weights=greatest, minlength=len(self.norms))
        return np.divide(gained, self.norms, out=np.zeros(len(gained)), where=self.norms > 0)

    def _votes(self, asked: Points, voting: Voting) -> tuple[Rows, Rows, Floats]:
        """Return the photo, the number of the query's word and the size of each vote."""
        words, signatures = asked.words.ravel().astype(np.int64), asked.signatures.ravel()
        starts, stops, weights = self.starts[words], self.starts[words + 1], voting.weights[words]
        numbers = np.flatnonzero((stops > starts) & (weights > 0))
        starts, stops = starts[numbers], stops[numbers]
        ends = np.cumsum(stops - starts)
        compared = np.empty(ends[-1] if len(ends) else 0, np.uint64)
        for number, start, stop, end in zip(numbers, starts.tolist(), stops.tolist(), ends.tolist(), strict=True):
            np.bitwise_xor(self.signatures[start:stop], signatures[number], out=compared[end - stop + start : end])
        differing = np.bitwise_count(compared)
        near = np.flatnonzero(differing <= np.flatnonzero(voting.agreement).max(initial=-1))
        lists = np.searchsorted(ends, near, side="right")
        photos = self.rows[near - ends[lists] + stops[lists]].astype(np.int64)
        votes = weights[numbers[lists]].astype(np.float64) * voting.agreement[differing[near]]
        return photos, numbers[lists], votes


def most_votes(positions: Rows, scores: Floats, count: int) -> Rows:
    """Return the `count` positions with the greatest scores, those with the same score in insertion order."""
    if 0 < count < len(positions):  # sorting all would take longer
        some = scores >= np.partition(scores, len(scores) - count)[len(scores) - count]
        positions, scores = positions[some], scores[some]
    return positions[np.lexsort((positions, -scores))[:count]]
