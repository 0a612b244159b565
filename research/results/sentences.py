"""Words, counts and ranges for sentences, and the digests that tell which paragraphs are older than their record.

A paragraph that speaks of a record ends with `<!-- read: NAME 1a2b3c4d -->`: the digest of the record when somebody
last compared the two.
"""

from __future__ import annotations

import fnmatch
import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

from retrieval.errors import DataError

from .record import Table, read_record

NUMBER = re.compile(r"[-+−]?\d[\d,]*(?:\.\d+)?(?: ?%)?")
INTERVAL = re.compile(r"\[\s*([-+−]?[\d.]+)\s*%?\s*,\s*([-+−]?[\d.]+)\s*%?\s*\]")
READ = re.compile(r"<!-- read: (\w+)(?: (\w+))? -->")


def verdict(table: Table, rows: str, column: str) -> str:
    """Return the word of the rows whose names match a pattern, or how often each word stands if they differ."""
    words = Counter(word(each) for each in _cells(table, rows, column))
    if len(words) == 1:
        return next(iter(words))
    return ", ".join(f"{number} {each}" for each, number in words.most_common())


def count(table: Table, rows: str, column: str, condition: str) -> str:
    """Return in how many of the rows a figure has a word ("lower", "yes") or meets a bound ("< 0"), as "18 of 20"."""
    cells = _cells(table, rows, column)
    return f"{sum(_holds(each, condition) for each in cells)} of {len(cells)}"


def span(table: Table, rows: str, column: str) -> str:
    """Return the least and the greatest figure of the rows, as they stand in the table."""
    figures = sorted((number(each), found[0]) for each in _cells(table, rows, column) if (found := NUMBER.search(each)))
    if not figures:
        raise DataError(f"the column {column!r} of the table {table.name!r} has no figures in the rows {rows!r}")
    return f"{figures[0][1]} to {figures[-1][1]}"


def word(text: str) -> str:
    """Return the word of a figure: its own, or what its 95 % interval shows."""
    for each in ("not decided", "yes", "no"):
        if text.startswith(each):
            return each
    if (found := INTERVAL.search(text)) is None:
        raise DataError(f"{text!r} is neither yes, no or not decided nor a figure with an interval")
    low, high = (float(each.replace("−", "-")) for each in found.groups())
    return "higher" if low > 0 else "lower" if math.copysign(1, high) < 0 else "not decided"  # -0.000 is below 0


def number(text: str) -> float:
    """Return the first number of a figure."""
    if (found := NUMBER.search(text)) is None:
        raise DataError(f"{text!r} has no number")
    return float(found[0].rstrip(" %").replace(",", "").replace("−", "-"))


def digest(name: str) -> str:
    """Return eight hexadecimal digits that change with the measured values of a record."""
    values = [[table.name, table.columns, table.rows] for table in read_record(name).tables]
    return hashlib.sha256(json.dumps(values, ensure_ascii=False).encode()).hexdigest()[:8]


def stale(path: Path) -> Iterator[str]:
    """Yield each place of a page that was last read before its record changed."""
    for line, text in enumerate(path.read_text(encoding="utf-8").splitlines(), start=1):
        for found in READ.finditer(text):
            if found[2] != (today := digest(found[1])):
                yield f"{path.name}:{line}: {found[1]} was read as {found[2] or 'nothing yet'}, and is {today}"


def mark_as_read(path: Path) -> None:
    """Write today's digests into a page whose paragraphs were compared with their records."""
    text = path.read_text(encoding="utf-8")
    path.write_text(READ.sub(lambda found: f"<!-- read: {found[1]} {digest(found[1])} -->", text), encoding="utf-8")


def _holds(text: str, condition: str) -> bool:
    sign, _, bound = condition.partition(" ")
    if sign not in {"<", ">"}:
        return word(text) == condition
    return number(text) < float(bound) if sign == "<" else number(text) > float(bound)


def _cells(table: Table, rows: str, column: str) -> list[str]:
    """Return the figures of a column in the rows whose names match a pattern, without the empty ones."""
    found = Table(table.name, table.columns, [row for row in table.rows if fnmatch.fnmatchcase(row[0], rows)])
    cells = [text for text in found.column(column) if text != "–"]
    if not cells:
        raise DataError(f"the table {table.name!r} has no row {rows!r}, only {', '.join(row[0] for row in table.rows)}")
    return cells
