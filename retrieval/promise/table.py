"""The table that people read: what is wrong with the vectors, and which score or distance keeps which rate."""

from __future__ import annotations

import math
from collections.abc import Iterator

from retrieval.errors import counted, listed
from retrieval.text import printable, text_table

from .contents import Contents
from .levels import Level
from .metric import Metric

DIGITS = 4  # of a threshold on a score
SHOWN = 5  # pairs of twins


def describe(promise: Contents) -> str:
    """Return the warnings and the table of a promise."""
    return "\n".join(_lines(promise))


def threshold_text(threshold: float, metric: Metric) -> str:
    """Return a threshold on a score with DIGITS digits, rounded so that it is not laxer."""
    rounded = math.ceil if metric.is_similarity else math.floor
    return f"{rounded(threshold * 10**DIGITS) / 10**DIGITS:.{DIGITS}f}"


def _lines(promise: Contents) -> Iterator[str]:
    yield from (f"Warning: {printable(warning)}" for warning in promise.warnings)
    kind = "labelled photos of users" if promise.known.startswith("labelled") else "photos like yours"
    yield (
        f"{promise.vectors:,} vectors of {promise.items:,} items, {promise.metric.formula}. "
        f"Of strangers like your items, in {kind}:"
    )
    head = (
        "  are called somebody",
        f"use {promise.metric.noun} {promise.metric.sign}",
        "known found",
        "by decide()",
        "",
    )
    lines = text_table(head, [_row(promise, level) for level in promise.levels])
    yield from (line for place, line in enumerate(lines) if place != 1)  # without dashes
    yield (
        f"The {promise.metric.noun} holds up to about {promise.holds_for_items:,} items (twice as many: about twice "
        "the strangers); decide() holds longer. Measure again after that."
    )
    if promise.twins.pairs:
        pairs = counted(len(promise.twins.pairs), "pair of items looks", "pairs of items look")
        named = listed([" and ".join(map(printable, pair)) for pair in promise.twins.pairs[:SHOWN]])
        cost = "" if promise.twins.cost is None else f" ({100 * promise.twins.cost:.1f} points of what is found)"
        yield f"{pairs} like one item under two ids{cost}: {named}."


def _row(promise: Contents, level: Level) -> tuple[str, ...]:
    score, distance = level.score, level.item_distance
    uppers = [limit.fpir_upper for limit in (score, distance) if limit is not None]
    target = f"  {_percent(level.target_fpir)}"
    if not uppers:
        needs = f"needs {level.items_needed:,} items" if level.items_needed else "no threshold finds anything"
        return f"{target}  {needs}", "-", "-", "-", ""
    return (
        f"{target}  (at most {_percent(max(uppers))})",
        "-" if score is None else threshold_text(score.threshold, promise.metric),
        *("-" if limit is None or limit.tpir is None else _percent(limit.tpir) for limit in (score, distance)),
        "<- decide() uses this target" if level.target_fpir == promise.target_fpir else "",
    )


def _percent(share: float) -> str:
    """Return a share in percent, with two digits or more."""
    return f"{100 * share:.1f} %" if share >= 0.0995 or share * 1000 % 10 else f"{100 * share:g} %"
