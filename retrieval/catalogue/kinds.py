"""Kinds of the metadata columns of a catalogue: numbers, booleans and dates that a file holds as text.

A column of a CSV is a number, boolean or date if every cell that is not empty is one. Identifiers stay text: digits
with a leading zero or with more than LONGEST digits. Dates become ISO text (2026-01-31), which sorts as it should; a
column of dates such as 03/04/2026 is text unless one of its dates decides which number is the month.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any

from index.filters import BOOLEAN, NUMBER, TEXT
from retrieval.errors import DataError, InvalidParameter

from .photos import Photo

DATE = "date"
COLUMN_KINDS = (TEXT, NUMBER, BOOLEAN, DATE)
LONGEST = 10  # digits of an integer that is not taken for an identifier
NUMERAL = re.compile(r"-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][-+]?\d{1,2})?")
WORDS = {"true": True, "false": False}
FORMATS = ("%Y-%m-%d", "%Y/%m/%d", "%d.%m.%Y", "%d/%m/%Y", "%m/%d/%Y")

Parser = Callable[[str], Any]  # raises ValueError


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
        try:
            _convert(values, declared.get(name), known.get(name), infer=infer)
        except ValueError as error:
            raise DataError(
                f"{place}: {name} is {error.args[0]!r}, which is not a {declared[name]}", remedy="Correct the cell"
            ) from error
    changed = {name: values for name, values in texts.items() if any(v is not text for text, v in values.items())}
    for row in rows:
        for name, values in changed.items():
            value = row.get(name)
            if type(value) is str:
                row[name] = values[value]


def check_kinds(declared: Mapping[str, str]) -> None:
    """Raise InvalidParameter for an unknown kind of column."""
    for name, kind in declared.items():
        if kind not in COLUMN_KINDS:
            raise InvalidParameter(f"kind of column {name}", f"be one of {', '.join(COLUMN_KINDS)}", kind)


def parser(kind: str, texts: Iterable[str]) -> Parser:
    """Return the function that converts texts of a column; for dates the format is that of all `texts`.

    Raises ValueError, with the first text that does not fit, if the texts are dates of no single format.
    """
    if kind == DATE:
        fits = [form for form in FORMATS if _all(_date_parser(form), texts)]
        if len(fits) != 1:
            raise ValueError(next(iter(texts)))
        return _date_parser(fits[0])
    parsers: dict[str, Parser] = {TEXT: str, NUMBER: _number, BOOLEAN: _boolean}
    return parsers[kind]


def _convert(values: dict[str, Any], declared: str | None, known: str | None, *, infer: bool) -> None:
    """Convert the values of a mapping from texts to themselves."""
    if declared is not None:
        parse = parser(declared, values)
        values.update({text: parse(text) for text in values})
    elif known in (NUMBER, BOOLEAN):
        parse = parser(known, values)
        values.update({text: parse(text) for text in values if _all(parse, [text])})
    elif infer:
        parse = _inferred(values) if known is None else _inferred_date(values) or str
        values.update({text: parse(text) for text in values})


def _inferred(texts: Iterable[str]) -> Parser:
    if all(_is_number(text) for text in texts):
        return _number
    if _all(_boolean, texts):
        return _boolean
    return _inferred_date(texts) or str


def _inferred_date(texts: Iterable[str]) -> Parser | None:
    try:
        return parser(DATE, texts)
    except ValueError:
        return None


def _all(parse: Parser, texts: Iterable[str]) -> bool:
    try:
        for text in texts:
            parse(text)
    except ValueError:
        return False
    return True


def _is_number(text: str) -> bool:
    return NUMERAL.fullmatch(text) is not None and (not text.lstrip("-").isdecimal() or len(text) <= LONGEST)


def _number(text: str) -> int | float:
    if NUMERAL.fullmatch(text) is None:
        raise ValueError(text)
    return int(text) if text.lstrip("-").isdecimal() else float(text)


def _boolean(text: str) -> bool:
    if text.lower() not in WORDS:
        raise ValueError(text)
    return WORDS[text.lower()]


def _date_parser(form: str) -> Parser:
    def parse(text: str) -> str:
        try:
            return datetime.strptime(text, form).date().isoformat()
        except ValueError:
            raise ValueError(text) from None

    return parse


def _distinct(photos: Sequence[Photo]) -> Iterator[dict[str, Any]]:
    """Yield each metadata object once: adjacent photos share theirs."""
    last: object = None
    for photo in photos:
        if photo.metadata is not last:
            last = photo.metadata
            yield photo.metadata  # type: ignore[misc]  # newly read, and a dict
