"""`retrieval losses`: the table of losses, as data and as text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .registry import COMPARED, COMPARISON_NOTE, LOSSES, check_name, has_comparison_losses, loss_arguments


def describe(names: Sequence[str] = ()) -> list[dict[str, Any]]:
    """Return a row for each loss, or for those named; an unknown name is an error that lists the valid ones."""
    for name in names:
        check_name(name)
    return [
        {
            "name": name,
            "summary": (entry.loss.__doc__ or "").strip().splitlines()[0],
            "paper": entry.paper,
            "cost": f"O({entry.cost})",
            "batches": "2 photos an item or more" if entry.needs_balanced_batches else "any",
            "learns": "a vector an item" if entry.has_proxies else "nothing",
            "arguments": loss_arguments(name),
            "compared_only": name in COMPARED,
        }
        for name, entry in LOSSES.items()
        if not names or name in names
    ]


def render_losses(rows: Sequence[Mapping[str, Any]], *, summaries: bool = False) -> str:
    """Return the rows as an aligned table, the defaults of a loss on the line below it.

    Losses that only the papers' tables compare with come last, below a line that says so.
    """
    head = {"name": "loss", "paper": "paper", "cost": "cost of a step", "batches": "batches", "learns": "learns"}
    widths = {key: max(len(str(row[key])) for row in [head, *rows]) for key in head}

    def line(row: Mapping[str, Any]) -> str:
        return "  ".join(str(row[key]).ljust(width) for key, width in widths.items()).rstrip()

    lines = [line(head), "  ".join("-" * width for width in widths.values())]
    compared = [row for row in rows if row["compared_only"]]
    for row in [*(row for row in rows if not row["compared_only"]), *compared]:
        if compared and row is compared[0]:
            lines += ["", "compared with by the papers:"]
        lines.append(line(row))
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
