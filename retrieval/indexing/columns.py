"""Metadata columns of a gallery: their conversion to another kind, and the photos whose values do not fit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from index.checks import check_ids, check_lengths, check_texts, encode_metadata
from index.location import AnyGallery
from index.search.filters import TEXT, is_column, kind_of
from retrieval.catalogue.kinds import PARSERS, check_kinds
from retrieval.catalogue.photos import Photo
from retrieval.errors import DataError, InvalidParameter, counted, listed

from .worker import catalogue_metadata, stored_metadata

CONVERTED = 4096  # photos per transaction
COLUMNS = 16  # maximum number of columns declared automatically


def columns_of(photos: Sequence[Photo]) -> dict[str, str]:
    """Return the kinds of up to COLUMNS metadata columns that filters can use: those of a single kind.

    Of columns whose names differ in case alone, filters use the first.
    """
    kinds: dict[str, set[str | None]] = {}
    for photo in photos:
        for name, value in catalogue_metadata(photo).items():
            kinds.setdefault(name, set()).add(kind_of(value))
    first = {name.lower(): name for name in reversed(kinds)}
    single = {
        name: next(iter(kinds[name]))
        for name in kinds
        if len(kinds[name]) == 1 and is_column(name) and first[name.lower()] == name
    }
    return {name: kind for name, kind in list(single.items())[:COLUMNS] if kind is not None}


def convert_columns(gallery: AnyGallery, columns: Mapping[str, str]) -> None:
    """Declare metadata columns for filters, converting the stored texts of every photo to their kinds.

    Nothing is changed if a text does not fit. A column is not declared while it is converted: if that is interrupted,
    the next call continues.

    Raises DataError, with their photos, if stored texts are of another kind.
    """
    changed, columns = conversions(gallery, columns), for_filters(columns)
    declared = gallery.columns()
    gallery.declare({name: None for name, kind in columns.items() if declared.get(name, kind) != kind})
    for start in range(0, len(changed), CONVERTED):
        block = changed[start : start + CONVERTED]
        gallery.update([row[0] for row in block], [row[1] for row in block], [row[2] for row in block])
    gallery.declare(columns)


def for_filters(columns: Mapping[str, str]) -> dict[str, str]:
    """Return the columns that filters can use."""
    return {name: kind for name, kind in columns.items() if is_column(name)}


def conversions(gallery: AnyGallery, columns: Mapping[str, str]) -> list[tuple[str, str, dict[str, Any]]]:
    """Return the photos whose stored texts `convert_columns` would convert, with the new metadata.

    Raises DataError, with their photos, if stored texts are of another kind.
    """
    check_kinds(columns)
    columns = for_filters(columns)
    changed, unfit = [], []
    for photo_id, item_id, metadata in gallery.photos():
        new = {}
        for name in columns.keys() & metadata:
            try:
                new[name] = _converted(metadata[name], columns[name])
            except ValueError:
                unfit.append(f"{name} of {photo_id} is {metadata[name]!r}, not a {columns[name]}")
        if any(new[name] is not metadata[name] for name in new):
            changed.append((photo_id, item_id, {**metadata, **new}))
    if unfit:
        told = f"{counted(len(unfit), 'value')} cannot be converted: {listed(sorted(unfit), between='; ')}"
        raise DataError(told, remedy="Correct them in the catalogue, and index it again")
    return changed


def _converted(value: Any, kind: str) -> Any:
    """Return a stored value as the kind of its column, or raise ValueError; numbers and booleans only become text."""
    if not isinstance(value, str):
        return str(value) if kind == TEXT and value is not None else value
    return PARSERS[kind](value)


def refused_metadata(photos: Sequence[Photo], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the reason per photo_id, for photos whose ids or metadata the gallery or a declared column refuses."""
    reasons = {}
    for photo in photos:
        try:
            check_lengths("photo_id", check_ids("photo_id", [photo.photo_id]))
            check_lengths("item_id", check_ids("item_id", [photo.item_id]))
            encode_metadata(stored_metadata(photo, "0" * 64))
            check_texts(catalogue_metadata(photo))
        except InvalidParameter as error:
            reasons[photo.photo_id] = str(error)
        for name, value in catalogue_metadata(photo).items():
            if name in columns and kind_of(value) != columns[name]:
                told = f"{name} is {value!r}, and the gallery's column {name} is a {columns[name]}"
                remedy = shlex.join(["--column", f"{name}={TEXT}"])
                reasons[photo.photo_id] = f"{told}; correct the value, or make the column text with {remedy}"
    return reasons
