"""Generator of docs/papers.md: paper item, command, measured value, or the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from research.markdown import markdown_table

from .configuration import DRAWN, Configuration
from .effort import estimated_time
from .listing import PAPERS
from .measured import measured_values

HEAD = Path(__file__).with_name("head.md")


def render_page() -> str:
    """Return the page."""
    lines, measured = [HEAD.read_text(encoding="utf-8")], measured_values()
    for paper in PAPERS.values():
        rows = [(entry.items, _row(entry, measured)) for entry in paper.configurations]
        rows += [((item,), (item, reason, "-", "nothing to run")) for item, reason in paper.nothing_to_run.items()]
        cells = [row for _, row in sorted(rows, key=lambda row: _order(row[0]))]
        lines += [f"## {paper.title}", "", *markdown_table(("item", "shows", "command", "measured here"), cells), ""]
        notes: dict[str, list[str]] = {}
        for entry in paper.configurations:
            notes.setdefault(_note(entry), []).append(f"`{entry.name}`")
        remarks = [f"- {', '.join(names)}: {text}" for text, names in notes.items() if text]
        lines += ["What differs from the paper:", "", *remarks, ""]
    return "\n".join(lines).rstrip() + "\n"


def _row(entry: Configuration, measured: Mapping[str, str]) -> tuple[str, ...]:
    time = estimated_time(entry)
    needs = f"needs {', '.join(entry.datasets)}" + (f"; {time} on one GPU" if time else "")
    value = measured.get(entry.name) or f"not run: {needs}"
    if entry.name in measured and time:
        value += f". The paper's own protocol {needs}"
    data = "" if entry.protocol == DRAWN or not entry.datasets else " --data DATA"
    command = f"`retrieval research run {entry.name}{data} -o papers`"
    return ", ".join(entry.items), entry.shows, command, value


def _note(entry: Configuration) -> str:
    return " ".join(text for text in (entry.note, f"Not here: {entry.missing}" if entry.missing else "") if text)


def _order(items: Sequence[str]) -> tuple[str, int]:
    kind, number = re.match(r"(\w+) (\d+)", items[0]).groups()  # type: ignore[union-attr]
    return ("0" if kind == "Table" else "1", int(number))
