"""The item distance against a version in loops, and what follows from its formula."""

from __future__ import annotations

import itertools
import math
import zlib
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from index.errors import InvalidParameter
from index.search.item_distance import (
    CANDIDATES,
    CHANCE,
    MOST_PHOTOS,
    NEAREST_PHOTO,
    ORTHOGONAL,
    RIVALS,
    UNIT,
    ItemDistance,
    mean_photo,
)

from ..vectors import DIM, unit

DISTANCE = ItemDistance()
SEEDS = st.integers(0, 2**32 - 1)


def slow(own: list[float], groups: list[int], place: int, distance: ItemDistance = DISTANCE) -> float:
    """Return the item distance of one candidate by the formula."""
    rivals = sorted(max(0.0, min(other, ORTHOGONAL)) for o, other in enumerate(own) if groups[o] != groups[place])
    several = (rivals + [ORTHOGONAL] * RIVALS)[:RIVALS]
    first = several[0]
    surcharge = distance.rival * (ORTHOGONAL - first) + distance.rivals * (ORTHOGONAL - sum(several) / RIVALS)
    return max(0.0, own[place] + surcharge)


def measured(own: list[float], groups: list[int], distance: ItemDistance = DISTANCE) -> list[float]:
    """Return the item distances of candidates in any order."""
    order = np.argsort(own, kind="stable")
    found = distance.with_rivals(np.array([own])[:, order], np.array([groups])[:, order])[0]
    return [float(found[list(order).index(place)]) for place in range(len(own))]


def some_own(generator: np.random.Generator, count: int) -> list[float]:
    return generator.uniform(-0.5, 2.2, count).tolist()


@given(seed=SEEDS, count=st.integers(1, 10), groups=st.integers(1, 10))
def test_item_distance_with_zero_to_nine_rivals_is_that_of_the_loop(seed: int, count: int, groups: int) -> None:
    generator = np.random.default_rng(seed)
    own, of = some_own(generator, count), generator.integers(0, groups, count).tolist()
    expected = [slow(own, of, place) for place in range(count)]
    assert measured(own, of) == pytest.approx(expected, abs=1e-12)


def test_item_distance_of_numbers_a_reader_can_check() -> None:
    """The rivals of the first are at 1.0 and 1.2; three are missing and count the root of two."""
    own = [0.8, 1.0, 1.2]
    missing = ORTHOGONAL - (1.0 + 1.2 + 3 * ORTHOGONAL) / 5
    assert measured(own, [0, 1, 2])[0] == pytest.approx(0.8 + 0.4 * (ORTHOGONAL - 1.0) + 0.45 * missing)
    assert DISTANCE.own(np.array([0.6]), np.array([0.8])).tolist() == [pytest.approx(0.35 * 0.6 + 0.65 * 0.8)]
    assert measured([0.7], [0]) == [0.7]
    assert measured(own, [0, 1, 2], ItemDistance(rivals=0))[0] == pytest.approx(0.8 + 0.4 * (ORTHOGONAL - 1.0))
    assert measured(own, [0, 1, 2], ItemDistance(rival=0))[0] == pytest.approx(0.8 + 0.45 * missing)


@given(seed=SEEDS, count=st.integers(2, 9), nearer=st.floats(0, 1))
def test_a_rival_that_comes_nearer_or_is_added_brings_no_item_nearer(seed: int, count: int, nearer: float) -> None:
    generator = np.random.default_rng(seed)
    own, groups = some_own(generator, count), list(range(count))
    before = measured(own, groups)
    moved = measured([own[0] - nearer, *own[1:]], groups)
    added = measured([*own, float(generator.uniform(-0.5, 2.2))], [*groups, count])
    for place in range(1, count):
        assert moved[place] >= before[place] - 1e-12
    for place in range(count):
        assert added[place] >= before[place] - 1e-12


@given(seed=SEEDS, count=st.integers(2, 24))
def test_items_without_groups_are_in_the_order_of_their_own_distances(seed: int, count: int) -> None:
    own = sorted(some_own(np.random.default_rng(seed), count))
    found = measured(own, list(range(count)))
    assert all(one <= other + 1e-12 for one, other in itertools.pairwise(found))


def test_members_of_a_group_are_no_rivals() -> None:
    own = [0.8, 0.81, 1.3]
    assert measured(own, [7, 7, 9])[0] == measured([0.8, 1.3], [7, 9])[0]
    assert measured(own, [7, 8, 9])[0] > measured(own, [7, 7, 9])[0]


def test_candidates_that_are_no_rivals_change_nothing() -> None:
    own, groups = np.array([[0.8, 0.9, 1.0]]), np.array([[0, 1, 2]])
    among = np.array([[True, False, True]])
    alone = DISTANCE.with_rivals(own[:, [0, 2]], groups[:, [0, 2]])[0]
    assert DISTANCE.with_rivals(own, groups, among)[0][[0, 2]].tolist() == alone.tolist()


@given(seed=SEEDS)
def test_own_distance_falls_with_both_distances_and_with_inliers(seed: int) -> None:
    distance, generator = ItemDistance.default(verified=True), np.random.default_rng(seed)
    near, mean, inliers = generator.uniform(0, 2), generator.uniform(0, 2), int(generator.integers(0, 60))

    def own(photo: float, other: float, agreeing: int) -> float:
        return float(distance.own(np.array([photo]), np.array([other]), np.array([agreeing]))[0])

    base = own(near, mean, inliers)
    assert own(near * generator.uniform(), mean, inliers) <= base
    assert own(near, mean * generator.uniform(), inliers) <= base
    assert own(near, mean, inliers + 5) <= base
    assert own(near, mean, CHANCE) == own(near, mean, 0)
    gained = distance.details * math.log1p(1 / UNIT)
    assert own(near, mean, CHANCE + 1) == pytest.approx(own(near, mean, 0) - gained)


@given(seed=SEEDS, count=st.integers(0, 9))
@example(seed=590193193, count=7)  # the mean photo is on the other side, and every rival is a copy too
def test_an_item_with_a_copy_is_at_distance_zero_whatever_its_rivals(seed: int, count: int) -> None:
    generator = np.random.default_rng(seed)
    copy = float(DISTANCE.own(np.zeros(1), generator.uniform(0, 2, 1))[0])
    rivals = generator.uniform(-3, 2, count).tolist()
    assert measured([copy, *rivals], list(range(count + 1)))[0] == 0
    farthest = float(DISTANCE.own(np.zeros(1), np.full(1, 2.0))[0])
    assert measured([farthest, *[-3.0] * count], list(range(count + 1)))[0] == 0


def test_nearest_photo_is_the_plain_distance() -> None:
    apart = np.linspace(0, 2, 9)
    assert NEAREST_PHOTO.own(apart, 2 - apart).tolist() == apart.tolist()
    assert NEAREST_PHOTO.with_rivals(apart[None], np.arange(9)[None])[0].tolist() == apart.tolist()


def test_constants_are_read_back_and_checked() -> None:
    assert ItemDistance.from_dict(DISTANCE.to_dict()) == DISTANCE
    assert DISTANCE.key != ItemDistance(rivals=0.4500001).key
    for value in (-0.1, math.inf, math.nan):
        with pytest.raises(InvalidParameter, match="item_distance mean must be a number of at least 0"):
            ItemDistance(mean=value)


@given(seed=SEEDS, count=st.sampled_from((1, 2, 5, MOST_PHOTOS, MOST_PHOTOS + 30)))
def test_mean_photo_does_not_depend_on_the_order(seed: int, count: int) -> None:
    vectors = unit(count, seed % 1000)
    order = np.random.default_rng(seed).permutation(count)
    mean = mean_photo(vectors)
    assert mean.tolist() == mean_photo(vectors[order]).tolist()
    assert np.linalg.norm(mean) == pytest.approx(1)
    if count <= MOST_PHOTOS:
        total = vectors.astype(np.float64).sum(axis=0)
        np.testing.assert_allclose(mean, total / np.linalg.norm(total), atol=1e-6)


def test_mean_photo_of_vectors_that_cancel_out_is_the_smallest_of_them() -> None:
    for vector in unit(6, 4):
        for both in ([vector, -vector], [-vector, vector]):
            mean: Any = mean_photo(np.stack(both))
            assert mean.shape == (DIM,)
            smallest = vector if vector[0] < 0 else -vector
            np.testing.assert_allclose(mean, smallest, atol=1e-6)


@pytest.mark.parametrize("count", [63, 64, 65, 94])
def test_mean_photo_is_that_of_at_most_64_photos_with_the_smallest_checksums(count: int) -> None:
    vectors = unit(count, count)
    chosen = sorted(vectors, key=lambda vector: zlib.crc32(vector.tobytes()))[:64]
    total = np.sum(chosen, axis=0, dtype=np.float64)
    np.testing.assert_allclose(mean_photo(vectors), total / np.linalg.norm(total), atol=1e-7)


def test_the_constants_are_those_of_the_documentation() -> None:
    """A bundle keeps its own ones; those of a new bundle are told in docs/architecture.md."""
    names = ("nearest", "mean", "rival", "rivals", "copy", "details")
    constants = dict(zip(names, (0.35, 0.65, 0.40, 0.45, 0.02, 0.0), strict=True))
    assert ItemDistance().to_dict() == ItemDistance.default().to_dict() == constants
    assert ItemDistance.default(verified=False).details == 0
    assert ItemDistance.default(verified=True).to_dict() == {**constants, "details": 0.4}
    assert CANDIDATES == 24
    assert RIVALS == 5
    assert pytest.approx(1.41421356) == ORTHOGONAL


def test_own_distance_of_numbers_a_reader_can_check() -> None:
    """A photo at half the distance of a copy gains half of 3; 8 and 14 local features that agree gain ln 2 and ln 4."""
    near, mean, distance = np.array([0.01, 0.6, 0.6]), np.array([0.5, 0.8, 0.8]), ItemDistance(details=0.5)
    plain = [0.0035 + 0.325 - 1.5, 0.21 + 0.52, 0.21 + 0.52]
    assert distance.own(near, mean).tolist() == pytest.approx(plain)
    assert DISTANCE.own(near, mean, np.array([8, 8, 14])).tolist() == pytest.approx(plain)
    gains = [0, 0.5 * math.log(2), 0.5 * math.log(4)]
    found = distance.own(near, mean, np.array([5, 8, 14]))
    assert found.tolist() == pytest.approx([apart - gain for apart, gain in zip(plain, gains, strict=True)])
    assert ItemDistance(copy=0).own(near, mean)[0] == pytest.approx(0.0035 + 0.325)
