"""What is wrong with vectors, items and neighbours: refused where no number could be true, else a warning.

Shapes: n vectors, k neighbours, d = embedding size.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from retrieval.errors import CalibrationError, DataError, InvalidParameter, counted, listed
from retrieval.measuring.fpir import LEAST_ITEMS

from .metric import Metric

UNIT = 1e-2  # largest difference from one of the length of a vector that counts as one
MOST_OF_ALL = 0.5  # share of the vectors that one item may have without a warning
BLOCK = 8192  # vectors that are looked at together
SHOWN = 5  # examples in a warning
LEAST_ORDERED = 4  # neighbours whose order shows which scores are nearer
NO_ITEM = {"", "nan", "none", "null", "nat", "<na>"}  # texts that other programs write where there is no value


def as_array(vectors: ArrayLike, name: str = "vectors") -> NDArray[Any]:
    """Return vectors as an array, also those of a column whose values are vectors; raise InvalidParameter if ragged."""
    try:
        array = vectors if isinstance(vectors, np.ndarray) else np.asarray(vectors)
        if array.dtype == object and array.ndim == 1:
            array = np.stack([np.asarray(row) for row in array]) if len(array) else np.zeros((0, 0))
    except (ValueError, TypeError, RuntimeError) as error:
        raise InvalidParameter(name, "be numbers of equal dimensions", f"{type(vectors).__name__}: {error}") from error
    return array


def checked_vectors(vectors: ArrayLike, name: str = "vectors") -> NDArray[Any]:
    """Return vectors as an array (n, d) of numbers; raise InvalidParameter if they are none."""
    array = as_array(vectors, name)
    if array.ndim != 2 or array.shape[1] < 1 or array.dtype.kind not in "fiu":
        raise InvalidParameter(name, "be numbers (n, d)", f"{array.dtype} {array.shape}")
    return array


def checked_items(items: ArrayLike, count: int, name: str = "items", *, may_be_empty: bool = False) -> NDArray[np.str_]:
    """Return item ids as texts (n,); raise InvalidParameter if there are not as many, or some are missing."""
    try:
        values = items if isinstance(items, np.ndarray) else np.asarray(items, dtype=object)
    except ValueError as error:
        raise InvalidParameter(name, "be ids", str(error)) from error
    if values.ndim != 1 or len(values) != count:
        raise InvalidParameter(name, f"be one id for each of the {count:,} vectors", f"shape {values.shape}")
    given = values.tolist()
    texts = [text_of(value) for value in given]
    missing = [] if may_be_empty else [row for row, text in enumerate(texts) if not text]
    if missing:
        raise InvalidParameter(
            name,
            "name the item of each vector",
            f"no id in {counted(len(missing), 'row')}, first {given[missing[0]]!r} in row {missing[0]:,}",
            remedy="Leave these vectors out",
        )
    return np.array(texts, dtype=str)


def text_of(item: object) -> str:
    """Return an id as text, "" for a missing one. Whole numbers have no decimals: a column with gaps holds floats."""
    if isinstance(item, float | np.floating) and item.is_integer():
        item = int(item)
    text = str(item)
    return "" if text.strip().lower() in NO_ITEM else text


def as_list(neighbours: object) -> list[Any]:
    """Return neighbours as a list; raise InvalidParameter if they are none."""
    if isinstance(neighbours, str | bytes | Mapping) or not isinstance(neighbours, Iterable):
        raise InvalidParameter("neighbours", "be a list of pairs of an item id and a score", neighbours)
    return neighbours if isinstance(neighbours, list) else list(neighbours)


def checked_neighbours(neighbours: Sequence[Any], metric: Metric) -> list[tuple[str, float]]:
    """Return neighbours as pairs of an item id and a score; raise InvalidParameter for others, and for other scores."""
    pairs: list[tuple[str, float]] = []
    for place, each in enumerate(neighbours):
        try:
            item, score = each
            pairs.append((text_of(item), float(score)))
        except (TypeError, ValueError) as error:
            raise InvalidParameter("neighbours", "be pairs of an item id and a score", each) from error
        if not pairs[-1][0]:
            raise InvalidParameter(
                "neighbours", "name the item of each vector", f"{each!r} in place {place}", remedy="Leave it out"
            )
    possible = metric.are_possible([score for _, score in pairs])
    if not possible.all():
        raise InvalidParameter(
            "neighbours",
            "have scores of the {}, from {:g} to {:g}".format(metric.formula, *metric.range),
            pairs[int(possible.argmin())],
            remedy=f"Pass the {metric.noun} as the database returns it, or measure the promise with another metric",
        )
    apart = np.diff(metric.distances([score for _, score in pairs]))
    if len(pairs) >= LEAST_ORDERED and (apart <= 0).all() and (apart < 0).any():
        raise InvalidParameter(
            "neighbours",
            f"have the nearest first, where a {'greater' if metric.is_similarity else 'smaller'} {metric.noun} is "
            f"nearer (metric {metric.name})",
            [pairs[0], pairs[-1]],
            remedy=f"Pass the {metric.noun} as the database returns it, or measure the promise with another metric",
        )
    return pairs


def check_queries(norms: NDArray[np.float64], name: str) -> None:
    """Raise InvalidParameter for queries whose lengths (q,) are not finite, or zero."""
    usable = np.isfinite(norms) & (norms > 0)
    if not usable.all():
        row = int(usable.argmin())
        raise InvalidParameter(name, "be finite and not zero", f"query {row} of length {norms[row]:g}")


def check_lengths(norms: NDArray[np.float64], metric: Metric, ids: Sequence[str]) -> None:
    """Raise DataError for vectors whose lengths (n,) are not finite, zero or, for the metric, not one."""

    def refuse(wrong: NDArray[np.bool_], what: str, remedy: str) -> None:
        if wrong.any():
            rows = np.flatnonzero(wrong)
            named = listed([ids[row] for row in rows[:SHOWN].tolist()])
            raise DataError(f"the collection has {counted(len(rows), 'vector')} {what}, such as {named}", remedy=remedy)

    refuse(~np.isfinite(norms), "with NaN or infinite numbers", "Embed these photos again, or leave them out")
    refuse(norms == 0, "of zeros alone, without a direction", "Embed these photos again, or leave them out")
    if len(norms) and not metric.name.startswith("cosine"):
        refuse(
            np.abs(norms - 1) > UNIT,
            f"not of length one (from {norms.min():.3g} to {norms.max():.3g}), and the "
            f"{metric.formula} of such vectors depends on their lengths",
            "Divide each vector by its length before you store it, or search by cosine",
        )


def check_count(items: NDArray[np.str_], groups: NDArray[np.str_] | None) -> None:
    """Raise CalibrationError if there are too few items to measure a rate."""
    count = len(np.unique(items if groups is None else np.where(groups == "", items, groups)))
    if count < LEAST_ITEMS:
        one, many = ("item", "items") if groups is None else ("item or group", "items and groups")
        raise CalibrationError(
            f"there {'is' if count == 1 else 'are'} {counted(count, one, many)}, and a threshold is "
            f"measured on at least {LEAST_ITEMS}; {int(1 / 0.05)} support an FPIR of 5 %, 99 one of 1 %",
            remedy="Add vectors of other items",
        )


def warnings_of(vectors: NDArray[Any], items: NDArray[np.str_], ids: Sequence[str]) -> list[str]:
    """Return what may be wrong, in sentences: equal vectors, an item that has most vectors, and ids that look alike."""
    return [*_equal_vectors(vectors, items, ids), *_largest_item(items), *_similar_ids(items)]


def _equal_vectors(vectors: NDArray[Any], items: NDArray[np.str_], ids: Sequence[str]) -> list[str]:
    digests = b"".join(blake2b(row.tobytes(), digest_size=8).digest() for row in vectors)
    _, codes, counts = np.unique(np.frombuffer(digests, dtype=np.uint64), return_inverse=True, return_counts=True)
    several = np.flatnonzero(counts[codes] > 1)
    by_code = defaultdict(list)
    for row in several.tolist():
        by_code[int(codes[row])].append(row)
    pairs = [rows for rows in by_code.values() if len({items[row] for row in rows}) > 1]
    if not pairs:
        return []
    first = pairs[0][0]
    second = next(row for row in pairs[0] if items[row] != items[first])
    stand = counted(len(pairs), "vector stands", "vectors stand")
    named = " and ".join(f"{ids[row]} of {str(items[row])!r}" for row in (first, second))
    return [f"{stand} under several items, such as {named}. Copies count neither for nor against a threshold."]


def _largest_item(items: NDArray[np.str_]) -> list[str]:
    names, counts = np.unique(items, return_counts=True)
    share = counts.max() / len(items)
    if share <= MOST_OF_ALL:
        return []
    return [f"The item {str(names[counts.argmax()])!r} has {share:.0%} of all vectors: is it a placeholder?"]


def _similar_ids(items: NDArray[np.str_]) -> list[str]:
    alike = defaultdict(list)
    for item in np.unique(items).tolist():
        alike["".join(unicodedata.normalize("NFKC", item).casefold().split())].append(item)
    pairs = [names for names in alike.values() if len(names) > 1]
    if not pairs:
        return []
    named = listed([" and ".join(map(repr, names[:2])) for names in pairs[:SHOWN]])
    ids = counted(len(pairs), "pair of item ids differs", "pairs of item ids differ")
    return [f"{ids} only in spaces, case or the form of characters: {named}. Each id counts as an item of its own."]
