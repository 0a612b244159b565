"""A sheet: sections of cards, each with the pictures of photos and a text, as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.text import as_utf8

from . import render


@dataclass(frozen=True)
class Card:
    """Pictures with their photo ids, and a text about them."""

    photos: Sequence[tuple[str, bytes]]  # JPEG
    text: str


@dataclass(frozen=True)
class Section:
    """Cards of one kind."""

    title: str
    text: str  # about all of them
    cards: Sequence[Card]


@dataclass(frozen=True)
class Sheet:
    """The data of a sheet; sections without cards are left out."""

    title: str
    summary: Sequence[str]  # sentences
    sections: Sequence[Section]

    def html(self) -> str:
        """Return the sheet as one HTML page without scripts and external resources."""
        return as_utf8(render("sheet.html", sheet=self))  # photo ids may be file names that are no text
