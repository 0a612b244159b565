"""Feedback on answers: a log of verdicts that servers append to, and labelled photos made of it.

A verdict says which item a photo shows ("right", or "wrong" with the right item), that it shows no item of the
catalogue ("unknown", or "right" about a no-match), or only that the answer is "wrong". A later line can undo it.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import stat
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Literal

from pydantic import AfterValidator, ConfigDict, Field, FiniteFloat, TypeAdapter, ValidationError
from pydantic.dataclasses import dataclass

from retrieval.catalogue.photos import Photo
from retrieval.errors import DataError, InvalidParameter, listed
from retrieval.search.boxes import check_bbox
from retrieval.search.result import MATCH, NO_MATCH, PERHAPS, BBox

Verdict = Literal["right", "wrong", "unknown"]
RIGHT, WRONG, UNKNOWN = ("right", "wrong", "unknown")
UNDONE: Literal["undone"] = "undone"  # takes back the last verdict of the same key on the same answer
MAX_LINE = 16 * 1024  # bytes per line
NAME_FILE = "Name the file that `retrieval serve --feedback` writes"
PHOTO = re.compile(r"[0-9a-f]{32}(\.[a-z]{3,4})?")  # name of a kept photo: a hash of its content, and its suffix
SOURCE = "feedback"  # in the column `source` of a labelled table
UNKNOWN_ITEM = ""  # item_id of a photo that shows no item of the catalogue
NOT_KEPT, GONE = "without a kept photo", "whose photo is no longer in the folder"
NO_LABEL, CONTRADICTED = "without the item that is right", "contradicted by another"


@dataclass(frozen=True, config=ConfigDict(strict=True))
class Feedback:
    """A verdict on an answer, or its undoing."""

    verdict: (
        Verdict | Literal["undone"]
    )  # right, wrong (another item is right) or unknown (the item is not in the catalogue)
    decision: Literal["match", "perhaps", "no_match", "ranked"]  # of the answer
    item_id: str  # nearest item, match or not
    distance: FiniteFloat  # to the nearest item
    bundle_id: str
    gallery_version: Annotated[int, Field(ge=0)]
    time: str  # ISO 8601, UTC
    request_id: str  # of the answer
    asked_by: str = ""  # name of the key that searched; empty on a server without keys
    key: str = ""  # name of the key that gave the verdict
    right_item_id: str = ""  # item that is right, with the verdict "wrong"; empty if it was not named
    photo: Annotated[str, Field(pattern=f"^({PHOTO.pattern})?$")] = ""  # name of the kept photo; empty if there is none
    bbox: Annotated[BBox, AfterValidator(check_bbox)] | None = None  # the part that was searched; None: the whole photo

    def __post_init__(self) -> None:
        if self.right_item_id and self.verdict != WRONG:
            raise InvalidParameter("verdict", f"be {WRONG} where another item is named", self.verdict)

    @property
    def label(self) -> str | None:
        """The item that the photo shows, "" if it shows none of the catalogue, None if the verdict does not say."""
        if self.verdict == UNKNOWN or (self.verdict == RIGHT and self.decision == NO_MATCH):
            return UNKNOWN_ITEM
        return self.item_id if self.verdict == RIGHT else self.right_item_id or None

    @property
    def denied(self) -> str | None:
        """The answer that the verdict calls wrong without naming the right one; "" is a no-match."""
        if self.label is not None:
            return None
        return self.item_id if self.decision in (MATCH, PERHAPS) else UNKNOWN_ITEM


FEEDBACK = TypeAdapter(Feedback)


def append_feedback(path: Path, feedback: Feedback) -> None:
    """Append a line in a single synced write: processes never interleave lines, and a kill loses none.

    A line before it that was cut off is ended first.

    Raises OSError if the line does not fit on the disk; a part that was written is removed again.
    """
    line = FEEDBACK.dump_json(feedback) + b"\n"
    file = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_NONBLOCK, 0o600)
    try:
        fcntl.flock(file, fcntl.LOCK_EX)
        size = os.fstat(file).st_size
        if size and os.pread(file, 1, size - 1) != b"\n":
            line = b"\n" + line
        if os.write(file, line) < len(line):
            os.ftruncate(file, size)
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))
        os.fsync(file)
    finally:
        os.close(file)


def read_feedback(path: Path) -> list[Feedback]:
    """Read an untrusted feedback file; raise DataError with the numbers of invalid lines."""
    found, refused = [], []
    for number, line in enumerate(_lines(path), 1):
        if not line.strip():
            continue
        try:
            if len(line) > MAX_LINE:
                raise ValueError(f"it has more than {MAX_LINE:,} bytes")
            found.append(FEEDBACK.validate_json(line))
        except ValueError as error:  # also ValidationError and InvalidParameter
            why = str(error) if not isinstance(error, ValidationError) else _first(error)
            refused.append(f"line {number} is not a verdict: {why}")
    if refused and not found:  # such as another table
        raise DataError(f"{path} has no verdicts: {refused[0]}", remedy=NAME_FILE)
    if refused:
        raise DataError(f"{path}, {listed(refused, between='; ')}", remedy="Mend these lines or take them out")
    return found


def labelled_photos(feedback: Sequence[Feedback], folder: Path) -> tuple[list[Photo], Counter[str]]:
    """Return the kept photos in a folder with the items that they show, and the numbers of verdicts left out by reason.

    Of several verdicts on one photo or part, the last one of each key counts. If these do not agree, it gets no label.
    A verdict that was undone does not count.

    Raises
    ------
    DataError
        If no photo gets a label.
    """
    by_photo: dict[tuple[str, BBox | None], dict[str, Feedback]] = defaultdict(dict)
    feedback = _standing(feedback)
    for verdict in feedback:
        of_keys = by_photo[verdict.photo, verdict.bbox]
        of_keys.pop(verdict.key, None)  # the newest is last
        of_keys[verdict.key] = verdict
    unkept = [verdict for verdict in feedback if not verdict.photo]
    left_out, photos = Counter({NOT_KEPT: len(unkept)} if unkept else {}), []
    for (name, _), of_keys in by_photo.items():
        verdicts, path = list(of_keys.values()), folder / name
        labels = {verdict.label for verdict in verdicts if verdict.label is not None}
        if not name:
            continue
        if len(labels) > 1 or labels & {verdict.denied for verdict in verdicts}:
            left_out[CONTRADICTED] += len(verdicts)
        elif not labels:
            left_out[NO_LABEL] += len(verdicts)
        elif not path.is_file() or path.is_symlink():  # the server writes files, so a link is not one of its photos
            left_out[GONE] += len(verdicts)
        else:
            photos.append(_photo(path, labels.pop() or UNKNOWN_ITEM, verdicts))
    if not photos:
        reasons = ", ".join(f"{count} {why}" for why, count in left_out.items())
        raise DataError(
            f"none of the {len(feedback)} verdicts labels a photo: {reasons or 'there are none'}",
            remedy="Keep the photos of judged answers: serve with --feedback-photos FOLDER",
        )
    return photos, left_out


def _standing(feedback: Sequence[Feedback]) -> list[Feedback]:
    """Return the verdicts that were not undone, in their order."""
    standing: dict[int, Feedback] = {}
    given: dict[tuple[str, str, str], list[int]] = defaultdict(list)  # places of verdicts by answer and key
    for place, verdict in enumerate(feedback):
        places = given[verdict.asked_by, verdict.request_id, verdict.key]
        if verdict.verdict != UNDONE:
            standing[place] = verdict
            places.append(place)
        elif places:
            del standing[places.pop()]
    return list(standing.values())


def _photo(path: Path, item_id: str, verdicts: Sequence[Feedback]) -> Photo:
    """Return a labelled photo with the facts of its newest verdict as metadata."""
    newest = verdicts[-1]
    names = ("verdict", "decision", "time", "request_id", "bundle_id", "gallery_version")
    metadata = {name: getattr(newest, name) for name in names}
    metadata |= {"answered_item": newest.item_id, "reviewed_by": newest.key, "reviews": len(verdicts)}
    part = "" if newest.bbox is None else " " + ",".join(f"{side:g}" for side in newest.bbox)
    name = f"{SOURCE}/{path.stem}{part}"
    return Photo(name, path, item_id, source=SOURCE, bbox=newest.bbox, metadata=metadata)


def _lines(path: Path) -> Iterator[bytes]:
    """Yield the lines of a regular file. It ends with the start of a line of more than `MAX_LINE` bytes, if any."""
    try:
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:  # opening a pipe would block
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise DataError(f"{path} is not a file", remedy=NAME_FILE)
            while line := file.readline(MAX_LINE + 2):
                yield line.removesuffix(b"\n")
                if len(line) > MAX_LINE + 1:
                    return
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}", remedy=NAME_FILE) from error


def _first(error: ValidationError) -> str:
    """Return the first fault of a line, with the name of its field if it is in one."""
    fault = error.errors(include_url=False, include_input=False)[0]
    return ": ".join(filter(None, (".".join(map(str, fault["loc"])), fault["msg"])))[:300]
