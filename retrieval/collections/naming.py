"""Names of columns: which of a source's columns hold items, vectors, groups and ids."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from retrieval.errors import DataError, InvalidParameter, listed

from . import Columns

ITEMS = ("items", "item_id", "item", "label")
VECTORS = ("vectors", "vector", "embedding", "embeddings")
GROUPS = ("groups", "group")
IDS = ("ids", "id", "photo_id")


class Names(NamedTuple):
    """The columns of a source; None for those that it lacks."""

    items: str
    vectors: str
    groups: str | None
    ids: str | None


def choose(
    source: str, columns: Columns, there: Sequence[str], *, noun: str = "columns", vectors: Sequence[str] = ()
) -> Names:
    """Return the columns that are named or have a usual name; raise DataError if items or vectors have none.

    `there` lists the columns of the source, `vectors` those whose type is a vector: a single one needs no name.
    """
    return Names(
        column(source, "items", columns.items, there, ITEMS, noun),
        column(source, "vectors", columns.vectors, there, vectors if len(vectors) == 1 else VECTORS, noun),
        column_if_any(source, "groups", columns.groups, there, GROUPS, noun),
        column_if_any(source, "ids", None, there, IDS, noun),
    )


def column(source: str, what: str, asked: str | None, there: Sequence[str], usual: Sequence[str], noun: str) -> str:
    """Return the column that is asked for, or else the first usual one; raise DataError if there is none."""
    chosen = next((name for name in ([asked] if asked else usual) if name in there), None)
    if chosen is None:
        lacks = f", and not {asked}" if asked else ""
        raise DataError(
            f"{source} has the {noun} {listed(there) or '(none)'}{lacks}", remedy=f"Name the {what} with --{what}"
        )
    return chosen


def column_if_any(
    source: str, what: str, asked: str | None, there: Sequence[str], usual: Sequence[str], noun: str
) -> str | None:
    """Return the column as `column` does, None if none is asked for and there is no usual one."""
    return column(source, what, asked, there, usual, noun) if asked or set(usual) & set(there) else None


def refuse_condition(source: str, columns: Columns) -> None:
    """Raise InvalidParameter if a condition is given for a source without a language of conditions."""
    if columns.where:
        raise InvalidParameter(
            "where",
            f"be left out for {source}, which has no conditions",
            columns.where,
            remedy="Write the rows you want",
        )


def refuse_login(what: str, address: str, variable: str) -> None:
    """Raise DataError if an address holds a user or a password, which is not shown."""
    if "@" in address.partition("://")[2].partition("/")[0] or "?" in address:
        raise DataError(f"an address of {what} holds no user, password or key", remedy=f"Put the key into {variable}")


def text(value: Any) -> str:
    """Return an id as text, "" for None."""
    return "" if value is None else str(value)


def without_login(address: str) -> str:
    """Return an address without user, password and options."""
    return re.sub(r"://.*@", "://", address, flags=re.DOTALL).partition("?")[0]
