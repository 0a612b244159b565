"""Exact search of a Milvus collection: Milvus proposes candidates, and distances are computed from their vectors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.distance import DistanceForm, Floats, squared_distance
from index.snapshot import FIRST_FETCH

from .collection import Collection

MOST = 16_384  # photos that one search returns at most
SLACK = 1e-5  # float32 error of a cosine, in addition to the error due to the dimension
SPARSEST = -1.0  # lower bound of every density, which is a mean of cosines


def nearest_items(
    collection: Collection,
    vectors: NDArray[np.float32],
    k: int,
    condition: str,
    distance_form: DistanceForm,
    *,
    within: float | None = None,
) -> list[list[tuple[dict[str, Any], float]]]:
    """Return fields and distance of the nearest photo of each of the k nearest items, for unit vectors (n, d).

    Candidates are fetched until no other photo can be nearer, or until Milvus returns no more of them.
    """
    answers: list[list[tuple[dict[str, Any], float]]] = [[] for _ in vectors]
    own = distance_form.densities(vectors)
    waiting, fetch = list(range(len(vectors))), FIRST_FETCH + 4 * k
    while waiting:
        fetch = min(fetch, MOST)
        again = []
        for query, hits in zip(waiting, collection.nearest(vectors[waiting], fetch, condition), strict=True):
            distances, limit = _measured(hits, vectors[query], float(own[query]), fetch, distance_form)
            best = _by_item(hits, distances, k, limit)
            answers[query] = best
            enough = len(best) == k or limit == np.inf or fetch == MOST
            if not enough and not (best and within is not None and limit > within):
                again.append(query)
        waiting, fetch = again, 4 * fetch
    return answers


def _measured(
    hits: Sequence[Any], vector: NDArray[np.float32], own: float, fetch: int, distance_form: DistanceForm
) -> tuple[Floats, float]:
    """Return the distances of hits, and a lower bound for the distance of any other photo."""
    if not hits:
        return np.zeros(0), np.inf
    vectors = np.array([hit["entity"]["vector"] for hit in hits], dtype=np.float32)
    squared = squared_distance(vector[None], vectors)
    distances = distance_form.transform(squared, own, distance_form.densities(vectors))
    if len(hits) < fetch:
        return distances, np.inf
    cosine = float(hits[-1]["distance"]) + 2 * (SLACK + len(vector) * 2.0**-24)
    return distances, float(distance_form.transform(np.array([max(0.0, 2 - 2 * cosine)]), own, SPARSEST)[0])


def _by_item(hits: Sequence[Any], distances: Floats, k: int, limit: float) -> list[tuple[dict[str, Any], float]]:
    """Return the nearest photo of each of the k nearest items whose distance is below the limit."""
    best: dict[str, tuple[dict[str, Any], float]] = {}
    for i in sorted(range(len(hits)), key=lambda i: (distances[i], hits[i]["entity"]["photo_id"])):
        entity = hits[i]["entity"]
        if distances[i] >= limit or len(best) == k:
            break
        best.setdefault(entity["item_id"], (entity, float(distances[i])))
    return list(best.values())
