"""Summary of an explanation, as JSON values and as text."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

from training.evaluation.evaluate import identification_metrics

from .appearance import MEASURES
from .before_after import Before, Comparison
from .causes import CAUSES, Miss
from .item_search import Neighbour
from .outcomes import FOUND, MISIDENTIFIED, MISSED, OUTCOMES, UNMATED, ConfusedPair, WorstQuery
from .run import ExplainedRun

SHOWN = 5  # lines of a list


def to_dict(explained: ExplainedRun) -> dict[str, Any]:
    """Return JSON values with photo_ids and item_ids; undefined rates are null."""
    explanation = explained.explanation
    return {
        "run": explained.name,
        "split": explained.split,
        "protocol": explained.protocol,
        "distance": explained.distance,
        "threshold": explanation.threshold,
        "threshold_from": explained.threshold_from,
        "target_fpir": explained.target_fpir,
        "queries": len(explanation.split.queries),
        "items": explanation.gallery_items,
        "outcomes": {outcome: explanation.outcomes.count(outcome) for outcome in OUTCOMES},
        "rates": {name: _finite(value) for name, value in identification_metrics(explanation.rates).items()},
        "worst": {kind: [_query(explained, query) for query in queries] for kind, queries in explanation.worst.items()},
        "causes": {cause: sum(miss.cause == cause for miss in explained.misses) for cause in CAUSES},
        "misses": [_miss(explained, miss) for miss in explained.misses],
        "searched": searched(explained),
        "confused_pairs": explanation.confused_pairs,
        "confused": [_pair(explained, pair) for pair in explanation.confused],
        "utilities": _utilities(explained),
        "map": {"method": explained.map.method, "photos": len(explained.map.photos)},
        "unreadable": [{"photo_id": photo_id, "reason": reason} for photo_id, reason in explained.unreadable],
        "notes": list(explained.notes),
    }


def render(explained: ExplainedRun) -> str:
    """Return the most important results in a few lines."""
    explanation, names = explained.explanation, explained.names
    outcomes, queries = explanation.outcomes, len(explanation.split.queries)
    lines = [
        f"{queries} searches among {explanation.gallery_items} items ({explained.split}), {explained.distance} "
        f"distance, threshold {explanation.threshold:.4f} from {explained.threshold_from}:",
        f"  {outcomes.count(FOUND)} return their own item first, {outcomes.count(MISIDENTIFIED)} another item, "
        f"{outcomes.count(MISSED)} nothing;",
        f"  {int(outcomes.false_alarm.sum())} would return something if their item were not in the gallery.",
    ]
    if explained.misses:
        causes = Counter(miss.cause for miss in explained.misses)
        told = ", ".join(f"{causes[cause]} {cause}" for cause in CAUSES if causes[cause])
        lines.append(f"Causes of the {len(explained.misses)} misses: {told}.")
    if explanation.confused:
        lines.append(f"Confused items, {explanation.confused_pairs} pairs:")
        lines += [
            f"  {' = '.join(names[item] for item in pair.items)}: {pair.times} of {pair.queries} searches, "
            f"mean distance {pair.distance:.3f}"
            for pair in explanation.confused[:SHOWN]
        ]
    if explanation.utilities is not None:
        lines.append("Items with the lowest utility over the calibration range:")
        lines += [f"  {item.utility:.3f}  {names[item.item]}" for item in explanation.utilities.items[:SHOWN]]
    if explained.unreadable:
        lines.append(f"Unreadable photos, left out: {len(explained.unreadable)}:")
        lines += [f"  {photo_id}: {reason}" for photo_id, reason in explained.unreadable[:SHOWN]]
    lines += [f"Note: {note}." for note in explained.notes]
    return "\n".join(lines)


def _query(explained: ExplainedRun, query: WorstQuery) -> dict[str, Any]:
    return {
        "photo_id": explained.photos[query.photo].photo_id,
        "item_id": explained.names[query.item],
        "outcome": query.outcome,
        "own": None if query.own is None else _neighbour(explained, query.own),
        "neighbours": [_neighbour(explained, neighbour) for neighbour in query.neighbours],
    }


def searched(explained: ExplainedRun) -> list[str]:
    """Return the photo_ids of the queries whose item is in the gallery."""
    queries, kind = explained.explanation.split.queries, explained.explanation.outcomes.kind
    return [explained.photos[i].photo_id for i in queries[kind != OUTCOMES.index(UNMATED)]]


def compared(explained: ExplainedRun, before: Before) -> Comparison:
    """Compare the misses with those of another explanation."""
    causes = {explained.photos[miss.photo].photo_id: miss.cause for miss in explained.misses}
    return Comparison.of(before, searched(explained), causes)


def _miss(explained: ExplainedRun, miss: Miss) -> dict[str, Any]:
    return {
        "photo_id": explained.photos[miss.photo].photo_id,
        "item_id": explained.names[miss.item],
        "outcome": miss.outcome,
        "cause": miss.cause,
        "own": miss.own,
        "other": _finite(miss.other),
        "other_item_id": explained.names[miss.rival] if miss.rival >= 0 else None,
        **dict(zip(MEASURES, miss.deviations, strict=True)),
        "crop": miss.crop,
    }


def _neighbour(explained: ExplainedRun, neighbour: Neighbour) -> dict[str, Any]:
    return {
        "item_id": explained.names[neighbour.item],
        "photo_id": explained.photos[neighbour.photo].photo_id,
        "distance": neighbour.distance,
        "match": neighbour.accepted,
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
                "query": explained.photos[example.query].photo_id,
                "photo": explained.photos[example.photo].photo_id,
                "distance": example.distance,
            }
            for example in pair.examples
        ],
    }


def _utilities(explained: ExplainedRun) -> dict[str, Any] | None:
    utilities = explained.explanation.utilities
    if utilities is None:
        return None
    return {
        "d_min": utilities.d_min,
        "d_max": utilities.d_max,
        "OPIS": utilities.opis,
        "items": {explained.names[item.item]: item.utility for item in utilities.items},
    }


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None
