"""Tables of Postgres with vectors of pgvector, read in one snapshot.

Shapes: n queries, d = embedding size.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
from numpy.typing import NDArray

from retrieval.errors import DataError, importing, listed

from . import Block, Columns, Neighbour
from .naming import choose, text, without_login
from .reading import stacked

BATCH = 2000  # rows per request
DEFAULT = ("cosine_distance", "<=>")
OPERATORS = {"cosine": DEFAULT, "l2": ("l2", "<->"), "ip": ("negative_ip", "<#>")}  # by class of operators

FIELDS = """
SELECT a.attname, format_type(a.atttypid, NULL), coalesce(array_position(i.indkey::int2[], a.attnum), -1),
    c.relkind::text
FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid
LEFT JOIN pg_index i ON i.indrelid = a.attrelid AND i.indisprimary
WHERE a.attrelid = to_regclass(%s) AND a.attnum > 0 AND NOT a.attisdropped
ORDER BY a.attnum
"""
INDEXES = """
SELECT o.opcname, pg_get_indexdef(i.indexrelid, 1, true)
FROM pg_index i JOIN pg_opclass o ON o.oid = i.indclass[0]
WHERE i.indrelid = to_regclass(%s) AND i.indisvalid AND o.opcname ~ '^(vector|halfvec)_.+_ops$'
    AND position(quote_ident(%s) IN pg_get_indexdef(i.indexrelid, 1, true)) > 0  -- the column, or a cast of it
ORDER BY i.indexrelid
"""
TABLES = (
    "SELECT schemaname || '.' || tablename FROM pg_tables WHERE schemaname !~ '^(pg_|information_schema)' ORDER BY 1"
)


class Postgres:
    """A table or view. Its primary key names the photos, and the index of its vectors the metric."""

    remarks: Sequence[str] = ()

    def __init__(self, address: str, columns: Columns) -> None:
        with importing("psycopg", "collections"):
            import psycopg
        self._psycopg = psycopg
        place, table = _split(address)
        try:
            known = psycopg.conninfo.conninfo_to_dict(place)
        except psycopg.Error:  # its message may show the password
            raise _unreadable() from None
        shown = {key: value for key, value in known.items() if "password" not in key and "secret" not in key}
        self._shown = psycopg.conninfo.make_conninfo("", **shown)
        port = f":{known['port']}" if "port" in known else ""
        self.name = f"postgresql://{known.get('host', '')}{port}/{known.get('dbname', '')}#{table}"
        self._secrets = [str(value) for key, value in known.items() if key not in shown and value]
        with self._errors("Check the address, PGPASSWORD, ~/.pgpass and the service file"):
            self._connection = psycopg.connect(place, prepare_threshold=None)
        self._connection.read_only = True
        self._connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        numbers = self._connection.adapters.types["float4"].array_oid
        self._connection.adapters.register_loader(numbers, _numbers(psycopg))
        self._count: int | None = None
        try:
            self._describe(table, columns)
        except DataError:
            self.close()
            raise

    def _describe(self, table: str, columns: Columns) -> None:
        """Find the columns, the ids and the index."""
        sql = self._psycopg.sql
        quoted = self._text_of(sql.Identifier(*table.split(".")))
        self._table = sql.SQL(_escaped(quoted))
        fields = self._fetch(FIELDS, quoted)
        if not fields:
            tables = [row[0] for row in self._fetch(TABLES)]
            raise DataError(f"{self.name} is not there: the database has the tables {listed(tables) or '(none)'}")
        kinds = {name: kind.rpartition(".")[2] for name, kind, *_ in fields}
        there = [name for name, kind in kinds.items() if kind in ("vector", "halfvec")]
        names = choose(self.name, columns, list(kinds), vectors=there)
        if names.vectors not in there:
            raise DataError(
                f"the column {names.vectors} of {self.name} has the type {kinds[names.vectors]}, not vector or halfvec",
                remedy="Name the vectors with --vectors",
            )
        keys = [name for _, name in sorted((place, name) for name, _, place, _ in fields if place >= 0)]
        keys = keys or [names.ids or ""]
        if keys == [""]:
            if fields[0][3] not in ("r", "m"):
                raise DataError(f"{self.name} has no primary key", remedy="Give it a column id with an id per row")
            keys = ["ctid"]  # where the row lies
        row = sql.SQL("ROW({})" if len(keys) > 1 else "{}").format(sql.SQL(", ").join(map(self._column, keys)))
        group = self._column(names.groups) if names.groups else sql.NULL
        self._ids, self._item, self._vector = row, self._column(names.items), self._column(names.vectors)
        self._group, self._has_groups = group, names.groups is not None
        where = _escaped(columns.where or "")
        self._rows = sql.SQL("FROM {}").format(self._table) + sql.SQL(f" WHERE ({where}\n)" if where else "")
        self._choose_index(quoted, names.vectors, kinds[names.vectors])

    def _choose_index(self, quoted: str, vector: str, kind: str) -> None:
        """Find the metric, the operator and the expression that the first index of the vectors has."""
        indexes = [
            (*name.removesuffix("_ops").split("_", 1), how) for name, how in self._fetch(INDEXES, quoted, vector)
        ]
        usable = [index for index in indexes if index[1] in OPERATORS]
        if indexes and not usable:
            raise DataError(
                f"the index of {self.name} compares by {indexes[0][1]}, which is no metric of vectors of photos",
                remedy="Index the vectors by cosine, inner product or l2",
            )
        sql = self._psycopg.sql
        kind, measure, how = usable[0] if usable else (kind, "cosine", self._text_of(sql.Identifier(vector)))
        self.metric, operator = OPERATORS[measure]
        self._score = sql.SQL(f"({_escaped(how)}) {operator} %s::{kind}")

    def __len__(self) -> int:
        if self._count is None:
            query = self._psycopg.sql.SQL("SELECT count(*) {}").format(self._rows)
            self._count = int(self._fetch(query)[0][0])  # begins the snapshot in which `blocks` reads
        return self._count

    def blocks(self) -> Iterator[Block]:
        """Yield the rows as they were at the last count, and end the snapshot."""
        query = self._psycopg.sql.SQL("SELECT {}::text, {}::text, {}::text, {}::real[] {}").format(
            self._ids, self._item, self._group, self._vector, self._rows
        )
        idle = self._connection.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE
        if idle or self._count is None:  # the snapshot of the last count has ended, or there was none
            self._count = None
            len(self)
        with self._errors(), self._connection.cursor(name="rows", binary=True) as cursor:
            cursor.execute(query, ())
            while rows := cursor.fetchmany(BATCH):
                kept = [row for row in rows if row[3] is not None]
                ids, items, groups, vectors = zip(*kept, strict=True) if kept else ((), (), (), ())
                yield Block(
                    ids,
                    list(map(text, items)),
                    stacked(self.name, ids, vectors),
                    list(map(text, groups)) if self._has_groups else None,
                    without_vector=len(rows) - len(kept),
                )
        self._connection.rollback()

    def search(self, vectors: NDArray[Any], k: int) -> list[list[Neighbour]] | None:
        """Search as the table is served, by its index where the planner chooses it."""
        query = self._psycopg.sql.SQL("SELECT {}::text, {}::text, {} AS score {} ORDER BY score LIMIT %s").format(
            self._ids, self._item, self._score, self._rows
        )
        batches = [self._fetch(query, str(vector.tolist()), k) for vector in np.asarray(vectors, dtype=np.float32)]
        self._connection.rollback()
        return [[Neighbour(*row) for row in rows if row[1] and row[2] is not None] for rows in batches]

    def recipe(self, promise: str) -> str:
        """Return lines of Python that search the table; the password comes from where psycopg looks for it."""
        query = self._psycopg.sql.SQL("SELECT {}::text, {} AS score {} ORDER BY score LIMIT 20").format(
            self._item, self._score, self._rows
        )
        return "\n".join(
            (
                "import psycopg",
                "from retrieval import Promise",
                f"connection = psycopg.connect({self._shown!r})",
                f"query = {self._text_of(query)!r}",
                "rows = connection.execute(query, [str(list(map(float, vector)))]).fetchall()",
                f"answer = Promise.load({promise!r}).decide(vector, rows)",
            )
        )

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()

    def _fetch(self, query: Any, *values: Any) -> list[Any]:
        with self._errors():
            # in binary, Postgres takes one statement, so the condition cannot bring another
            return list(self._connection.execute(query, values, binary=True).fetchall())

    def _column(self, name: str) -> Any:
        sql = self._psycopg.sql
        return sql.SQL(_escaped(self._text_of(sql.Identifier(name))))

    def _text_of(self, part: Any) -> str:
        return str(part.as_string(self._connection))

    @contextmanager
    def _errors(self, remedy: str = "Check the names of columns, the condition and your rights") -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            message = " ".join(str(error).split())
            for secret in self._secrets:
                message = message.replace(secret, "***")
            raise DataError(f"{self.name} cannot be read: {message}", remedy=remedy) from None


def _split(address: str) -> tuple[str, str]:
    """Return the address of the database and the table; raise DataError without showing a password."""
    place, _, table = address.rpartition("#")
    login = (place or table).partition("://")[2].rpartition("@")[0]
    if set("/?#@") & set(login) or set("/@:") & set(table if place else ""):
        raise _unreadable()
    if not place or not table:
        raise DataError(
            f"{without_login(address)} names no table", remedy="Add it: postgresql://host/database#schema.table"
        )
    return place, table


def _escaped(text_of_sql: str) -> str:
    """Return SQL as psycopg takes it beside parameters."""
    return text_of_sql.replace("%", "%%")


def _unreadable() -> DataError:
    return DataError(
        "the address of Postgres cannot be read",
        remedy="Write postgresql://host/database#schema.table, and special characters of user and password as %XX",
    )


def _numbers(psycopg: Any) -> Any:
    """Return the class that loads arrays of float4 as arrays of NumPy, which is faster than by lists."""

    class Numbers(psycopg.adapt.Loader):  # type: ignore[misc]
        format = psycopg.pq.Format.BINARY

        def load(self, data: Any) -> NDArray[np.float32]:
            values = np.frombuffer(data, dtype=[("size", ">i4"), ("value", ">f4")], offset=20)
            return values["value"].astype(np.float32)

    return Numbers
