"""Visual words: near descriptors share one, and a fit can be repeated."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.errors import DataError, InvalidParameter
from retrieval.verification.vocabulary import Vocabulary

generator = np.random.default_rng(0)
KINDS = generator.integers(40, 200, (10, 128))


def described(kinds: list[int], count: int = 40) -> np.ndarray:
    rows = KINDS[np.repeat(kinds, count)] + generator.normal(0, 3, (len(kinds) * count, 128))
    return rows.round().clip(0, 255).astype(np.uint8)


def test_near_descriptors_share_a_word_and_rare_words_weigh_more() -> None:
    photos = [described([0, 1]), described([0, 2]), described([0, 3]), described([0, 4])]
    vocabulary = Vocabulary.fit(photos, words=20)
    words = [set(vocabulary.assign(described([kind])).tolist()) for kind in range(5)]
    assert all(not words[a] & words[b] for a in range(5) for b in range(a))
    weights = [max(vocabulary.weights[list(each)]) for each in words]
    assert min(weights[1:]) > weights[0] >= 0
    assert max(vocabulary.weights) == pytest.approx(np.log(5 / 2))


def test_assign_is_the_nearest_centre() -> None:
    vocabulary = Vocabulary(described(list(range(10)), 3), np.zeros(30, np.float32))
    asked = generator.integers(0, 256, (200, 128), dtype=np.uint8)
    apart = ((asked[:, None].astype(int) - vocabulary.centres.astype(int)) ** 2).sum(axis=2)
    assert vocabulary.assign(asked).tolist() == apart.argmin(axis=1).tolist()
    assert vocabulary.assign(asked).dtype == np.uint16
    assert len(vocabulary.assign(asked[:0])) == 0


def test_nearest_words_in_order() -> None:
    vocabulary = Vocabulary(described(list(range(10)), 3), np.zeros(30, np.float32))
    asked = described(list(range(10)), 20)
    words = vocabulary.assign(asked)
    apart = ((asked[:, None].astype(int) - vocabulary.centres.astype(int)) ** 2).sum(axis=2)
    nearest = np.argsort(apart, axis=1, kind="stable")
    for count in (1, 3):
        assert vocabulary.nearest(asked, words, count).tolist() == nearest[:, :count].tolist()
    few = Vocabulary(vocabulary.centres[:2], np.zeros(2, np.float32))
    assert few.nearest(asked, few.assign(asked), 3).shape == (200, 2)  # of two words


def test_nearest_words_of_a_large_vocabulary() -> None:
    centres = generator.integers(0, 256, (1200, 128), dtype=np.uint8)
    vocabulary = Vocabulary(centres, np.zeros(1200, np.float32))
    apart = ((centres[:, None].astype(int) - centres[None, :50].astype(int)) ** 2).sum(axis=2).T
    nearest = np.argsort(apart, axis=1, kind="stable")
    assert np.array_equal(vocabulary.nearest(centres[:50], np.arange(50, dtype=np.uint16), 3), nearest[:, :3])


def test_the_same_photos_and_seed_give_the_same_vocabulary() -> None:
    photos = [described([0, 1, 2]), described([3, 4])]
    fits = [Vocabulary.fit(photos, words=8, seed=seed) for seed in (1, 1, 2)]
    assert np.array_equal(fits[0].centres, fits[1].centres)
    assert not np.array_equal(fits[0].centres, fits[2].centres)


def test_few_descriptors_give_few_words() -> None:
    assert len(Vocabulary.fit([described([0], 8), described([1], 8)]).centres) <= 2


def test_photos_without_key_points_cannot_be_fitted() -> None:
    blank = np.zeros((0, 128), np.uint8)
    with pytest.raises(DataError, match="only 1 of 3 photos have key points"):
        Vocabulary.fit([blank, described([0]), blank])


def test_wrong_arrays_are_refused() -> None:
    with pytest.raises(InvalidParameter, match="centres"):
        Vocabulary(np.zeros((3, 64), np.uint8), np.zeros(3, np.float32))
    with pytest.raises(InvalidParameter, match="weights"):
        Vocabulary(np.zeros((3, 128), np.uint8), np.full(3, np.nan, np.float32))
    with pytest.raises(InvalidParameter, match="words"):
        Vocabulary.fit([], words=0)
