"""Samples of draws by hand, and the points that they set."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from index.photos import NONE
from index.search.item_distance import RIVALS
from retrieval.measuring.draws import OWN, AllDraws, Draws
from retrieval.measuring.fpir import DrawnDistances
from retrieval.measuring.point import Point
from retrieval.measuring.rule import set_threshold


def sample(items: Sequence[str] | np.ndarray, distances: np.ndarray, **fields: np.ndarray) -> Draws:
    """Return draws of items at some distances from others. By default, they know of no photo and no other draw."""
    names, count = np.array(items, dtype=str), len(distances)
    texts, far = np.full(count, ""), np.full(count, np.inf)
    values: dict[str, Any] = {
        **dict.fromkeys(("ids", "items", "groups"), names),
        **dict.fromkeys(("distances", "plain"), np.asarray(distances, dtype=float)),
        **dict.fromkeys(("nearest", "nearest_items", "duplicates"), texts),
        **dict.fromkeys(("own", "own_plain", "wrong"), far),
        "rivals": np.full((count, RIVALS), NONE),
        "without": np.full((count, 1 + RIVALS), np.inf),
    }
    return Draws(**values | fields)


def draws(
    distances: Sequence[float] | np.ndarray,
    items: Sequence[int] | np.ndarray,
    own: np.ndarray | None = None,
    nearest: np.ndarray | None = None,
) -> Draws:
    """Return draws of numbered items, with the distances to their own items and the numbers of the nearest others."""
    count, other = len(distances), np.asarray(distances, dtype=float)
    apart = np.full(count, np.inf) if own is None else np.asarray(own, dtype=float)
    rivals = np.array([""] * count if nearest is None else [f"i{item}" for item in nearest], dtype=str)
    wrong = np.where(np.isfinite(apart) & (other <= apart), other, np.inf)
    return sample(
        [f"i{item}" for item in items],
        other,
        ids=np.arange(count).astype(str),
        nearest_items=rivals,
        own=apart,
        own_plain=apart,
        wrong=wrong,
    )


def drawn_from(source: Draws) -> DrawnDistances:
    """Return the distances of own draws."""
    return DrawnDistances.of({OWN: source})


def all_draws(sources: Mapping[str, Draws], fitted: Collection[str] = ()) -> AllDraws:
    """Return the draws of all sources, of a model that was fitted on some items."""
    return AllDraws("m", sources, frozenset(fitted))


def set_point(
    sources: Mapping[str, Draws], target_fpir: float, *, items: int, fitted: Collection[str] = (), **options: Any
) -> Point:
    """Return the point that draws by source set."""
    return set_threshold(all_draws(sources, fitted), target_fpir, items=items, **options)
