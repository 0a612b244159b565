"""Generator of docs/papers.md: paper item, command, measured value, or the reason why there is none."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path

from research.markdown import markdown_table
from research.results.render import render

from .configuration import DRAWN, Configuration
from .effort import estimated_time
from .listing import PAPERS
from .measured import measured_values

HEAD = Path(__file__).with_name("head.md")


def render_page() -> str:
    """Return the page."""
    lines, measured = [render(HEAD.read_text(encoding="utf-8"))], measured_values()
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
    needs = f"needs {', '.join(entry.datasets)}; {f'{time} on one GPU' if time else 'trains nothing'}"
    value = measured.get(entry.name) or f"not run: {needs}"
    if entry.name in measured:
        value += f". The paper's own protocol {needs}" if time else f". It needs {_little(entry)}"
    return ", ".join(entry.items), entry.shows, f"`retrieval {' '.join(entry.command)}`", value


def _little(entry: Configuration) -> str:
    """Return what an item needs that trains nothing large."""
    if entry.protocol == DRAWN:
        return "no data; seconds without a GPU"
    return "a catalogue; minutes without a GPU" if entry.datasets else "no data; minutes on one GPU"


def _note(entry: Configuration) -> str:
    return " ".join(text for text in (entry.note, f"Not here: {entry.missing}" if entry.missing else "") if text)


def _order(items: Sequence[str]) -> tuple[str, int]:
    kind, number = re.match(r"(\w+) (\d+)", items[0]).groups()  # type: ignore[union-attr]
    return ("0" if kind == "Table" else "1", int(number))
