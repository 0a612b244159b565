"""Table of the losses, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from retrieval.text import text_table

from .registry import COMPARED, COMPARISON_NOTE, LOSSES, check_name, has_comparison_losses, loss_arguments


def describe(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a row for each loss, or for `names`; raise InvalidParameter for an unknown name."""
    for name in names:
        check_name(name)
    return [
        {
            "name": name,
            "summary": (entry.loss.__doc__ or "").strip().splitlines()[0],
            "paper": entry.paper,
            "cost": f"O({entry.cost})",
            "batches": "at least 2 photos per item" if entry.needs_balanced_batches else "any",
            "learns": "a vector per item" if entry.has_proxies else "nothing",
            "arguments": loss_arguments(name),
            "compared_only": name in COMPARED,
        }
        for name, entry in LOSSES.items()
        if not names or name in names
    ]


def render_losses(rows: Sequence[Mapping[str, Any]], *, summaries: bool = False) -> str:
    """Return the rows as a text table, with the defaults of each loss on the line below it.

    Losses that exist only for comparison come last, under a heading.
    """
    head = {"name": "loss", "paper": "paper", "cost": "cost of a step", "batches": "batches", "learns": "learns"}
    compared = [row for row in rows if row["compared_only"]]
    rows = [*(row for row in rows if not row["compared_only"]), *compared]
    title, rule, *described = text_table(
        [*head.values()], [[str(row[key]) for key in head] for row in rows], left=len(head)
    )
    lines = [title, rule]
    for row, line in zip(rows, described, strict=True):
        if compared and row is compared[0]:
            lines += ["", "for comparison:"]
        lines.append(line)
        if summaries:
            lines.append(f"    {row['summary']}")
        lines.append("    " + " ".join(f"{key}={_plain(value)}" for key, value in row["arguments"].items()))
    if not has_comparison_losses():
        lines += ["", f"{COMPARISON_NOTE}."]
    return "\n".join(lines)


def _plain(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return "[" + ",".join(map(str, value)) + "]" if isinstance(value, tuple) else str(value)
