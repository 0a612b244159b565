"""Votes by hand, the order among equals, and words that are read once."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from index.distance import PLAIN
from index.errors import GalleryCorrupt
from index.gallery import Gallery
from index.segments import OpenSegment
from index.verified import VerifiedDistance
from index.verified_search import most_votes
from index.votes import InvertedLists, PhotoWords

from .fake_verifier import FakeVerifier, fill, verified_gallery

FORM = VerifiedDistance(PLAIN, FakeVerifier())


def words(*numbers: int) -> np.ndarray:
    return np.array(numbers, dtype=np.uint16)


def test_scores_by_hand() -> None:
    weights = np.array([1, 4, 9, 0, 5], dtype=np.float32)
    lists = InvertedLists.of(PhotoWords.of([words(0, 1), words(), words(1, 2, 4), words(3), words(0)]), weights)
    assert lists.scores(words(1, 3), weights).tolist() == [4 / np.sqrt(5), 0, 4 / np.sqrt(18), 0, 0]
    everything = lists.scores(words(0, 1, 2, 4), weights).tolist()
    assert everything == pytest.approx([np.sqrt(5), 0, np.sqrt(18), 0, 1])
    assert lists.scores(words(), weights).tolist() == [0] * 5
    assert lists.words.photo(2).tolist() == [1, 2, 4]
    nothing = InvertedLists.of(PhotoWords.of([]), weights)
    assert nothing.scores(words(0, 4), weights).tolist() == []


def test_the_largest_word_is_a_word() -> None:
    weights = np.ones(65_536, dtype=np.float32)
    lists = InvertedLists.of(PhotoWords.of([words(65_535), words(0, 65_535)]), weights)
    assert lists.scores(words(65_535), weights).tolist() == [1, 1 / np.sqrt(2)]


@pytest.mark.parametrize(
    ("count", "chosen"), [(0, []), (1, [3]), (2, [3, 2]), (3, [3, 2, 5]), (4, [3, 2, 5, 9]), (5, [3, 2, 5, 9])]
)
def test_equal_scores_are_taken_in_order(count: int, chosen: list[int]) -> None:
    positions, scores = np.array([2, 3, 5, 9]), np.array([2.0, 3.0, 2.0, 1.0])
    found, kept = most_votes(positions, scores, count)
    assert (found.tolist(), kept.tolist()) == (chosen, [3.0, 2.0, 2.0, 1.0][:count])


def test_words_are_read_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    read_features = OpenSegment.read_features
    monkeypatch.setattr(OpenSegment, "read_features", lambda self, row: read.append(row) or read_features(self, row))
    with verified_gallery(tmp_path / "g") as gallery:
        first = gallery.verified_search(FORM)
        assert len(read) == 132
        assert gallery.verified_search(FORM) is first
        fill(gallery, range(200, 202), 3, 99)
        gallery.verified_search(FORM)
        assert len(read) == 134
    read.clear()
    with Gallery.open(tmp_path / "g", read_only=True) as gallery:
        again = gallery.verified_search(FORM)
        assert len(read) == 14  # of the small segments: the words of the large one are in a file
        assert again.lists[0].words.words.tolist() == first.lists[0].words.words.tolist()
    (file,) = (tmp_path / "g" / "words").iterdir()
    file.write_bytes(file.read_bytes()[:-3])
    read.clear()
    with Gallery.open(tmp_path / "g") as gallery:
        gallery.verified_search(FORM)
        assert len(read) == 134
        name = gallery.snapshot().segments[0].name
        assert [file.name.split("-")[0] for file in (tmp_path / "g" / "words").iterdir()] == [name]
        gallery.rebuild()
        assert list((tmp_path / "g" / "words").iterdir()) == []


def test_two_verifiers_are_kept(tmp_path: Path) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        words = gallery._words
        for items in range(1, 5):
            gallery.verified_search(VerifiedDistance(PLAIN, FakeVerifier(items=items)))
        assert [key.split()[1] for key in words._cache._known] == ["3", "4"]


def test_a_word_that_the_verifier_does_not_know_is_named_with_its_photo(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with verified_gallery(tmp_path / "g") as gallery:
        monkeypatch.setattr(FakeVerifier, "words", lambda *_: words(60_000))
        with pytest.raises(GalleryCorrupt, match="photo number 0 have a visual word that the bundle does not know"):
            gallery.verified_search(FORM)
