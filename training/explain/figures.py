"""What `retrieval explain` found, as plain JSON values and as lines for people."""

from __future__ import annotations

import math
from typing import Any

from training.evaluation.evaluate import decision_figures

from .item_search import Neighbour
from .outcomes import FOUND, MISIDENTIFIED, MISSED, OUTCOMES, ConfusedPair, WorstQuery
from .run import ExplainedRun

SHOWN = 5  # lines of a list


def figures(explained: ExplainedRun) -> dict[str, Any]:
    """Return it with photo_ids and item_ids in place of positions and labels; null where a rate means nothing."""
    found = explained.found
    return {
        "run": explained.name,
        "scene": explained.scene,
        "protocol": explained.protocol,
        "distance": explained.distance,
        "threshold": found.threshold,
        "threshold_from": explained.threshold_from,
        "target_fpir": explained.target_fpir,
        "queries": len(found.scene.queries),
        "items": found.gallery_items,
        "outcomes": {outcome: found.outcomes.count(outcome) for outcome in OUTCOMES},
        "rates": {name: _finite(value) for name, value in decision_figures(found.rates).items()},
        "worst": {kind: [_query(explained, one) for one in queries] for kind, queries in found.worst.items()},
        "confused_pairs": found.confused_pairs,
        "confused": [_pair(explained, pair) for pair in found.confused],
        "utilities": _utilities(explained),
        "map": {"method": explained.map.method, "photos": len(explained.map.photos)},
        "unreadable": [{"photo_id": photo_id, "reason": reason} for photo_id, reason in explained.unreadable],
        "notes": list(explained.notes),
    }


def render(explained: ExplainedRun) -> str:
    """Return the most telling of it in a few lines."""
    found, names = explained.found, explained.names
    outcomes, queries = found.outcomes, len(found.scene.queries)
    lines = [
        f"{queries} searches among {found.gallery_items} items ({explained.scene}), {explained.distance} distance, "
        f"threshold {found.threshold:.4f} from {explained.threshold_from}:",
        f"  {outcomes.count(FOUND)} find their own item first, {outcomes.count(MISIDENTIFIED)} are answered with "
        f"another one, {outcomes.count(MISSED)} miss it;",
        f"  {int(outcomes.false_alarm.sum())} would return something if their item were unknown.",
    ]
    if found.confused:
        lines.append(f"Items taken for each other, {found.confused_pairs} pairs:")
        lines += [
            f"  {' = '.join(names[item] for item in pair.items)}: {pair.times} of {pair.queries} searches, "
            f"mean distance {pair.distance:.3f}"
            for pair in found.confused[:SHOWN]
        ]
    if found.utilities is not None:
        lines.append("Items served worst, by utility over the calibration range:")
        lines += [f"  {one.utility:.3f}  {names[one.item]}" for one in found.utilities.items[:SHOWN]]
    if explained.unreadable:
        lines.append(f"Left out, because they cannot be read: {len(explained.unreadable)} photos:")
        lines += [f"  {photo_id}: {reason}" for photo_id, reason in explained.unreadable[:SHOWN]]
    lines += [f"Note: {note}." for note in explained.notes]
    return "\n".join(lines)


def _query(explained: ExplainedRun, query: WorstQuery) -> dict[str, Any]:
    return {
        "photo_id": explained.photos[query.photo].photo_id,
        "item_id": explained.names[query.item],
        "outcome": query.outcome,
        "own": None if query.own is None else _neighbour(explained, query.own),
        "neighbours": [_neighbour(explained, one) for one in query.neighbours],
    }


def _neighbour(explained: ExplainedRun, one: Neighbour) -> dict[str, Any]:
    return {
        "item_id": explained.names[one.item],
        "photo_id": explained.photos[one.photo].photo_id,
        "distance": one.distance,
        "match": one.accepted,
    }


def _pair(explained: ExplainedRun, pair: ConfusedPair) -> dict[str, Any]:
    return {
        "item_ids": [explained.names[item] for item in pair.items],
        "times": pair.times,
        "first": pair.first,
        "queries": pair.queries,
        "mean_distance": pair.distance,
        "examples": [
            {
                "query": explained.photos[one.query].photo_id,
                "photo": explained.photos[one.photo].photo_id,
                "distance": one.distance,
            }
            for one in pair.examples
        ],
    }


def _utilities(explained: ExplainedRun) -> dict[str, Any] | None:
    utilities = explained.found.utilities
    if utilities is None:
        return None
    return {
        "d_min": utilities.d_min,
        "d_max": utilities.d_max,
        "OPIS": utilities.opis,
        "items": {explained.names[one.item]: one.utility for one in utilities.items},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
