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
        self._cards: dict[str, list[Card]] = {decision: [] for decision in TITLES}
        self._noted = self._answered = 0

    def noting(self, lines: Iterable[dict[str, Any]]) -> Iterator[dict[str, Any]]:
        """Yield the answers (`answer_photos`), and collect the first ones; refused photos are left out."""
        for line in lines:
            if "error" not in line:
                self._answered += 1
                if self._noted < MOST:
                    self._noted += 1
                    self._cards[line["decision"]].append(self._card(line))
            yield line

    def _card(self, line: dict[str, Any]) -> Card:
        """Return the photo of an answer beside that of its first item."""
        photo = self._photos[line["photo_id"]]
        first = next(iter((*line["matches"], *line["review"], *line["ranked"])), line["nearest"])
        pictures = [(photo.photo_id, _picture(photo))]
        text = photo.photo_id
        if first is not None:
            pictures.append((first["photo_id"], self._gallery.thumbnail(first["photo_id"])))
            text += f": {first['metadata'].get('name') or first['item_id']}, {first['distance']:.3f} away"
        truth = line.get("truth")
        if truth:
            text += f"; it shows {truth}"
        return Card([(name, jpeg) for name, jpeg in pictures if jpeg], f"{text}.")

    def html(self) -> str:
        """Return the page."""
        title = f"Answers to {counted(self._answered, 'photo')}"
        counts = [f"{len(cards):,} {TITLES[name][0].lower()}" for name, cards in self._cards.items() if cards]
        summary = [f"{', '.join(counts) or 'No photo was answered'}."]
        if self._answered > self._noted:
            summary.append(f"These are the first {self._noted:,} of {self._answered:,} answers.")
        sections = [Section(*TITLES[name], cards) for name, cards in self._cards.items()]
        return Sheet(title, summary, sections).html()


def _picture(photo: Photo) -> bytes | None:
    """Return the thumbnail of a photo, or None if it cannot be read again."""
    try:
        return thumbnail(crop(open_image(photo.read()), photo.bbox))
    except ImageRefused:
        return None
