"""Kinds of the metadata columns of a catalogue: numbers and booleans that a file holds as text.

A column of a CSV is a number or boolean if every cell that is not empty is one. Identifiers stay text: digits with a
leading zero or with more than LONGEST digits. Dates are text; written as 2026-01-31, they sort as they should.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from index.search.filters import BOOLEAN, NUMBER, TEXT
from retrieval.errors import DataError, InvalidParameter

from .photos import Photo

COLUMN_KINDS = (TEXT, NUMBER, BOOLEAN)
LONGEST = 10  # digits of an integer that is not taken for an identifier
NUMERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d{1,2})?")
WORDS = {"true": True, "false": False}


def set_kinds(
    photos: Sequence[Photo], declared: Mapping[str, str], *, known: Mapping[str, str], infer: bool, place: object
) -> None:
    """Convert the texts in the metadata of newly read photos to the kinds of their columns.

    Parameters
    ----------
    declared:
        Kind of some columns. A text of another kind raises DataError.
    known:
        Kinds of the columns of a gallery. They replace inferred kinds; a text of another kind stays text.
    infer:
        Whether the other columns get the kind of all their texts.
    place:
        The file, for the message of an error.
    """
    check_kinds(declared)
    rows = list(_distinct(photos))
    texts: dict[str, dict[str, Any]] = {}
    for row in rows:
        for name, value in row.items():
            if type(value) is str:
                texts.setdefault(name, {})[value] = value
            elif declared.get(name) == TEXT:
                row[name] = str(value)
    for name, values in texts.items():
        kind = declared.get(name) or known.get(name) or (_inferred(values) if infer else TEXT)
        for text in values:
            try:
                values[text] = PARSERS[kind](text)
            except ValueError as error:
                if name in declared:
                    told = f"{place}: {name} is {text!r}, which is not a {kind}"
                    raise DataError(told, remedy="Correct the cell") from error
    for row in rows:
        for name, values in texts.items():
            if type(row.get(name)) is str:
                row[name] = values[row[name]]


def check_kinds(declared: Mapping[str, str]) -> None:
    """Raise InvalidParameter for an unknown kind of column."""
    for name, kind in declared.items():
        if kind not in COLUMN_KINDS:
            raise InvalidParameter(f"kind of column {name}", f"be one of {', '.join(COLUMN_KINDS)}", kind)


def _inferred(texts: Iterable[str]) -> str:
    """Return the kind that all texts have."""
    if all(NUMERAL.fullmatch(text) and (len(text) <= LONGEST or not text.lstrip("-").isdecimal()) for text in texts):
        return NUMBER
    return BOOLEAN if all(text.lower() in WORDS for text in texts) else TEXT


def _number(text: str) -> int | float:
    if NUMERAL.fullmatch(text) is None:
        raise ValueError(text)
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def _boolean(text: str) -> bool:
    if text.lower() not in WORDS:
        raise ValueError(text)
    return WORDS[text.lower()]


PARSERS: Mapping[str, Callable[[str], Any]] = {TEXT: str, NUMBER: _number, BOOLEAN: _boolean}  # raise ValueError


def _distinct(photos: Sequence[Photo]) -> Iterator[dict[str, Any]]:
    """Yield each metadata object once: adjacent photos share theirs."""
    last: object = None
    for photo in photos:
        if photo.metadata is not last:
            last = photo.metadata
            yield photo.metadata  # type: ignore[misc]  # newly read, and a dict
