"""What is recorded of a gallery, in four layers that change for different reasons.

answers   the nearest items and distances of each query, and decisions by a given threshold: no draws take part
samples   which photos are drawn
draws     what is measured of each drawn photo, by its id, whatever the sample and its order
points    thresholds with their evidence, and answers by them: decisions, p-values, items for review
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval import Retriever
from retrieval.search.result import SearchResult

from . import adapter
from .shops import Query, Shop

TOP = 3
SHOWN = 3  # drawn photos of each source whose values are recorded one by one
Record = dict[str, Any]


def ask(retriever: Retriever, query: Query, **options: Any) -> list[SearchResult]:
    """Return the answers to a query: one, or one for each box."""
    options = {**query.options, **options}
    if len(query.images) > 1:
        return [retriever.search_photos(query.images, top_k=TOP)]
    if "boxes" in options:
        options.pop("explain", None)
        return retriever.search_boxes(query.images[0], top_k=TOP, **options)
    return [retriever.search(query.images[0], top_k=TOP, **options)]


def answers(shop: Shop) -> Record:
    """Return the nearest items of each query, what their distances are made of, and decisions by a given threshold."""
    with Retriever.open(shop.bare, shop.gallery) as bare, Retriever.open(shop.given, shop.gallery) as given:
        return {
            query.name: [
                _ranked(ask(bare, query, explain=True)),
                [[a.decision, a.threshold, *(match.item_id for match in a.matches)] for a in ask(given, query)],
            ]
            for query in shop.queries
        }


def _ranked(found: list[SearchResult]) -> list[Any]:
    told: list[Any] = []
    for answer in found:
        ranked = [[match.item_id, match.photo_id, match.distance] for match in answer.ranked]
        evidence = () if answer.explanation is None else answer.explanation.items
        made_of = [[each.photo_distance, each.mean_distance, each.inliers] for each in evidence[:1]]
        told.append([*([list(answer.box)] if answer.box else []), *ranked, *made_of])
    return told


def samples(shop: Shop) -> Record:
    """Return the number of drawn photos of each source, and a hash of their ids in order; the same of fitted items."""
    sources, fitted = adapter.kept_draws(shop.gallery)
    told = {source: [len(draws["ids"]), _hash(draws["ids"])] for source, draws in sorted(sources.items())}
    return {**told, "fitted items": [len(fitted), _hash(np.array(fitted, str))]}


def draws(shop: Shop) -> Record:
    """Return a hash of each field of the draws of each source, ordered by photo id, and the values of some photos.

    These are chosen by a hash of their ids, so that they stay where another sample draws them too.
    """
    sources, _ = adapter.kept_draws(shop.gallery)
    told: Record = {}
    for source, arrays in sorted(sources.items()):
        ids = arrays["ids"].tolist()
        assert len(set(ids)) == len(ids)
        order = sorted(range(len(ids)), key=ids.__getitem__)
        told[f"{source}: hashes"] = {name: _hash(values[order]) for name, values in sorted(arrays.items())}
        for row in sorted(order, key=lambda row: _hash(ids[row]))[:SHOWN]:
            values = {name: arrays[name][row].tolist() for name in sorted(arrays) if name != "ids"}
            told[f"{source}: {ids[row]}"] = values
    return told


def points(shop: Shop) -> Record:
    """Return the points that commands told, and the answers to each query by the newest one."""
    told: Record = dict(shop.points)
    with Retriever.open(shop.bundle, shop.gallery) as retriever:
        for query in shop.queries:
            told[query.name] = [_decided(answer) for answer in ask(retriever, query)]
    return told


def _decided(answer: SearchResult) -> Record:
    return {
        "decision": [answer.decision, answer.reason, answer.threshold_status, answer.p_value_without_filter],
        "threshold": answer.threshold,
        "nearest": None if answer.nearest is None else [answer.nearest.item_id, answer.nearest.p_value],
        "matches": [[match.item_id, match.distance, match.p_value] for match in answer.matches],
        "review": [[match.item_id, match.distance, match.p_value] for match in answer.review],
    }


def _hash(values: NDArray[Any] | str) -> str:
    """Return a hash of values to the last bit, whatever their representation in memory."""
    text = json.dumps(values if isinstance(values, str) else values.tolist())
    return hashlib.sha256(text.encode()).hexdigest()[:16]


LAYERS: dict[str, Callable[[Shop], Record]] = {layer.__name__: layer for layer in (answers, samples, draws, points)}
