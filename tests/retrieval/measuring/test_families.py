"""Families of items: what hangs together by links to the nearest item."""

from __future__ import annotations

import numpy as np
import pytest

from retrieval.measuring.rule import families_of_photos, linked


def components(nearest: list[int]) -> set[frozenset[int]]:
    """Join sets one link at a time."""
    families = [{item} for item in range(len(nearest))]
    for item, other in enumerate(nearest):
        if other >= 0:
            mine = next(family for family in families if item in family)
            its = next(family for family in families if other in family)
            if mine is not its:
                mine |= its
                families.remove(its)
    return {frozenset(family) for family in families}


def test_families_are_the_connected_components_of_the_links() -> None:
    assert linked(np.array([1, 0, 1, 4, 3, -1])).tolist() == [0, 0, 0, 1, 1, 2]
    assert linked(np.array([-1, 2, 0, -1, 0])).tolist() == [0, 0, 0, 1, 0]
    for seed in range(40):
        generator = np.random.default_rng(seed)
        count = int(generator.integers(1, 40))
        nearest = generator.integers(-1, count, count)
        found = linked(nearest)
        assert {frozenset(np.flatnonzero(found == family).tolist()) for family in set(found.tolist())} == components(
            nearest.tolist()
        )


@pytest.mark.parametrize("count", [3, 40])
def test_items_around_the_same_centre_are_a_family(count: int) -> None:
    generator = np.random.default_rng(0)
    centres = np.repeat(generator.normal(size=(count, 32)), 2, axis=0)  # two items each
    items = np.repeat(np.arange(2 * count), 3)
    photos = centres[items] + 0.1 * generator.normal(size=(len(items), 32))
    photos /= np.linalg.norm(photos, axis=1, keepdims=True)
    order = generator.permutation(len(items))
    found = families_of_photos(photos[order].astype(np.float32), items[order].astype(str))
    assert len(set(found.tolist())) == count
    assert (
        len({(family, item // 2) for family, item in zip(found.tolist(), items[order].tolist(), strict=True)}) == count
    )


def test_a_single_item_is_a_family_of_its_own() -> None:
    assert families_of_photos(np.eye(3, dtype=np.float32), np.array(["a", "a", "a"])).tolist() == [0, 0, 0]
