"""Metadata filters such as `brand = 'x' and season in ('summer', 'spring')`, parsed into a tree.

expression  = conjunction, {"or", conjunction}
conjunction = factor, {"and", factor}
factor      = "not", factor | "(", expression, ")" | test
test        = column, ("=" | "!=" | "<" | "<=" | ">" | ">="), value
            | column, ["not"], "in", "(", value, {",", value}, ")"
            | column, "is", ["not"], "null"
value       = 'text' ('' for a quote in it) | number | true | false

Columns are declared with a kind. As in SQL, a photo without a value passes only `is null`: it fails every other test
and the negation of it. The filter text itself never reaches a database.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NoReturn

import numpy as np
from numpy.typing import NDArray

from index.errors import InvalidParameter, command

from .distance import Rows

TEXT, NUMBER, BOOLEAN = "text", "number", "boolean"
KINDS = (TEXT, NUMBER, BOOLEAN)
COLUMN = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,62}\Z")
WORDS = frozenset(("and", "or", "not", "in", "is", "null", "true", "false"))
OPPOSITE = {"=": "!=", "!=": "=", "<": ">=", "<=": ">", ">": "<=", ">=": "<"}
LONGEST, DEEPEST = 10_000, 40  # maximum characters and nested parentheses of a filter
DIGITS = 20  # with a sign, of the integers of 64 bits
TOKEN = re.compile(
    r"\s*(?:(?P<text>'(?:[^']|'')*')|(?P<number>[-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"
    r"|(?P<operator><=|>=|!=|<|>|=)|(?P<mark>[(),])|(?P<word>[A-Za-z_][A-Za-z0-9_]*))"
)

Value = str | float | bool


@dataclass(frozen=True)
class Compare:
    """Comparison of a column with a value."""

    column: str
    operator: str  # = != < <= > >=
    value: Value


@dataclass(frozen=True)
class Among:
    """Test whether a column is one of several values."""

    column: str
    values: tuple[Value, ...]


@dataclass(frozen=True)
class Missing:
    """Test for a missing value."""

    column: str


@dataclass(frozen=True)
class Negation:
    """Negation of a filter."""

    inner: Where


@dataclass(frozen=True)
class Several:
    """Conjunction ("and") or disjunction ("or") of filters."""

    word: str
    parts: tuple[Where, ...]


Where = Compare | Among | Missing | Negation | Several


@dataclass(frozen=True)
class Filter:
    """The photos that a search may return."""

    mask: NDArray[np.bool_]  # (n,)
    few: Rows | None  # positions of the passing photos, if there are few
    base: Any  # faiss selection that restricts a search of the base
    tail: Any
    sql: tuple[str, list[Value]]  # the filter as an SQL condition with its parameters
    confirmed: set[int] = field(default_factory=set)  # positions whose checksummed metadata has been tested, too


def parse_where(text: str, columns: Mapping[str, str]) -> Where:
    """Parse a filter; raise InvalidParameter if it breaks the grammar or the kind of a column.

    `columns` maps each declared column to its kind.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidParameter("where", "be a filter such as brand = 'x'", text)
    if len(text) > LONGEST:
        raise InvalidParameter("where", f"have at most {LONGEST} characters", len(text))
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise InvalidParameter("where", "be valid Unicode", text)
    return _Parser(text, columns).whole()


def is_column(name: str) -> bool:
    """Return whether a metadata key may be declared: letters, digits and _, and not a reserved word."""
    return COLUMN.match(name) is not None and name.lower() not in WORDS


def check_columns(columns: Mapping[str, str]) -> None:
    """Raise InvalidParameter for column names or kinds that no filter could use.

    Names that differ in case alone are one name for SQLite.
    """
    first: dict[str, str] = {}
    for name, kind in columns.items():
        if (other := first.setdefault(name.lower(), name)) != name:
            raise InvalidParameter(
                "column", f"differ from {other} in more than case", name, remedy="Rename one of them"
            )
        if not is_column(name):
            raise InvalidParameter("column", "consist of letters, digits and _, and not be a keyword of filters", name)
        if kind not in KINDS:
            raise InvalidParameter(f"kind of column {name}", f"be one of {', '.join(KINDS)}", kind)


def kind_of(value: object) -> str | None:
    """Return the kind of a metadata value, or None if filters do not support it."""
    if isinstance(value, bool):
        return BOOLEAN
    if isinstance(value, int | float):
        return NUMBER
    return TEXT if isinstance(value, str) else None


def to_sql(where: Where) -> tuple[str, list[Value]]:
    """Return the filter as an SQL condition on a photo's row, and its parameters."""
    if isinstance(where, Compare):
        return f"{column_sql(where.column)} {where.operator} ?", [where.value]
    if isinstance(where, Among):
        marks = ", ".join("?" * len(where.values))
        return f"{column_sql(where.column)} IN ({marks})", list(where.values)
    if isinstance(where, Missing):
        return f"{column_sql(where.column)} IS NULL", []
    if isinstance(where, Negation):
        inner, values = to_sql(where.inner)
        return f"NOT ({inner})", values
    parts = [to_sql(part) for part in where.parts]
    return f" {where.word.upper()} ".join(f"({sql})" for sql, _ in parts), [v for _, values in parts for v in values]


def to_milvus(where: Where, *, negated: bool = False) -> str:
    """Return the filter in the Milvus language, with the semantics of SQL: a missing value passes only `is null`."""
    if isinstance(where, Negation):
        return to_milvus(where.inner, negated=not negated)
    if isinstance(where, Several):
        word = where.word if not negated else {"and": "or", "or": "and"}[where.word]
        return f" {word} ".join(f"({to_milvus(part, negated=negated)})" for part in where.parts)
    field = f'metadata["{where.column}"]'
    if isinstance(where, Missing):
        return f"(exists {field})" if negated else f"not (exists {field})"
    if isinstance(where, Among):
        sign, word = ("!=", "and") if negated else ("==", "or")
        tests = f" {word} ".join(f"{field} {sign} {_literal(value)}" for value in where.values)
        return f"(exists {field}) and ({tests})"
    sign = OPPOSITE[where.operator] if negated else where.operator
    return f"(exists {field}) and ({field} {'==' if sign == '=' else sign} {_literal(where.value)})"


def column_sql(name: str) -> str:
    """Return the SQL expression of a declared column; its index uses the same expression."""
    return f"json_extract(metadata, '$.{name}')"


def _literal(value: Value) -> str:
    return json.dumps(value, ensure_ascii=False)


class _Parser:
    def __init__(self, text: str, columns: Mapping[str, str]) -> None:
        self._text, self._columns = text, columns
        self._tokens = list(self._split(text))
        self._next = 0
        self._depth = 0

    def whole(self) -> Where:
        tree = self._expression()
        if self._kind() != "end":
            self._refuse("'and', 'or' or the end")
        return tree

    def _split(self, text: str) -> Sequence[tuple[str, str, int]]:
        tokens, place = [], 0
        while place < len(text.rstrip()):
            match = TOKEN.match(text, place)
            if match is None:
                place += len(text[place:]) - len(text[place:].lstrip())
                raise InvalidParameter(
                    "where",
                    f"be a filter; character {place + 1} starts no value, name or operator",
                    text[place : place + 20],
                )
            kind = str(match.lastgroup)
            tokens.append((kind, match.group(kind), match.start(kind)))
            place = match.end()
        return [*tokens, ("end", "", len(text))]

    def _kind(self) -> str:
        return self._tokens[self._next][0]

    def _word(self) -> str:
        kind, text, _ = self._tokens[self._next]
        return text.lower() if kind == "word" else text if kind in ("mark", "operator") else ""

    def _take(self, *words: str) -> bool:
        if self._word() in words:
            self._next += 1
            return True
        return False

    def _need(self, word: str) -> None:
        if not self._take(word):
            self._refuse(repr(word))

    def _refuse(self, expected: str) -> NoReturn:
        _, text, place = self._tokens[self._next]
        raise InvalidParameter("where", f"have {expected} at character {place + 1}", text or "the end")

    def _expression(self) -> Where:
        self._depth += 1
        if self._depth > DEEPEST:
            raise InvalidParameter("where", f"be nested at most {DEEPEST} levels deep", self._text[:60])
        parts = [self._conjunction()]
        while self._take("or"):
            parts.append(self._conjunction())
        self._depth -= 1
        return parts[0] if len(parts) == 1 else Several("or", tuple(parts))

    def _conjunction(self) -> Where:
        parts = [self._factor()]
        while self._take("and"):
            parts.append(self._factor())
        return parts[0] if len(parts) == 1 else Several("and", tuple(parts))

    def _factor(self) -> Where:
        negations = 0
        while self._take("not"):
            negations += 1
        if self._take("("):
            factor = self._expression()
            self._need(")")
        else:
            factor = self._test()
        return Negation(factor) if negations % 2 else factor

    def _test(self) -> Where:
        if self._kind() != "word" or self._word() in WORDS:
            self._refuse("a column")
        name = self._tokens[self._next][1]
        if name not in self._columns:
            raise InvalidParameter(
                "where",
                f"name declared columns ({', '.join(sorted(self._columns)) or 'there are none'})",
                name,
                remedy=f"Declare it: `{command('gallery', 'declare', 'GALLERY', f'{name}:KIND')}`",
            )
        self._next += 1
        if self._take("is"):
            negated = self._take("not")
            self._need("null")
            return Negation(Missing(name)) if negated else Missing(name)
        negated = self._take("not")
        if self._take("in"):
            self._need("(")
            values = [self._value(name)]
            while self._take(","):
                values.append(self._value(name))
            self._need(")")
            return Negation(Among(name, tuple(values))) if negated else Among(name, tuple(values))
        if negated or self._kind() != "operator":
            self._refuse("'in'" if negated else "a comparison, 'in' or 'is'")
        operator = self._word()
        self._next += 1
        return Compare(name, operator, self._value(name))

    def _value(self, column: str) -> Value:
        kind, text, _ = self._tokens[self._next]
        value: Value
        if kind == "text":
            value = text[1:-1].replace("''", "'")
        elif kind == "number":
            whole = text.lstrip("+-").isdecimal() and len(text) <= DIGITS
            value = int(text) if whole else float(text)
            if not -(2**63) <= value < 2**63:  # SQLite has integers of 64 bits
                raise InvalidParameter("where", "compare with numbers between -2^63 and 2^63", text)
        elif self._word() in ("true", "false"):
            value = self._word() == "true"
        else:
            self._refuse("a value ('text', a number, true or false)")
        if kind_of(value) != self._columns[column]:
            raise InvalidParameter("where", f"compare {column} with a {self._columns[column]}", text)
        self._next += 1
        return value
