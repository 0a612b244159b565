"""Labels of users' photos, from feedback on their answers.

A verdict says which item a photo shows ("right", or "wrong" with the right item), that it shows none of the catalogue
("unknown", or "right" about a no-match), or only that the answer is "wrong".

Of several verdicts on one photo (a file with the same content), the last one of each key counts. Those of trusted keys
replace those of other keys. The photo gets a label only if the verdicts that count do not contradict each other.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from retrieval.catalogue.photos import Photo
from retrieval.errors import DataError

from .feedback import RIGHT, Feedback
from .verdicts import named

SOURCE = "feedback"  # in the column `source`
UNKNOWN_ITEM = ""  # item_id of a photo of an unknown item
NOT_KEPT = "without a kept photo"
GONE = "whose photo is no longer in the folder"
NO_LABEL = "that do not say which item is right"


@dataclass(frozen=True)
class Contradiction:
    """A photo whose verdicts do not agree."""

    photo: str  # name of its file
    verdicts: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.photo}: {'; '.join(self.verdicts)}"


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

    def describe(self) -> str:
        """Return a sentence with the number of photos and items."""
        known = len(self.photos) - self.unknown
        known_items = f"{known} of known items ({self.items} items)"
        return f"{len(self.photos)} reviewed photos: {known_items}, {self.unknown} of unknown items."

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        return {
            "photos": len(self.photos),
            "items": self.items,
            "unknown": self.unknown,
            "contradictions": [{"photo": c.photo, "verdicts": list(c.verdicts)} for c in self.contradictions],
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
    by_photo: dict[str, dict[str, Feedback]] = defaultdict(dict)
    for verdict in feedback:
        for name in verdict.photos:
            by_photo[name].pop(verdict.key, None)  # the newest is last
            by_photo[name][verdict.key] = verdict
    left_out = Counter({NOT_KEPT: sum(not verdict.photos for verdict in feedback)})
    photos, contradictions = [], []
    for name, of_keys in by_photo.items():
        counted = _counted(of_keys.values(), trusted)
        labels = {label for label in map(label_of, counted) if label is not None}
        denied = {verdict.answered_item for verdict in counted if label_of(verdict) is None}
        if len(labels) > 1 or labels & denied:
            contradictions.append(Contradiction(name, tuple(map(_told, counted))))
        elif not labels:
            left_out[NO_LABEL] += 1
        elif not _is_kept(folder / name):
            left_out[GONE] += 1
        else:
            photos.append(_photo(folder / name, labels.pop(), counted))
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


def _photo(path: Path, item_id: str, counted: Sequence[Feedback]) -> Photo:
    """Return a labelled photo with the facts of its newest verdict as metadata."""
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
    }
    return Photo(f"{SOURCE}/{path.stem}", path, item_id, source=SOURCE, metadata=metadata)
