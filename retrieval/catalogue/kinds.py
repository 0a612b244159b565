"""Kinds of the metadata columns of a catalogue: numbers and booleans that a file holds as text.

A column of a CSV is a number or boolean if every cell that is not empty is one. Identifiers stay text: digits with a
leading zero or with more than LONGEST digits. Dates are text; written as 2026-01-31, they sort as they should.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

from index.search.filters import BOOLEAN, NUMBER, TEXT
from retrieval.errors import DataError, InvalidParameter, counted, listed

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
        unfit = set()
        for text in values:
            try:
                values[text] = PARSERS[kind](text)
            except ValueError:
                unfit.add(text)
        if unfit and name in declared:
            raise _unfit(name, unfit, declared[name], photos, place)
    for row in rows:
        for name, values in texts.items():
            if type(row.get(name)) is str:
                row[name] = values[row[name]]


def _unfit(name: str, texts: set[str], kind: str, photos: Sequence[Photo], place: object) -> DataError:
    """Return the error for a declared column with texts that are not of its kind."""
    cells = [f"{photo.photo_id} has {photo.metadata[name]!r}" for photo in photos if photo.metadata.get(name) in texts]
    told = f"{counted(len(cells), 'cell')} of {name} {'is' if len(cells) == 1 else 'are'} not a {kind}"
    return DataError(f"{place}: {told}: {listed(cells)}", remedy="Correct them")


def text_cells(photos: Sequence[Photo]) -> dict[str, list[str]]:
    """Return the cells that make a column text although nine in ten of its cells, or all but one, are numbers.

    Each is described as "photo_id: 'n/a'", in a list by the name of the column.
    """
    numbers: Counter[str] = Counter()
    texts: Counter[str] = Counter()
    for photo in photos:
        for name, value in photo.metadata.items():
            (texts if _is_word(value) else numbers)[name] += not isinstance(value, bool)
    mixed = [name for name, count in texts.items() if count <= max(1, numbers[name] // 9) < numbers[name]]
    return {name: [cell for photo in photos for cell in _words(photo, name)] for name in mixed}


def _words(photo: Photo, name: str) -> list[str]:
    value = photo.metadata.get(name)
    return [f"{photo.photo_id}: {value!r}"] if _is_word(value) else []


def _is_word(value: Any) -> bool:
    return isinstance(value, str) and not _is_number(value)


def check_kinds(declared: Mapping[str, str]) -> None:
    """Raise InvalidParameter for an unknown kind of column."""
    for name, kind in declared.items():
        if kind not in COLUMN_KINDS:
            raise InvalidParameter(f"kind of column {name}", f"be one of {', '.join(COLUMN_KINDS)}", kind)


def _inferred(texts: Iterable[str]) -> str:
    """Return the kind that all texts have."""
    if all(map(_is_number, texts)):
        return NUMBER
    return BOOLEAN if all(text.lower() in WORDS for text in texts) else TEXT


def _is_number(text: str) -> bool:
    """Return whether a text is a number and not an identifier."""
    return bool(NUMERAL.fullmatch(text)) and (len(text) <= LONGEST or not text.lstrip("-").isdecimal())


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
