"""User feedback on answers, stored as JSON lines and appended to while serving.

Anyone who may search may give feedback, so every line names the answer and the key. `verdicts` selects the verdicts
that count.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import re
import stat
from collections.abc import Sequence
from dataclasses import dataclass, fields
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from retrieval.bundle.bundle import Bundle
from retrieval.errors import DataError, InvalidParameter
from retrieval.search.boxes import check_bbox
from retrieval.search.result import MATCH, NO_MATCH, RANKED, BBox
from retrieval.text import as_utf8

from .judged import Judged

RIGHT, WRONG, UNKNOWN = "right", "wrong", "unknown"
VERDICTS = (RIGHT, WRONG, UNKNOWN)
MAX_BYTES = 100 * 2**20  # per file, about 200,000 verdicts
MAX_LINE = 16 * 1024  # bytes per line
FARTHEST = 1e6  # upper limit of any distance
LATER = frozenset(  # fields missing in older files
    {"time", "request_id", "key", "asked_by", "right_item_id", "gallery_version", "photos", "bbox", "found_items"}
)
MOST_PHOTOS = 8  # of a query
PHOTO = re.compile(r"[0-9a-f]{32}(\.[a-z]{3,4})?")  # name of a file


@dataclass(frozen=True)
class Feedback:
    """A verdict on an answer."""

    verdict: str  # "right", "wrong" (another item is right), "unknown" (the item is not in the catalogue)
    decision: str  # of the answer: "match" or "no_match"
    item_id: str  # nearest item, match or not
    distance: float  # to the nearest item
    gallery_items: int
    embedding_id: str  # of the model; `distance_form` identifies the distance. Distances compare only if both agree
    distance_form: str  # with the number of photos of a query of several, or the policy of a search by regions
    bundle_id: str
    time: str = ""  # ISO 8601, UTC
    request_id: str = ""  # of the answer; empty in older files
    key: str = ""  # name of the key that gave the verdict; empty on a server without keys
    asked_by: str = ""  # name of the key that searched
    right_item_id: str = ""  # item that is right, with the verdict "wrong"; empty if it was not named
    gallery_version: int = 0  # that answered; 0 in older files
    photos: tuple[str, ...] = ()  # names of the files with the photos of the query; none if they were not kept
    bbox: BBox | None = None  # of the part of the photo that the verdict is about, in pixels; None: the whole photo
    found_items: int = 0  # that a search by regions returned for the photo

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise InvalidParameter("verdict", f"be one of {', '.join(VERDICTS)}", self.verdict)
        if self.right_item_id and self.verdict != WRONG:
            raise InvalidParameter("verdict", f"be {WRONG} where another item is named", self.verdict)

    @property
    def answered_item(self) -> str:
        """Return the item of a match, "" for a no-match."""
        return "" if self.decision == NO_MATCH else self.item_id

    @property
    def of_unknown_item(self) -> bool:
        """Return whether the verdict says that the photo shows no item of the catalogue."""
        return self.verdict == UNKNOWN or (self.verdict == RIGHT and self.decision == NO_MATCH)


def feedback_on(
    judged: Judged,
    verdict: str,
    bundle: Bundle,
    *,
    gallery_items: int,
    request_id: str = "",
    key: str = "",
    asked_by: str = "",
    right_item_id: str = "",
    photos: Sequence[str] = (),
) -> Feedback:
    """Create a verdict on an answer, with the current time.

    Raises InvalidParameter if the answer decided nothing, and for a verdict on all items of a photo at once.
    """
    if judged.decision == RANKED:
        raise InvalidParameter("feedback", "be about a match or a no-match", judged.decision)
    if judged.nearest is None:
        raise InvalidParameter("feedback", "be about an answer that had a nearest item", None)
    now = datetime.now(UTC).isoformat(timespec="seconds")
    made = Feedback(
        verdict=verdict,
        decision=judged.decision,
        item_id=judged.nearest.item_id,
        distance=judged.nearest.distance,
        gallery_items=gallery_items,
        embedding_id=bundle.embedding_id,
        distance_form=bundle.distance_form.key + _searched_with(judged),
        bundle_id=bundle.bundle_id,
        time=now,
        request_id=request_id,
        key=key,
        asked_by=asked_by,
        right_item_id=right_item_id,
        gallery_version=judged.gallery_version,
        photos=tuple(photos),
        bbox=judged.bbox,
        found_items=judged.items,
    )
    if judged.regions and judged.bbox is None and not made.of_unknown_item:
        raise InvalidParameter(
            "bbox",
            "be that of an item in the answer",
            None,
            remedy="Judge the items one by one; without a bbox, say that the photo shows no item of the catalogue",
        )
    return made


def _searched_with(judged: Judged) -> str:
    """Return what distinguishes the distances of a search from those of single photos, "" if nothing does."""
    if judged.regions:
        return f", regions {judged.regions}"
    return f", {judged.photos} photos" if judged.photos > 1 else ""


def owner_folder(key: str) -> str:
    """Return the name of the folder with the photos that an API key sent, "" for a server without keys."""
    return f"key-{hashlib.sha256(key.encode()).hexdigest()[:16]}" if key else ""


def photo_owner(feedback: Feedback) -> str:
    """Return the name of the folder with the photos of a judged answer."""
    return owner_folder(feedback.asked_by)


def append_feedback(path: Path, feedback: Feedback) -> None:
    """Append a line in a single synced write: processes never interleave lines, and a kill loses none.

    Raises OSError if the line does not fit on the disk; a part of it that was written is taken out again.
    """
    line = (json.dumps(vars(feedback)) + "\n").encode()
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size + len(line) > MAX_BYTES:
            raise DataError(f"{path} is full: {MAX_BYTES:,} bytes", remedy="Use it, and move it away")
        if os.write(file, line) < len(line):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(file)
    finally:
        os.close(file)


def read_feedback(path: Path) -> list[Feedback]:
    """Read an untrusted feedback file; raise DataError with the line number if a line is invalid."""
    found = []
    for number, line in enumerate(_content(path).split(b"\n"), 1):
        if not line.strip():
            continue
        try:
            found.append(_parsed(line))
        except (ValueError, RecursionError) as error:  # InvalidParameter is a ValueError
            raise DataError(
                f"{path}, line {number} is no feedback: {error}", remedy="Mend the line or take it out"
            ) from error
    return found


def _content(path: Path) -> bytes:
    """Read a regular file of at most `MAX_BYTES` bytes."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # opening a pipe would block
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{path} is no file", remedy="Name the file that `retrieval serve --feedback` writes")
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    if len(content) > MAX_BYTES:
        raise DataError(f"{path} has more than {MAX_BYTES:,} bytes", remedy="Use a part of it: one verdict is one line")
    return content


def _parsed(line: bytes) -> Feedback:
    """Parse a line into a verdict; raise ValueError if it is invalid."""
    if len(line) > MAX_LINE:
        raise ValueError(f"it has more than {MAX_LINE:,} bytes")
    values = json.loads(line, parse_constant=_refuse)
    if not isinstance(values, dict):
        raise ValueError("it is no JSON object")
    found: dict[str, Any] = {}
    for field in fields(Feedback):
        if field.name not in values:
            if field.name in LATER:
                continue
            raise ValueError(f"it lacks {field.name}")
        found[field.name] = _checked(field.name, values[field.name])
    return Feedback(**found)


def _checked(name: str, value: object) -> object:
    if name == "distance":
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not abs(value) <= FARTHEST:  # or NaN
            raise InvalidParameter(name, f"be a number of at most {FARTHEST:g}", value)
        return float(value)
    if name == "bbox":
        if value is not None and not isinstance(value, list):
            raise InvalidParameter(name, "be null or four numbers", value)
        return None if value is None else check_bbox(value)
    if name == "photos":
        if not isinstance(value, list) or len(value) > MOST_PHOTOS or not all(map(_is_photo, value)):
            raise InvalidParameter(name, f"be a list of at most {MOST_PHOTOS} names of photos", value)
        return tuple(value)
    if name in ("gallery_items", "gallery_version", "found_items"):
        if isinstance(value, bool) or not isinstance(value, int) or value < 0:
            raise InvalidParameter(name, "be a whole number from 0", value)
        return value
    if not isinstance(value, str) or as_utf8(value) != value:
        raise InvalidParameter(name, "be text", value)
    if name == "decision" and value not in (MATCH, NO_MATCH):
        raise InvalidParameter(name, f"be {MATCH} or {NO_MATCH}", value)
    return value


def _is_photo(name: object) -> bool:
    return isinstance(name, str) and PHOTO.fullmatch(name) is not None


def _refuse(constant: str) -> float:
    raise ValueError(f"{constant} is no JSON number")
