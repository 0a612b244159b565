"""Benchmark records: tables with command, date, machine and parameters, stored as JSON."""

from __future__ import annotations

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.errors import DataError

RESULTS = Path(__file__).parent


@dataclass
class Table:
    """A table of formatted figures; the first column names the row."""

    name: str
    columns: tuple[str, ...]
    rows: list[tuple[str, ...]] = field(default_factory=list)

    def add(self, *cells: str) -> None:
        """Append a row; its length must equal that of the columns."""
        if len(cells) != len(self.columns):
            raise DataError(f"the table {self.name!r} has {len(self.columns)} columns, got a row of {len(cells)}")
        self.rows.append(cells)

    def cell(self, row: str, column: str) -> str:
        """Return the figure in a row and column; raise an error that lists the available names if one is unknown."""
        for (name, *_), figure in zip(self.rows, self.column(column), strict=True):
            if name == row:
                return figure
        raise DataError(
            f"the table {self.name!r} has no row {row!r}, only {', '.join(cells[0] for cells in self.rows)}"
        )

    def column(self, column: str) -> list[str]:
        """Return the figures of a column; raise an error that lists the available columns if it is unknown."""
        if column not in self.columns:
            raise DataError(f"the table {self.name!r} has no column {column!r}, only {', '.join(self.columns)}")
        return [cells[self.columns.index(column)] for cells in self.rows]


@dataclass
class Record:
    """A benchmark result with its date, machine and command."""

    name: str
    command: str
    date: str
    commit: str  # that was checked out; with a + if files were changed
    machine: Mapping[str, Any]  # cores, kind
    parameters: Mapping[str, Any]
    tables: list[Table] = field(default_factory=list)

    def table(self, name: str) -> Table:
        """Return a table by name; raise an error that lists the available tables if it is unknown."""
        for table in self.tables:
            if table.name == name:
                return table
        raise DataError(f"{self.name} has no table {name!r}, only {', '.join(table.name for table in self.tables)}")

    def to_json(self) -> str:
        """Return the record as JSON text, one line per row of a table."""
        head = {key: getattr(self, key) for key in ("name", "command", "date", "commit", "machine", "parameters")}
        lines = [json.dumps(head, indent=2, ensure_ascii=False)[:-2] + ","]
        lines.append('  "tables": [')
        for table in self.tables:
            name, columns = (json.dumps(value, ensure_ascii=False) for value in (table.name, table.columns))
            lines += ["    {", f'      "name": {name},', f'      "columns": {columns},', '      "rows": [']
            lines.append(",\n".join(f"        {json.dumps(row, ensure_ascii=False)}" for row in table.rows))
            lines += ["      ]", "    }," if table is not self.tables[-1] else "    }"]
        return "\n".join([*lines, "  ]", "}"]) + "\n"

    def write(self, path: Path) -> None:
        """Write the record as a JSON file."""
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(self.to_json(), encoding="utf-8")


@functools.cache
def read_record(name: str, folder: Path = RESULTS) -> Record:
    """Return the record of a benchmark."""
    values = json.loads((folder / f"{name}.json").read_text(encoding="utf-8"))
    tables = []
    for entry in values.pop("tables"):
        table = Table(entry["name"], tuple(entry["columns"]))
        for row in entry["rows"]:
            table.add(*row)
        tables.append(table)
    return Record(**values, tables=tables)


def cell(record: str, table: str, row: str, column: str) -> str:
    """Return one measured figure."""
    return read_record(record).table(table).cell(row, column)
