"""Labels of users' photos, from feedback on their answers.

A verdict says which item a photo shows ("right", or "wrong" with the right item), that it shows none of the catalogue
("unknown", or "right" about a no-match), or only that the answer is "wrong".

Of several verdicts on one photo (a file with the same content) or on the same box in it, the last one of each key
counts. Those of trusted keys replace those of other keys. A photo or a box gets a label only if the verdicts that count
do not contradict each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.catalogue.photos import Photo
from retrieval.errors import DataError
from retrieval.search.boxes import bbox_text
from retrieval.search.result import MATCH, BBox

from .feedback import RIGHT, Feedback, photo_owner
from .verdicts import named

SOURCE = "feedback"  # in the column `source`
UNKNOWN_ITEM = ""  # item_id of a photo of an unknown item
NOT_KEPT = "without a kept photo"
GONE = "whose photo is no longer in the folder"
NO_LABEL = "that do not say which item is right"
ALL_JUDGED = "all_judged"  # column: whether the labels of a photo cover all items that were found in it

Place = tuple[str, BBox | None]  # name of a photo's file, and the box that was judged, None for the whole photo


@dataclass(frozen=True)
class Contradiction:
    """A photo, or a box in it, whose verdicts do not agree."""

    photo: str  # name of its file
    verdicts: tuple[str, ...]
    bbox: BBox | None = None

    def __str__(self) -> str:
        return f"{named_place((self.photo, self.bbox))}: {'; '.join(self.verdicts)}"

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        box = {} if self.bbox is None else {"bbox": list(self.bbox)}
        return {"photo": self.photo, **box, "verdicts": list(self.verdicts)}


@dataclass(frozen=True)
class ReviewedPhotos:
    """Labelled photos, photos with contradictory verdicts, and the numbers of what was left out."""

    photos: Sequence[Photo]  # with item_id "" where they show no item of the catalogue
    contradictions: Sequence[Contradiction]
    left_out: Mapping[str, int] = field(default_factory=dict)  # verdicts or photos by reason

    @property
    def unknown(self) -> int:
        """The number of photos that show no item of the catalogue."""
        return sum(photo.item_id == UNKNOWN_ITEM for photo in self.photos)

    @property
    def items(self) -> int:
        """The number of items that the other photos show."""
        return len({photo.item_id for photo in self.photos} - {UNKNOWN_ITEM})

    @property
    def boxes(self) -> int:
        """The number of photos that are boxes of a photo."""
        return sum(photo.bbox is not None for photo in self.photos)

    def describe(self) -> str:
        """Return a sentence with the number of photos and items."""
        known = len(self.photos) - self.unknown
        known_items = f"{known} of known items ({self.items} items)"
        boxes = f" ({self.boxes} of them boxes)" if self.boxes else ""
        return f"{len(self.photos)} reviewed photos{boxes}: {known_items}, {self.unknown} of unknown items."

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "photos": len(self.photos),
            "items": self.items,
            "unknown": self.unknown,
            "boxes": self.boxes,
            "contradictions": [contradiction.to_dict() for contradiction in self.contradictions],
            "left_out": dict(self.left_out),
        }


def reviewed_photos(feedback: Sequence[Feedback], folder: Path, *, trusted: Collection[str] = ()) -> ReviewedPhotos:
    """Return the photos in a folder of `retrieval serve --feedback-photos` with labels from feedback.

    Parameters
    ----------
    feedback:
        Verdicts in the order in which they were given.
    trusted:
        Names of keys whose verdicts replace those of other keys; "" stands for a server without keys.

    Raises
    ------
    DataError
        If no photo gets a label.
    """
    by_place: dict[Place, dict[str, Feedback]] = defaultdict(dict)
    for verdict in feedback:
        for name in verdict.photos:
            of_keys = by_place[name, verdict.bbox]
            of_keys.pop(verdict.key, None)  # the newest is last
            of_keys[verdict.key] = verdict
    left_out = Counter({NOT_KEPT: sum(not verdict.photos for verdict in feedback)})
    photos, contradictions = [], []
    counts = {place: _counted(of_keys.values(), trusted) for place, of_keys in by_place.items()}
    labels_of = {place: {label for label in map(label_of, c) if label is not None} for place, c in counts.items()}
    shown = {name for (name, bbox), labels in labels_of.items() if bbox is not None and labels - {UNKNOWN_ITEM}}
    complete = _complete(counts, labels_of)
    for (name, bbox), counted in counts.items():
        labels = labels_of[name, bbox]
        denied = {verdict.answered_item for verdict in counted if label_of(verdict) is None}
        places = [folder / owner / name for owner in (*map(photo_owner, counted), "")]  # "": earlier versions
        file = next(filter(_is_kept, places), None)
        if len(labels) > 1 or labels & denied or (bbox is None and UNKNOWN_ITEM in labels and name in shown):
            contradictions.append(Contradiction(name, tuple(map(_told, counted)), bbox))
        elif not labels:
            left_out[NO_LABEL] += 1
        elif file is None:
            left_out[GONE] += 1
        else:
            photos.append(_photo(file, bbox, labels.pop(), counted, all_judged=name in complete))
    found = ReviewedPhotos(photos, contradictions, {why: count for why, count in left_out.items() if count})
    if not photos:
        reasons = [f"{count} {why}" for why, count in found.left_out.items()]
        reasons += [f"{len(contradictions)} photos with contradictory verdicts"] if contradictions else []
        raise DataError(
            f"none of the {len(feedback)} verdicts labels a photo: {', '.join(reasons) or 'there are none'}",
            remedy="Keep the photos of judged answers: serve with --feedback-photos FOLDER",
        )
    return found


def label_of(verdict: Feedback) -> str | None:
    """Return the item that the photo shows by a verdict, "" for an unknown item, None if the verdict does not say."""
    if verdict.of_unknown_item:
        return UNKNOWN_ITEM
    if verdict.verdict == RIGHT:
        return verdict.item_id
    return verdict.right_item_id or None


def _complete(counts: Mapping[Place, Sequence[Feedback]], labels_of: Mapping[Place, set[str]]) -> set[str]:
    """Return the photos whose labels cover all items that were found in them.

    That is true of a label of the whole photo, and of a photo that was searched by regions if each item that the newest
    answer returned has a label.
    """
    whole = {name for name, bbox in counts if bbox is None and labels_of[name, bbox]}
    boxes: dict[str, list[Feedback]] = defaultdict(list)
    for (name, bbox), counted in counts.items():
        if bbox is not None and labels_of[name, bbox]:
            boxes[name].append(counted[-1])
    for name, judged in boxes.items():
        newest = max(judged, key=lambda verdict: verdict.time)
        found = sum(verdict.request_id == newest.request_id and verdict.decision == MATCH for verdict in judged)
        if 0 < newest.found_items <= found:
            whole.add(name)
    return whole


def named_place(place: Place) -> str:
    """Return a photo, or a box in it, for use in a sentence."""
    name, bbox = place
    return name if bbox is None else f"{name} at {bbox_text(bbox)}"


def _is_kept(path: Path) -> bool:
    """Return whether a photo is in the folder; the server writes files, so a link is not one of its photos."""
    return path.is_file() and not path.is_symlink()


def _counted(verdicts: Iterable[Feedback], trusted: Collection[str]) -> list[Feedback]:
    """Return the verdicts of trusted keys if there are any, else all."""
    found = list(verdicts)
    return [verdict for verdict in found if verdict.key in trusted] or found


def _told(verdict: Feedback) -> str:
    """Return a verdict in words."""
    label = label_of(verdict)
    said = verdict.answered_item if label is None else label
    return f"{named(verdict.key)} says {'not ' if label is None else ''}{said or 'an unknown item'}"


def _photo(path: Path, bbox: BBox | None, item_id: str, counted: Sequence[Feedback], *, all_judged: bool) -> Photo:
    """Return a labelled photo or box with the facts of its newest verdict as metadata."""
    newest = counted[-1]
    metadata = {
        "verdict": newest.verdict,
        "decision": newest.decision,
        "answered_item": newest.item_id,
        "reviews": len(counted),
        "reviewed_by": newest.key,
        "time": newest.time,
        "request_id": newest.request_id,
        "bundle_id": newest.bundle_id,
        "gallery_version": newest.gallery_version,
        ALL_JUDGED: all_judged,
    }
    name = f"{SOURCE}/{path.stem}" if bbox is None else f"{SOURCE}/{path.stem} {bbox_text(bbox)}"
    return Photo(name, path, item_id, source=SOURCE, bbox=bbox, metadata=metadata)
