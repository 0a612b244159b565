"""Item distances of neighbours: those of a full search where the list is long, and never smaller where it is short."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from index.search.item_distance import CANDIDATES, MOST_PHOTOS, ItemDistance, mean_photo
from retrieval.promise.metric import METRICS
from retrieval.promise.neighbours import ABSENT, ItemMeans, Measured, gaps, listed

from .shops import Shop, means, measured, queries_of, shop, unit

ROUNDED = 2e-4  # error of an item distance from means in float16


def full_search(given: Shop, query: np.ndarray, *, own: bool = False) -> dict[str, float]:
    """Return the item distance of each candidate of a full search, best first, or its own distance."""
    ids, table = np.unique(given.items), given.search(query[None])
    pairs = zip(table.items[0].tolist(), (table.own if own else table.distances)[0].tolist(), strict=True)
    return {str(ids[item]): distance for item, distance in pairs if item >= 0}


def distances_of(found: Measured) -> dict[str, float]:
    return dict(zip(found.items, found.distances.tolist(), strict=True))


# long lists


@pytest.mark.parametrize("numeric", [False, True])
@pytest.mark.parametrize("largest", [1, 60])
def test_a_list_of_24_items_has_the_item_distances_and_the_order_of_a_full_search(largest: int, numeric: bool) -> None:
    """Also copies of a vector, whose own distances are negative, and items of one group."""
    here = shop(3, largest=largest, numeric=numeric, items=60)
    known = means(here)
    for query in queries_of(here, 30):
        found = measured(known, query, here.neighbours(query, len(here.items)))
        full = full_search(here, query)
        assert not found.is_short
        assert found.is_first
        assert len(full) == CANDIDATES
        assert distances_of(found).keys() == full.keys()
        assert found.distances == pytest.approx([full[item] for item in found.items], abs=1e-4)
        own = full_search(here, query, own=True)
        assert (np.diff([own[item] for item in found.items]) > -1e-4).all()  # that order, but for rounded means


def test_a_list_with_all_of_fewer_than_24_items_is_not_short() -> None:
    here = shop(4, items=7, largest=5)
    query = queries_of(here, 3)[2]
    found = measured(means(here), query, here.neighbours(query, len(here.items)))
    assert not found.is_short
    assert distances_of(found) == pytest.approx(full_search(here, query), abs=1e-4)


def test_the_order_of_neighbours_and_farther_vectors_of_an_item_make_no_difference() -> None:
    here = shop(5)
    query, generator = queries_of(here, 4)[3], np.random.default_rng(0)
    for k in (20, 200):
        neighbours = here.neighbours(query, k)
        mixed = [neighbours[place] for place in generator.permutation(k).tolist()]
        found, again = (measured(means(here), query, each) for each in (neighbours, mixed))
        assert distances_of(found) == distances_of(again)
        assert found.items == again.items


# short lists


@given(
    seed=st.integers(0, 10_000),
    items=st.integers(1, 70),
    dim=st.sampled_from([2, 3, 8, 24]),
    largest=st.sampled_from([1, 3, 20, 90]),
    noise=st.sampled_from([0.0, 0.02, 0.5, 2.0]),
    share=st.floats(0, 1),
)
def test_an_exact_list_of_any_length_never_makes_an_item_nearer_than_a_full_search(
    seed: int, items: int, dim: int, largest: int, noise: float, share: float
) -> None:
    """Nor is another item first. Without noise, an item's vectors are copies of each other, and distances tie."""
    here = shop(seed, items=items, dim=dim, largest=largest, noise=noise)
    known, k = means(here), max(1, round(share * len(here.items)))
    for query in queries_of(here, 6, seed):
        neighbours = here.neighbours(query, k)
        found, full = measured(known, query, neighbours), full_search(here, query)
        rounded = ROUNDED if dim > 8 else 3 * ROUNDED  # of few numbers, errors point to the query more often
        for item, distance in distances_of(found).items():
            assert distance >= full.get(item, 0) - rounded
        if found.is_first:
            own = full_search(here, query, own=True)
            assert own[found.items[0]] <= min(own.values()) + rounded


@pytest.mark.parametrize("k", [10, 20, 50, 100])
def test_a_list_of_the_nearest_photos_of_items_of_up_to_500_makes_no_item_nearer(k: int) -> None:
    here = shop(7, items=40, largest=500)
    known = means(here)
    for query in queries_of(here, 24):
        full = full_search(here, query)
        for item, distance in distances_of(measured(known, query, here.neighbours(query, k))).items():
            assert distance >= full.get(item, 0) - ROUNDED


def test_a_short_list_makes_items_farther_and_more_neighbours_less_so() -> None:
    here = shop(6)
    known = means(here)
    farther = 0
    for query in queries_of(here, 30):
        before: dict[str, float] = {}
        for k in (1, 5, 20, 50, 400):
            found = distances_of(measured(known, query, here.neighbours(query, k)))
            for item in found.keys() & before.keys():
                assert found[item] <= before[item] + ROUNDED
                farther += found[item] < before[item] - 0.01
            before = found
    assert farther > 20


def test_one_neighbour_is_first_only_where_no_item_can_be_nearer() -> None:
    """The last neighbour's distance bounds that of absent items. Their means are known."""
    vectors = unit(np.array([[1, 0, 0], [0, 1, 0], [0.9, 0.3, 0.3], [1, 0.05, 0]]))
    apart = Shop(vectors[:2], ["b", "a"], ["", ""])
    near = Shop(vectors[[0, 2, 3]], ["b", "a", "c"], [""] * 3)
    query = unit(np.array([[1, 0.01, 0]]))[0]
    assert measured(means(apart), query, apart.neighbours(query, 1)).is_first
    assert measured(means(apart), query, apart.neighbours(query, 1)).is_short
    assert measured(means(near), query, near.neighbours(query, 1)).is_first
    centre = unit(np.array([[0.95, 0.15, 0.15], [0.5, 0.5, 0.7], [0.5, -0.3, -0.3], [0.97, 0.1, 0.1]]))
    spread = Shop(centre, ["b", "b", "b", "a"], [""] * 4)  # a photo of b is nearest, but its mean is far
    query = unit(np.array([[0.95, 0.15, 0.14]]))[0]
    assert not measured(means(spread), query, spread.neighbours(query, 1)).is_first


def test_absent_items_of_the_own_group_are_no_rivals() -> None:
    generator = np.random.default_rng(8)
    count = ABSENT + 40  # members of the group, more than the absent items that are measured otherwise
    centre = generator.normal(size=24)
    vectors = unit(np.r_[centre + 0.3 * generator.normal(size=(count, 24)), generator.normal(size=(30, 24))])
    items, groups = [f"{n}" for n in range(count + 30)], ["kind"] * count + [""] * 30
    here, query = Shop(vectors, items, groups), unit(vectors[:1] + 0.05)[0]
    found = measured(means(here), query, here.neighbours(query, 3))
    lonely = measured(means(Shop(vectors, items, [""] * len(items))), query, here.neighbours(query, 3))
    assert found.distances[0] < lonely.distances[0] - 0.1
    assert found.distances[0] >= full_search(here, query)[found.items[0]] - ROUNDED


def test_an_item_that_a_filter_hides_is_a_rival_as_far_as_its_average_photo() -> None:
    here = shop(9, items=60, largest=6, noise=0.4, grouped=False)
    for query in queries_of(here, 18)[2::6]:
        neighbours = here.neighbours(query, len(here.items))
        hidden = neighbours[0][0]
        passed = [pair for pair in neighbours if pair[0] != hidden][:20]
        rest = [row for row, item in enumerate(here.items) if item != hidden]
        without = Shop(here.vectors[rest], [here.items[row] for row in rest], [""] * len(rest))
        found, alone = measured(means(here), query, passed), measured(means(without), query, passed)
        assert found.is_short
        assert found.is_first  # of the items that pass
        assert distances_of(found)[alone.items[0]] > alone.distances[0] + 0.01


def test_items_beyond_the_nearest_24_are_no_answers_behind_a_filter_either() -> None:
    """A full search measures the nearest 24 that pass, so an item with a near mean but a far photo is none of them."""
    here = shop(10, items=90, largest=4)
    known = means(here)
    for query in queries_of(here, 12):
        order = list(dict.fromkeys(item for item, _ in here.neighbours(query, len(here.items))))
        passed = [pair for pair in here.neighbours(query, len(here.items)) if pair[0] not in order[:5]]
        found = measured(known, query, passed)
        assert {*found.items} <= set(order[5 : 5 + CANDIDATES])


# items that the file does not know, and odd items


def test_items_that_were_added_count_as_items_with_one_photo_of_no_group() -> None:
    here = shop(11, largest=1, grouped=False)
    query = queries_of(here, 3)[2]
    neighbours = here.neighbours(query, 60)
    first = neighbours[0][0]
    rows = [row for row, item in enumerate(here.items) if item != first]
    before = Shop(here.vectors[rows], [here.items[row] for row in rows], [""] * len(rows))
    found = distances_of(measured(means(before), query, neighbours))
    assert found == pytest.approx(full_search(here, query), abs=1e-4)


def test_added_items_do_not_make_a_short_list_long() -> None:
    """With 20 items in the file, a list with 18 of them and 3 others still lacks two rivals."""
    here = shop(12, items=20, largest=1, grouped=False)
    query = queries_of(here, 3)[2]
    listed_items = here.neighbours(query, 18)
    extra = [(f"new {n}", listed_items[-1][1] - 0.001) for n in range(3)]
    assert measured(means(here), query, listed_items + extra).is_short


def test_an_item_whose_vectors_cancel_out_is_a_rival_without_warnings() -> None:
    here = shop(13, items=30, largest=3)
    opposed = unit(np.random.default_rng(0).normal(size=(1, 24)))
    vectors = np.concatenate([here.vectors, opposed, -opposed])
    both = Shop(vectors, [*here.items, "both", "both"], [*here.groups, "", ""])
    known = means(both)
    assert abs(known.cosines[known.numbers["both"]]) < 1e-6
    for query in [*queries_of(both, 6), opposed[0]]:
        for k in (1, 5, len(both.items)):
            found, full = measured(known, query, both.neighbours(query, k)), full_search(both, query)
            assert all(distance >= full.get(item, 0) - ROUNDED for item, distance in distances_of(found).items())


def test_the_average_of_a_large_item_is_that_of_the_photos_whose_mean_is_kept() -> None:
    """Its nearest photo is at least as near, so an exact list never looks as if a photo was missing."""
    generator = np.random.default_rng(14)
    vectors = unit(np.r_[generator.normal(size=(3 * MOST_PHOTOS, 8)), generator.normal(size=(40, 8))])
    here = Shop(vectors, ["large"] * 3 * MOST_PHOTOS + [f"{n}" for n in range(40)], [""] * len(vectors))
    known = means(here)
    row = known.numbers["large"]
    assert known.means[row] == pytest.approx(mean_photo(vectors[: 3 * MOST_PHOTOS]), abs=1e-3)
    for query in unit(generator.normal(size=(200, 8))):
        nearest = float((vectors[: 3 * MOST_PHOTOS] @ query).max())
        assert nearest >= known.cosines_to(query.astype(np.float64))[row] * known.cosines[row] - 1e-3


def test_means_that_are_kept_are_rounded_to_float16_and_of_ascending_ids() -> None:
    known = means(shop(15, numeric=True))
    assert (known.means == known.means.astype(np.float16)).all()
    assert (np.sort(known.ids) == known.ids).all()
    assert known.largest_group == 3


# scores that fit


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_the_nearest_photo_is_nearer_than_the_average_photo_by_no_more_than_the_spread_of_the_item(
    noise: float,
) -> None:
    here = shop(16, noise=noise, largest=70)
    known = means(here)
    for query in queries_of(here, 30):
        neighbours = listed(here.neighbours(query, 300), METRICS["cosine"])
        nearer, most = gaps(query.astype(np.float64), neighbours, known)
        assert (nearer >= -2e-3).all()
        assert (nearer <= most + 2e-3).all()


def test_gaps_leave_out_items_that_the_file_does_not_know() -> None:
    here = shop(17)
    query = queries_of(here, 5)[4].astype(np.float64)
    neighbours = listed([("new", 0.4), *here.neighbours(query, 5)], METRICS["cosine"])
    assert len(gaps(query, neighbours, means(here))[0]) == len(neighbours.items) - 1


def test_item_distances_need_no_rivals() -> None:
    alone = ItemMeans(np.array(["a"]), unit(np.ones((1, 3))), np.array([5]), np.ones(1, np.float32))
    found = measured(alone, unit(np.array([[1, 1, 0.9]]))[0], [("a", 0.99)])
    plain = METRICS["cosine"].distances([0.99])
    assert found.distances[0] == pytest.approx(
        float(ItemDistance.default().own(plain, np.sqrt(2 - 2 * np.array([0.9989]))).item()), abs=1e-2
    )
    assert (found.is_short, found.is_first) == (False, True)
