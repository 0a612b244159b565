"""The sheet of answers: photos that were searched with, beside the items that answer, as one HTML page."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from index.location import AnyGallery
from retrieval.catalogue.photos import Photo
from retrieval.errors import ImageRefused, counted
from retrieval.images import crop, open_image
from retrieval.images.thumbnails import thumbnail
from retrieval.search.result import MATCH, NO_MATCH, PERHAPS, RANKED

from .sheet import Card, Section, Sheet

MOST = 500  # answers on a sheet
TITLES = {
    MATCH: ("Found", "The photo, and the item that it shows."),
    PERHAPS: ("To confirm", "The photo, and the item that it may show."),
    NO_MATCH: ("No match", "The photo, and the closest item, which is not close enough."),
    RANKED: ("The closest items", "There is no threshold to decide whether they are right."),
}


class AnswerSheet:
    """Collects the first answers of a search with many photos, and shows them by decision."""

    def __init__(self, gallery: AnyGallery, photos: Sequence[Photo]) -> None:
        self._gallery, self._photos = gallery, {photo.photo_id: photo for photo in photos}
        self._cards: list[tuple[str, Card]] = []
        self._answered = 0

    def noting(self, lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the answers (`answer_photos`), and collect the first ones; refused photos are left out."""
        for line in lines:
            self._answered += "error" not in line
            if "error" not in line and self._answered <= MOST:
                self._cards.append((line["decision"], self._card(line)))
            yield line

    def _card(self, line: dict[str, Any]) -> Card:
        """Return the photo of an answer beside that of its first item."""
        asked, pictures = line["photo_id"], [(line["photo_id"], _picture(self._photos[line["photo_id"]]))]
        text = f"{asked} (it shows {line['truth']})" if line.get("truth") else asked
        first = next(iter((*line["matches"], *line["review"], *line["ranked"])), line["nearest"])
        if first is not None:
            pictures.append((first["photo_id"], self._gallery.thumbnail(first["photo_id"])))
            text += f": {first['metadata'].get('name') or first['item_id']}, {first['distance']:.3f} away"
        return Card([(name, jpeg) for name, jpeg in pictures if jpeg], f"{text}.")

    def html(self) -> str:
        """Return the page."""
        sections = [
            Section(title, text, [card for decision, card in self._cards if decision == name])
            for name, (title, text) in TITLES.items()
        ]
        counts = ", ".join(f"{len(each.cards):,} {each.title.lower()}" for each in sections if each.cards)
        summary = [f"{counts or 'No photo was answered'}."]
        if self._answered > MOST:
            summary.append(f"These are the first {MOST:,} of {self._answered:,} answers.")
        return Sheet(f"Answers to {counted(self._answered, 'photo')}", summary, sections).html()


def _picture(photo: Photo) -> bytes | None:
    """Return the thumbnail of a photo, or None if it cannot be read again."""
    try:
        return thumbnail(crop(open_image(photo.read()), photo.bbox))
    except ImageRefused:
        return None
