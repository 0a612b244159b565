"""Render benchmark records as Markdown between markers in the documentation.

Pages are written by hand; the text between two markers is generated:

<!-- table: grocery / unseen -->   the table
<!-- text: promise_vectors / printed -->   the lines of a table with one column, as they are
<!-- facts: grocery -->            command, date and machine
<!-- cell: grocery / unseen / ArcFace / R@1 -->   one figure, within a line
<!-- verdict: many_classes / EL-nivMF / cars, * / of MAP@R -->   yes, no, higher, lower, not decided, or how often each
<!-- count: many_classes / EL-nivMF / cars, * / of MAP@R / < 0 -->   "3 of 4"
<!-- range: many_classes / EL-nivMF / cars, * / of MAP@R -->   the least and the greatest
<!-- end -->

docs/results.md is the template `results.md.jinja` with figures of the records.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import jinja2

from research.markdown import markdown_table
from retrieval.errors import DataError

from .record import RESULTS, Record, Table, cell, read_record
from .sentences import count, span, verdict

DOCS = RESULTS.parents[1] / "docs"
MARKER = re.compile(r"<!-- (table|text|facts|cell|verdict|count|range): (.+?) -->(.*?)<!-- end -->", re.DOTALL)


def pages() -> list[Path]:
    """Return the documentation pages that show measured figures, and the README if it does."""
    return [path for path in documents() if MARKER.search(path.read_text(encoding="utf-8"))]


def documents() -> list[Path]:
    """Return all documentation pages and the README."""
    return [*sorted(DOCS.rglob("*.md")), DOCS.parent / "README.md"]


def render(text: str) -> str:
    """Return a page with every marked part generated from the records."""
    return MARKER.sub(lambda found: f"<!-- {found[1]}: {found[2]} -->{_part(found[1], found[2])}<!-- end -->", text)


def results_page() -> str:
    """Return docs/results.md."""
    dates = sorted(read_record(path.stem).date for path in RESULTS.glob("*.json"))
    template = jinja2.Environment(undefined=jinja2.StrictUndefined, keep_trailing_newline=True).from_string(  # noqa: S701
        (RESULTS / "results.md.jinja").read_text(encoding="utf-8")
    )
    return template.render(f=lambda address, kind="cell": _part(kind, address), first=dates[0], last=dates[-1])


def shown(text: str) -> Iterator[tuple[str, str]]:
    """Yield the record and the table name of each table on a page, also of those that are shown as text."""
    for found in MARKER.finditer(text):
        if found[1] in {"table", "text"}:
            record, table = found[2].split(" / ")
            yield record, table


def to_markdown(table: Table) -> str:
    """Return a table as Markdown."""
    return "\n".join(markdown_table(table.columns, table.rows))


def to_lines(table: Table) -> str:
    """Return the rows of a table with one column as a fenced block."""
    return "\n".join(["```", *(line for (line,) in table.rows), "```"])


def facts(record: Record) -> str:
    """Return the command, date, commit and machine of a record as one paragraph."""
    machine = f"{record.machine['cores']} cores, {record.machine['kind']}"
    return f"Measured with `{record.command}` on {record.date} (commit {record.commit}, {machine})."


def _part(kind: str, address: str) -> str:
    words = address.split(" / ")
    try:
        if kind in {"table", "text"}:
            record, table = words
            shape = to_markdown if kind == "table" else to_lines
            return f"\n\n{shape(read_record(record).table(table))}\n\n"
        if kind == "facts":
            return f"\n\n{facts(read_record(address))}\n\n"
        condition = (words.pop(),) if kind == "count" else ()
        record, table, row, first, *rest = words
        column = " / ".join([first, *rest])
        if kind == "cell":
            return cell(record, table, row, column)
        shown_as: dict[str, Callable[..., str]] = {"verdict": verdict, "count": count, "range": span}
        return shown_as[kind](read_record(record).table(table), row, column, *condition)
    except ValueError as error:
        raise DataError(f"the marker <!-- {kind}: {address} --> has {len(words)} parts") from error
