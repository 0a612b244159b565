"""The table that people read: what is wrong with the vectors, and which score or distance keeps which rate."""

from __future__ import annotations

from collections.abc import Iterator
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from typing import Any

from retrieval.errors import counted, listed
from retrieval.measuring.labelled import query_shift
from retrieval.measuring.twins import false_matches
from retrieval.text import printable, text_table

from .contents import Contents
from .levels import Level
from .metric import Metric

DIGITS, MOST_DIGITS = 4, 12  # of a threshold on a score
STRICTER = 0.02  # largest share by which the plain distance of a rounded threshold is smaller
SHOWN = 5  # pairs of twins


def describe(promise: Contents) -> str:
    """Return the warnings and the table of a promise."""
    return "\n".join(_lines(promise))


def threshold_text(threshold: float, metric: Metric) -> str:
    """Return a threshold on a score with DIGITS digits, rounded so that it is not laxer.

    Near the score of equal vectors it has more digits, so that it is not much stricter either.
    """
    exact, rounding = Decimal(threshold), ROUND_CEILING if metric.is_similarity else ROUND_FLOOR
    for digits in range(DIGITS, MOST_DIGITS + 1):
        rounded = exact.quantize(Decimal(1).scaleb(-digits), rounding=rounding) + 0  # + 0: no -0.0000
        if metric.distances(float(rounded)) >= (1 - STRICTER) * metric.distances(threshold):
            break
    return f"{rounded:f}"


def _lines(promise: Contents) -> Iterator[str]:
    yield from (f"Warning: {printable(warning)}" for warning in promise.warnings)
    kind = "labelled photos of users" if promise.known.startswith("labelled") else "photos like yours"
    yield (
        f"{promise.vectors:,} vectors of {promise.items:,} items, {promise.metric.formula}. "
        f"Of strangers like your items, in {kind}:"
    )
    head, rows = table_rows(promise)
    lines = text_table(head, [row["cells"] for row in rows])
    yield from (f"  {line}" for place, line in enumerate(lines) if place != 1)  # without dashes
    yield (
        f"The {promise.metric.noun} holds up to about {promise.holds_for_items:,} items (twice as many: about twice "
        "the strangers); decide() holds longer. Measure again after that."
    )
    if promise.twins:
        pairs = counted(len(promise.twins), "pair of items looks", "pairs of items look")
        named = listed([" and ".join(map(printable, pair)) for pair in promise.twins[:SHOWN]])
        cost = "" if promise.twins_cost is None else f" ({100 * promise.twins_cost:.1f} points of what is found)"
        yield f"{pairs} like one item under two ids{cost}: {named}."


def table_rows(promise: Contents) -> tuple[tuple[str, ...], list[dict[str, Any]]]:
    """Return the head and the rows of the table: the cells of each, and whether it is chosen."""
    metric = promise.metric
    head = ("are called somebody", f"use {metric.noun} {metric.sign}", "known found", "by decide()", "")
    rows = [
        {"cells": _cells(promise, level), "chosen": level.target_fpir == promise.target_fpir}
        for level in promise.levels
    ]
    return head, rows


def families_lines(promise: Contents, most: int) -> list[str]:
    """Return the families of similar items with most false matches of decide(), or of the score without a threshold."""
    level, drawn = promise.level, promise.drawn
    if drawn is None or level.item_distance is None:
        return []
    shift = query_shift(drawn.by_distance.sources).applied
    families, _ = false_matches(drawn.own, level.item_distance.threshold - shift, most=most)
    return [
        f"{listed(list(map(printable, members[:SHOWN])))}{' and others' if len(members) > SHOWN else ''}: "
        f"{share:.0%} of the false matches"
        for members, share in families
    ]


def _cells(promise: Contents, level: Level) -> tuple[str, ...]:
    score, distance = level.score, level.item_distance
    uppers = [limit.fpir_upper for limit in (score, distance) if limit is not None]
    target = target_text(level.target_fpir)
    if not uppers:
        needs = f"needs {level.items_needed:,} items" if level.items_needed else "no threshold finds anything"
        return f"{target}  {needs}", "-", "-", "-", ""
    return (
        f"{target}  (at most {percent(max(uppers))})",
        "-" if score is None else threshold_text(score.threshold, promise.metric),
        *("-" if limit is None or limit.tpir is None else percent(limit.tpir) for limit in (score, distance)),
        "<- decide() uses this target" if level.target_fpir == promise.target_fpir else "",
    )


def percent(share: float) -> str:
    """Return a rate in percent, with two digits below 1 %."""
    return f"{100 * share:.1f} %" if share >= 0.01 or not share else f"{100 * share:.2g} %"


def target_text(target_fpir: float) -> str:
    """Return a target in percent, with no more digits than it has."""
    return f"{100 * target_fpir:.6g} %"
