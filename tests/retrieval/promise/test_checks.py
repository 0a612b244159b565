"""What is wrong with vectors and items is said before any number, by name, with what to do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from retrieval.errors import CalibrationError, DataError, InvalidParameter
from retrieval.promise.checks import checked_items, text_of
from retrieval.promise.promise import Promise

from .shops import Shop, shop, unit


@pytest.fixture(scope="module")
def here() -> Shop:
    return shop(61, items=40, largest=3, grouped=False)


def warnings_of(here: Shop, items: list[str] | None = None, vectors: np.ndarray | None = None) -> tuple[str, ...]:
    return Promise.measure(here.vectors if vectors is None else vectors, items or here.items).warnings


# vectors


@pytest.mark.parametrize(
    ("value", "what"),
    [(np.nan, "with NaN or infinite numbers"), (np.inf, "with NaN or infinite"), (0, "of zeros alone, without a dir")],
)
def test_vectors_without_a_direction_are_refused_by_id(here: Shop, value: float, what: str) -> None:
    vectors = here.vectors.copy()
    vectors[[3, 7]] = value
    message = rf"^the collection has 2 vectors {what}.*, such as 3, 7\. Embed these photos again, or leave"
    with pytest.raises(DataError, match=message):
        Promise.measure(vectors, here.items)
    ids = [f"photo {row}" for row in range(len(vectors))]
    with pytest.raises(DataError, match="such as photo 3, photo 7"):
        Promise.measure(vectors, here.items, photo_ids=ids)


@pytest.mark.parametrize("metric", ["ip", "negative_ip", "l2", "squared_l2"])
def test_vectors_that_are_not_of_length_one_are_refused_where_scores_depend_on_it(here: Shop, metric: str) -> None:
    vectors = here.vectors * np.linspace(0.5, 3, len(here.items), dtype=np.float32)[:, None]
    with pytest.raises(DataError, match=r"not of length one \(from 0\.5 to 3\).*Divide each vector"):
        Promise.measure(vectors, here.items, metric=metric)
    assert Promise.measure(vectors, here.items, metric="cosine").levels
    assert Promise.measure(here.vectors * 1.005, here.items, metric=metric).levels  # rounded numbers


@pytest.mark.parametrize(
    ("vectors", "message"),
    [
        ([[1.0, 0.0], [1.0]], "vectors must be numbers of equal dimensions"),
        ([None, [1.0]], "vectors must be numbers of equal dimensions|vectors must be numbers"),
        (np.array([np.ones(2), np.ones(3)], dtype=object), "vectors must be numbers of equal dimensions"),
        (np.ones(3), r"vectors must be numbers \(n, d\), got 'float64 \(3,\)'"),
        (np.ones((2, 0)), r"vectors must be numbers \(n, d\)"),
        (np.ones((2, 2, 2)), r"vectors must be numbers \(n, d\)"),
        (np.full((2, 2), "1"), r"vectors must be numbers \(n, d\)"),
        (np.ones((2, 2), bool), r"vectors must be numbers \(n, d\)"),
        (np.ones((2, 2), complex), r"vectors must be numbers \(n, d\)"),
        (None, r"vectors must be numbers \(n, d\)"),
        (iter([]), r"vectors must be numbers \(n, d\)"),
        ("vectors", r"vectors must be numbers \(n, d\)"),
    ],
)
def test_what_is_no_table_of_numbers_is_refused_by_name(vectors: Any, message: str) -> None:
    with pytest.raises(InvalidParameter, match=message):
        Promise.measure(vectors, ["a", "b"])


def test_numbers_beyond_a_float_are_refused_without_warnings(here: Shop) -> None:
    with pytest.raises(DataError, match="with NaN or infinite numbers"):
        Promise.measure(here.vectors.astype(np.float64) * 1e300, here.items)
    with pytest.raises(DataError, match="zeros alone"):
        Promise.measure(here.vectors.astype(np.float64) * 1e-300, here.items)


# items


@pytest.mark.parametrize("missing", [None, "", " ", np.nan, "None", "nan", "NULL", "<NA>", np.datetime64("NaT")])
def test_vectors_without_an_item_are_refused_with_their_row(here: Shop, missing: Any) -> None:
    items = [*here.items[:5], missing, *here.items[6:9], missing, *here.items[10:]]
    with pytest.raises(
        InvalidParameter, match=r"items must name the item of each vector, got .*no id in 2 rows.*row 5"
    ):
        Promise.measure(here.vectors, items)


def test_items_of_another_shape_are_refused(here: Shop) -> None:
    for items in (here.items[1:], [here.items], "items", iter(here.items), None, {1: 2}, [[1], [1, 2]]):
        with pytest.raises(InvalidParameter, match="items must be"):
            Promise.measure(here.vectors, items)  # type: ignore[arg-type]
    with pytest.raises(InvalidParameter, match=r"groups must be one id for each of the"):
        Promise.measure(here.vectors, here.items, groups=["a"])
    for ids in (["a"], ["a"] * len(here.items)):
        with pytest.raises(InvalidParameter, match=r"photo_ids must"):
            Promise.measure(here.vectors, here.items, photo_ids=ids)


def test_ids_are_texts_and_whole_numbers_have_no_decimals() -> None:
    ids: list[Any] = [7, 7.0, np.int64(7), np.float32(7), "7"]
    assert [*map(text_of, ids)] == ["7"] * 5
    assert [*map(text_of, [7.5, "7.0", "07", True])] == ["7.5", "7.0", "07", "True"]
    forms: list[Any] = [np.arange(3), np.arange(3.0), ["0", 1, 2.0], np.array(["0", "1", "2"])]
    for items in [*forms, np.array(["0", 1, 2.0], object)]:
        assert checked_items(items, 3).tolist() == ["0", "1", "2"]


def test_missing_groups_are_no_group(here: Shop) -> None:
    """A column with gaps must not make one group of all items without a group."""
    plain = Promise.measure(here.vectors, here.items)
    gaps: list[Any] = [None, "", np.nan, "<NA>"]
    for missing in gaps:
        assert Promise.measure(here.vectors, here.items, groups=[missing] * len(here.items)).levels == plain.levels
    with pytest.raises(CalibrationError, match="there is 1 item or group, "):
        Promise.measure(here.vectors, here.items, groups=["all"] * len(here.items))


def test_fewer_than_20_items_are_refused_with_what_is_needed() -> None:
    vectors = unit(np.random.default_rng(0).normal(size=(57, 8)))
    with pytest.raises(CalibrationError, match=r"19 items.*at least 20; .* an FPIR of 5 %, 99 one of 1 %. Add vectors"):
        Promise.measure(vectors, np.arange(57) % 19)
    groups = ["pair" if item < 2 else "" for item in range(20)]
    with pytest.raises(CalibrationError, match="there are 19 items and groups"):
        Promise.measure(vectors[:40], np.arange(40) % 20, groups=groups * 2)


# warnings


def test_clean_vectors_have_no_warnings(here: Shop) -> None:
    assert warnings_of(here) == ()


def test_equal_vectors_of_several_items_are_named_with_ids_and_items(here: Shop) -> None:
    vectors = here.vectors.copy()
    second = next(row for row, item in enumerate(here.items) if item != here.items[0])
    vectors[second] = vectors[0]
    (warning,) = warnings_of(here, vectors=vectors)
    assert warning.startswith(
        f"1 vector stands under several items, such as 0 of {here.items[0]!r} and {second} of {here.items[second]!r}. "
    )
    vectors[5:9] = vectors[9]
    assert warnings_of(here, vectors=vectors)[0].startswith("2 vectors stand under several items")
    own = [row for row, item in enumerate(here.items) if item == here.items[1]]
    same = here.vectors.copy()
    same[own] = same[own[0]]
    assert warnings_of(here, vectors=same) == ()  # copies of one item


def test_an_item_with_most_vectors_is_named(here: Shop) -> None:
    generator = np.random.default_rng(0)
    vectors = np.concatenate([here.vectors, unit(generator.normal(size=(len(here.items) + 1, 24)))])
    items = [*here.items, *["no photo"] * (len(here.items) + 1)]
    (warning,) = warnings_of(here, items, vectors)
    assert warning.startswith("The item 'no photo' has 5")
    assert warning.endswith("% of all vectors: is it a placeholder?")


@pytest.mark.parametrize(
    "change",
    [
        lambda item: f"{item} ",
        lambda item: f"\u00a0{item}",
        str.upper,
        lambda item: item.replace("ä", "a\u0308"),
        lambda item: item.replace("1", "\uff11"),  # of full width
    ],
)
def test_ids_that_look_alike_are_named(here: Shop, change: Callable[[str], str]) -> None:
    names = {item: f"ä{number}1" for number, item in enumerate(dict.fromkeys(here.items))}
    items = [names[item] for item in here.items]
    assert warnings_of(here, items) == ()
    row = max(place for place, item in enumerate(items) if items.count(item) > 1)
    kept = items[row]
    items[row] = change(items[row])
    (warning,) = warnings_of(here, items)
    assert warning.startswith("1 pair of item ids differs only in spaces, case or the form of characters: ")
    assert repr(items[row]) in warning
    assert repr(kept) in warning
