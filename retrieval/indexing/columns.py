"""Metadata columns of a gallery: their conversion to another kind, and the photos whose values do not fit."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from index.checks import encode_metadata
from index.filters import TEXT, is_column, kind_of
from index.protocol import GalleryProtocol
from retrieval.catalogue.kinds import PARSERS, check_kinds
from retrieval.catalogue.photos import Photo
from retrieval.errors import InvalidParameter

from .worker import catalogue_metadata, stored_metadata

CONVERTED = 4096  # photos per transaction


def convert_columns(gallery: GalleryProtocol, columns: Mapping[str, str]) -> None:
    """Declare metadata columns for filters, converting the stored texts of every photo to their kinds.

    Nothing is changed if a text does not fit. A column is not declared while it is converted: if that is interrupted,
    the next call continues.

    Raises InvalidParameter if a stored text is of another kind.
    """
    check_kinds(columns)
    columns = {name: kind for name, kind in columns.items() if is_column(name)}
    stored = [row for row in gallery.photos() if columns.keys() & row[2].keys()]
    changes = [_Column(name, kind, stored) for name, kind in columns.items()]
    declared = gallery.columns()
    gallery.declare({change.name: None for change in changes if declared.get(change.name, change.kind) != change.kind})
    changed = []
    for photo_id, item_id, metadata in stored:
        new = dict(metadata)
        for change in changes:
            change.apply(new)
        if new != metadata:
            changed.append((photo_id, item_id, new))
    for start in range(0, len(changed), CONVERTED):
        block = changed[start : start + CONVERTED]
        gallery.update([row[0] for row in block], [row[1] for row in block], [row[2] for row in block])
    gallery.declare({change.name: change.kind for change in changes})


def refused_metadata(photos: Sequence[Photo], columns: Mapping[str, str]) -> dict[str, str]:
    """Return the reason per photo_id, for photos whose metadata the gallery or a declared column refuses."""
    reasons = {}
    for photo in photos:
        try:
            encode_metadata(stored_metadata(photo, "0" * 64))
        except InvalidParameter as error:
            reasons[photo.photo_id] = error.message
        for name, value in catalogue_metadata(photo).items():
            if name in columns and kind_of(value) != columns[name]:
                told = f"{name} is {value!r}, and the gallery's column {name} is a {columns[name]}"
                remedy = shlex.join(["--column", f"{name}={TEXT}"])
                reasons[photo.photo_id] = f"{told}; correct the value, or make the column text with {remedy}"
    return reasons


class _Column:
    """The values of a column by their stored texts."""

    def __init__(self, name: str, kind: str, stored: list[tuple[str, str, dict[str, Any]]]) -> None:
        self.name, self.kind = name, kind
        texts: dict[str, str] = {}  # to the first photo with it
        for photo_id, _, metadata in stored:
            if isinstance(metadata.get(name), str):
                texts.setdefault(metadata[name], photo_id)
        try:
            self._values = {text: PARSERS[kind](text) for text in texts}
        except ValueError as error:
            text = error.args[0]
            raise InvalidParameter(
                f"column {name}", f"be a {kind} in every photo (see {texts[text]})", text, remedy="Correct these photos"
            ) from error

    def apply(self, metadata: dict[str, Any]) -> None:
        value = metadata.get(self.name)
        if isinstance(value, str):
            metadata[self.name] = self._values[value]
        elif value is not None and self.kind == TEXT:
            metadata[self.name] = str(value)
