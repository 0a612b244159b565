"""The error sheet: the worst answers with their photos, as one HTML page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from retrieval.reports import render


@dataclass(frozen=True)
class Shown:
    """A photo of the sheet; `distance` is that to the query, None for the query itself."""

    photo_id: str
    item_id: str
    picture: bytes  # JPEG
    distance: float | None = None


@dataclass(frozen=True)
class WrongAnswer:
    """A query, the nearest photo of another item, and the nearest one of its own; None where the gallery has none."""

    query: Shown
    wrong: Shown | None
    right: Shown | None


@dataclass(frozen=True)
class ErrorKind:
    """Wrong answers of one kind, worst first."""

    title: str
    text: str  # what went wrong, in a sentence
    total: int  # number of such answers, of which `shown` are the worst
    shown: Sequence[WrongAnswer]


@dataclass(frozen=True)
class ErrorSheet:
    """The data of a sheet."""

    title: str
    threshold: float
    summary: Sequence[str]  # sentences
    kinds: Sequence[ErrorKind]

    def html(self) -> str:
        """Return the sheet as one HTML page without scripts and external resources."""
        return render("error_sheet.html", sheet=self)
