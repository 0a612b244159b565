"""Votes by hand, the order among equals, and points that are read once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from index.errors import GalleryCorrupt
from index.search.details import Points, Voting
from index.search.votes import InvertedLists, PhotoPoints, most_votes
from index.segments import OpenSegment

from .fake_verifier import FakeVerifier, agreement, fill, pack, verified_gallery

QUERY = FakeVerifier().asked(pack([1, 2, 3]))


def points(words: list[int], signatures: list[int] | None = None) -> Points:
    return Points(np.array(words, dtype=np.uint16), np.array(signatures or [0] * len(words), dtype=np.uint64))


def asked(*words: list[int], signatures: list[list[int]] | None = None) -> Points:
    """Return the points of a query: the words of each key point."""
    numbers = np.array(words, dtype=np.uint16) if words else np.zeros((0, 2), np.uint16)
    return Points(numbers, np.array(signatures or np.zeros(numbers.shape), dtype=np.uint64))


def voting(*weights: float) -> Voting:
    return Voting("v", np.array(weights, dtype=np.float32), agreement(1.0, 0.5, 0.25))


def lists_of(votes: Voting, *photos: Points) -> InvertedLists:
    return InvertedLists.of(PhotoPoints.of(photos), votes)


def test_scores_by_hand() -> None:
    votes = voting(1, 4, 9, 0, 5)
    lists = lists_of(votes, points([0, 1]), points([]), points([1, 2, 4]), points([3]), points([0]))
    assert lists.scores(asked([1], [3]), votes).tolist() == [4 / np.sqrt(5), 0, 4 / np.sqrt(18), 0, 0]
    assert lists.scores(asked([3], [1]), votes).tolist() == [4 / np.sqrt(5), 0, 4 / np.sqrt(18), 0, 0]
    everything = lists.scores(asked([0], [1], [2], [4]), votes).tolist()
    assert everything == pytest.approx([np.sqrt(5), 0, np.sqrt(18), 0, 1])
    assert lists.scores(asked(), votes).tolist() == [0] * 5
    assert lists_of(votes).scores(asked([0], [4]), votes).tolist() == []


def test_votes_by_signatures_by_hand() -> None:
    votes = voting(1, 4)
    lists = lists_of(votes, points([0, 1, 1], [0b1, 0b11, 0b1]), points([1], [0b1111]))
    assert lists.norms.tolist() == [3, 2]
    assert lists.scores(asked([1], signatures=[[0b1]]), votes).tolist() == [4 / 3, 0]  # of two votes, the greatest
    assert lists.scores(asked([1], signatures=[[0b0]]), votes).tolist() == [2 / 3, 0]
    assert lists.scores(asked([1], signatures=[[0b111]]), votes).tolist() == [2 / 3, 1]
    both = asked([0, 1], signatures=[[0b1, 0b111]])
    assert lists.scores(both, votes).tolist() == [2 / 3, 1]  # a key point asks two words and votes once
    assert lists.scores(asked([0], [1], signatures=[[0b1], [0b111]]), votes).tolist() == [1, 1]


def test_the_largest_word_is_a_word() -> None:
    votes = voting(*np.ones(65_536))
    lists = lists_of(votes, points([65_535]), points([0, 65_535]))
    assert lists.scores(asked([65_535]), votes).tolist() == [1, 1 / np.sqrt(2)]


@pytest.mark.parametrize(
    ("count", "chosen"), [(0, []), (1, [3]), (2, [3, 2]), (3, [3, 2, 5]), (4, [3, 2, 5, 9]), (5, [3, 2, 5, 9])]
)
def test_equal_scores_are_taken_in_order(count: int, chosen: list[int]) -> None:
    positions, scores = np.array([2, 3, 5, 9]), np.array([2.0, 3.0, 2.0, 1.0])
    assert most_votes(positions, scores, count).tolist() == chosen


def test_words_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    read_features = OpenSegment.read_features
    monkeypatch.setattr(OpenSegment, "read_features", lambda self, row: read.append(row) or read_features(self, row))
    with verified_gallery(tmp_path / "g") as gallery:
        gallery.snapshot().votes(FakeVerifier(), QUERY)
        assert len(read) == 132
        gallery.snapshot().votes(FakeVerifier(), QUERY)
        fill(gallery, range(200, 202), 3, 99)
        gallery.snapshot().votes(FakeVerifier(), QUERY)
        assert len(read) == 134


def test_lists_are_kept_by_voting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        voting = FakeVerifier().voting
        for number in range(1, 5):
            monkeypatch.setattr(FakeVerifier, "voting", replace(voting, key=f"votes {number}"))
            gallery.snapshot().votes(FakeVerifier(items=number), QUERY)
        assert list(gallery.snapshot().caches.lists._known) == ["votes 3", "votes 4"]


def test_a_word_that_the_verifier_does_not_know_is_named_with_its_photo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        monkeypatch.setattr(FakeVerifier, "points", lambda *_: points([60_000]))
        with pytest.raises(GalleryCorrupt, match="photo number 0 have a visual word that the bundle does not know"):
            gallery.snapshot().votes(FakeVerifier(), QUERY)
