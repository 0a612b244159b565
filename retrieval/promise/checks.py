"""What is wrong with the vectors of a collection: refused where no number could be true, else a warning.

Shapes: n vectors, d = embedding size.
"""

from __future__ import annotations

import unicodedata
from collections import defaultdict
from collections.abc import Sequence
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
NO_ITEM = {"", "nan", "none", "null", "nat", "<na>"}  # texts that other programs write where there is no value


def checked_vectors(vectors: ArrayLike, name: str = "vectors") -> NDArray[Any]:
    """Return vectors as an array (n, d) of numbers; raise InvalidParameter if they are none."""
    try:
        array = vectors if isinstance(vectors, np.ndarray) else np.asarray(vectors)
    except ValueError as error:
        raise InvalidParameter(name, "have equal dimensions", str(error)) from error
    if array.dtype == object:
        lengths = {np.shape(row) for row in array}
        raise InvalidParameter(name, "have equal dimensions", sorted(lengths)[:SHOWN])
    if array.ndim != 2 or array.shape[1] < 1 or array.dtype.kind not in "fiu":
        raise InvalidParameter(name, "be numbers (n, d)", f"{array.dtype} {array.shape}")
    return array


def checked_items(items: ArrayLike, count: int, name: str = "items", *, may_be_empty: bool = False) -> NDArray[np.str_]:
    """Return item ids as texts (n,); raise InvalidParameter if there are not as many, or some are missing."""
    values = np.asarray(items)
    if values.ndim != 1 or len(values) != count:
        raise InvalidParameter(name, f"be one id for each of the {count:,} vectors", f"shape {values.shape}")
    texts = np.array(["" if value is None else str(value) for value in values.tolist()], dtype=str)
    if not may_be_empty:
        missing = np.flatnonzero([text.strip().lower() in NO_ITEM for text in texts.tolist()])
        if len(missing):
            raise InvalidParameter(
                name,
                "name the item of each vector",
                f"no id in {counted(len(missing), 'row')}, first {texts[missing[0]]!r} in row {missing[0]:,}",
                remedy="Leave these vectors out",
            )
    return texts


def check_lengths(norms: NDArray[np.float64], metric: Metric, ids: Sequence[str]) -> None:
    """Raise DataError for vectors whose lengths (n,) are not finite, zero or, for the metric, not one."""

    def refuse(wrong: NDArray[np.bool_], what: str, remedy: str) -> None:
        if wrong.any():
            rows = np.flatnonzero(wrong)
            named = listed([ids[row] for row in rows[:SHOWN].tolist()])
            raise DataError(f"{counted(len(rows), 'vector')} {what}, such as {named}", remedy=remedy)

    refuse(~np.isfinite(norms), "hold NaN or infinite numbers", "Embed these photos again, or leave them out")
    refuse(norms == 0, "are all zeros, and have no direction", "Embed these photos again, or leave them out")
    if not metric.name.startswith("cosine"):
        refuse(
            np.abs(norms - 1) > UNIT,
            f"are not of length one (they are {norms.min():.3g} to {norms.max():.3g} long), and the "
            f"{metric.formula} of such vectors depends on their lengths",
            "Divide each vector by its length before you store it, or search by cosine",
        )


def check_count(items: NDArray[np.str_], groups: NDArray[np.str_] | None) -> None:
    """Raise CalibrationError if there are too few items to measure a rate."""
    count = len(np.unique(items if groups is None else np.where(groups == "", items, groups)))
    if count < LEAST_ITEMS:
        what = "item" if groups is None else "item or group"
        raise CalibrationError(
            f"there are {counted(count, what, 'items and groups' if groups is not None else '')}, and a threshold is "
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
    other = next(row for row in pairs[0] if items[row] != items[first])
    return [
        f"{counted(len(pairs), 'vector')} stand under several items, such as {ids[first]} of {items[first]!r} and "
        f"{ids[other]} of {items[other]!r}. They count neither for nor against a threshold."
    ]


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
