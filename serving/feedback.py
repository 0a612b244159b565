"""Recent answers, kept for a day in one table that all processes of a server share, and verdicts on them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock
from typing import Literal

from index.files import write_errors
from retrieval.catalogue.photos import Photo
from retrieval.errors import InvalidParameter, RetrievalError
from retrieval.feedback import FEEDBACK, UNDONE, Verdict, append_feedback, labelled_photos, read_feedback
from retrieval.files import explain, naming, write_file
from retrieval.images.formats import format_of
from retrieval.retriever import Retriever
from retrieval.search.result import PHOTO, SearchResult

from .access.keys import Caller
from .errors import NotFound, PhotoChanged

KEPT_S = 24 * 3600.0  # time in which an answer can be judged
BUSY_S = 1.0  # time to wait for the other processes
SCHEMA = """
DROP TABLE IF EXISTS verdicts; DROP TABLE IF EXISTS photos; DROP TABLE IF EXISTS answers;  -- of version 0.2.0
CREATE TABLE IF NOT EXISTS recent (number INTEGER PRIMARY KEY AUTOINCREMENT, time REAL NOT NULL, key TEXT NOT NULL,
    request_id TEXT NOT NULL, answer TEXT NOT NULL, verdict TEXT NOT NULL DEFAULT '',
    right_item_id TEXT NOT NULL DEFAULT '', photo_of INTEGER, photo BLOB, UNIQUE (key, request_id));
CREATE INDEX IF NOT EXISTS time_of_recent ON recent (time);
"""  # the answers to parts of one photo refer to the row that holds it
KEEP = "REPLACE INTO recent (time, key, request_id, answer, photo_of, photo) VALUES (?, ?, ?, ?, ?, ?)"
FIND = """
SELECT recent.number, recent.key, recent.answer, coalesce(recent.photo, whole.photo), recent.verdict
FROM recent LEFT JOIN recent AS whole ON whole.number = recent.photo_of
WHERE recent.request_id = ? AND (recent.key = ? OR ?) ORDER BY recent.key = ? DESC, recent.number DESC LIMIT 1
"""
JUDGE = "UPDATE recent SET verdict = ?, right_item_id = ? WHERE number = ?"
WHOLE_PHOTOS = "FROM recent WHERE photo IS NOT NULL AND json_extract(answer, '$.bbox') IS NULL"
RECENT = f"SELECT request_id, answer, verdict, right_item_id {WHOLE_PHOTOS} ORDER BY number DESC LIMIT ?"
DIGEST = "photo_digest"  # in an answer: identifies its photo
PHOTO_OF = f"SELECT photo {WHOLE_PHOTOS} AND request_id = ? ORDER BY number DESC LIMIT 1"
MOST_RECENT = 1000
log = logging.getLogger("retrieval.serving")


class FeedbackRecorder:
    """Keeps recent answers, and appends verdicts on them to the feedback file. Thread-safe.

    Parameters
    ----------
    path:
        Feedback file. The table of recent answers is beside it, so all processes with this file know all answers.
    photos:
        Folder for the photos of judged answers; None keeps no photos.
    """

    def __init__(self, path: Path, photos: Path | None = None) -> None:
        if path.is_dir():
            raise InvalidParameter(
                "feedback", "be a file", str(path), remedy=f"Name a new one: {path / 'feedback.jsonl'}"
            )
        self._path, self._photos = path, photos
        self._guard = Lock()
        self._table = table = path.with_name(f"{path.name}.answers.sqlite")
        with naming(table):
            os.close(os.open(table, os.O_RDWR | os.O_CREAT, 0o600))
        if photos is not None:
            photos.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._using():
            self._database = sqlite3.connect(table, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA synchronous = OFF")  # answers need not survive a power cut
            self._database.executescript(SCHEMA)

    def close(self) -> None:
        """Close the table."""
        with self._guard:
            self._database.close()

    def keep(self, caller: Caller, results: Mapping[str, SearchResult], photo: bytes) -> None:
        """Keep what verdicts on the answers to a photo need, by request id, and the photo if photos are kept."""
        now, sent = time.time(), None if self._photos is None else photo
        digest = "" if sent is None else digest_of(sent)
        rows = [(now, caller.key, name, _facts(result, digest)) for name, result in results.items() if result.nearest]
        try:
            with self._guard, self._database:
                self._database.execute("BEGIN IMMEDIATE")
                self._database.execute("DELETE FROM recent WHERE time < ?", (now - KEPT_S,))
                first = None  # row with the photo
                for row in rows:
                    added = self._database.execute(KEEP, (*row, first, sent if first is None else None)).lastrowid
                    first = first or added
        except sqlite3.Error as error:
            log.warning("an answer was not kept for feedback: %s", error)

    def record(
        self,
        retriever: Retriever,
        caller: Caller,
        request_id: str,
        verdict: Verdict | Literal["undone"],
        right_item_id: str = "",
        *,
        seen: str = "",
    ) -> None:
        """Append the caller's verdict on one of its answers to the feedback file; an admin may judge any answer.

        With UNDONE, the last verdict of the caller on the answer does not count any more. `seen` is the digest of the
        photo that the verdict is about, if it is known.

        Raises
        ------
        PhotoChanged
            If the answer with this request id is about another photo than the one that was seen.
        NotFound
            If the answer is not kept or has no verdict to undo, or the gallery does not have the right item.
        DiskFull
            If the file cannot grow any more.
        """
        with self._using():
            row = self._database.execute(FIND, (request_id, caller.key, caller.is_admin, caller.key)).fetchone()
        if row is None:
            raise NotFound(
                "this request id is unknown, or its answer is no longer kept",
                remedy="Judge an answer within a day, with the key that asked for it",
            )
        if right_item_id and verdict != "wrong":
            raise InvalidParameter("verdict", "be wrong if another item is named", verdict)
        if right_item_id and not retriever.gallery.photos(right_item_id):
            raise NotFound("the gallery does not have this item", remedy="Send an item_id of the gallery")
        number, asked_by, answer, photo, judged = row
        if verdict == UNDONE and not judged:
            raise NotFound("this answer has no verdict that could be undone")
        if seen and seen != json.loads(answer).get(DIGEST):
            raise PhotoChanged("another search has this request id now", remedy="Load the answers again")
        facts = json.loads(answer) | {"verdict": verdict, "request_id": request_id, "right_item_id": right_item_id}
        facts |= {"time": datetime.now(UTC).isoformat(timespec="seconds"), "asked_by": asked_by, "key": caller.key}
        facts["photo"] = "" if photo is None else self._write(photo)
        with write_errors(self._path):
            append_feedback(self._path, FEEDBACK.validate_json(json.dumps(facts)))
        try:
            with self._guard:
                self._database.execute(JUDGE, ("" if verdict == UNDONE else verdict, right_item_id, number))
        except sqlite3.Error as error:
            log.warning("a verdict is in the feedback file, but is not shown for review: %s", error)

    def recent(self) -> list[dict[str, str]]:
        """Return the recent answers to whole photos that are kept, newest first, with the last verdict on each.

        Clients may choose request ids. Of several answers with one id, the newest is returned. Of several answers to
        one photo, one that was judged is returned, or else the newest.
        """
        with self._using():
            rows = self._database.execute(RECENT, (MOST_RECENT,)).fetchall()
        newest: dict[str, dict[str, str]] = {}
        for request_id, answer, verdict, right in rows:
            facts = json.loads(answer)
            answered = {"request_id": request_id, "decision": facts["decision"], "item_id": facts.get("item_id", "")}
            answered["photo"] = facts.get(DIGEST) or request_id
            newest.setdefault(request_id, {**answered, "verdict": verdict, "right_item_id": right})
        photos: dict[str, dict[str, str]] = {}
        for each in newest.values():
            if each["photo"] not in photos or (each["verdict"] and not photos[each["photo"]]["verdict"]):
                photos[each["photo"]] = each
        return list(photos.values())

    def photo(self, request_id: str) -> tuple[bytes, str] | None:
        """Return photo and digest of the newest answer to a whole photo with a request id, None if it is not kept."""
        with self._using():
            row = self._database.execute(PHOTO_OF, (request_id,)).fetchone()
        return None if row is None else (bytes(row[0]), digest_of(bytes(row[0])))

    def labelled(self) -> list[Photo]:
        """Return the judged photos with the items that they show; raise NotFound or DataError if there are none."""
        if self._photos is None or not self._path.is_file():
            raise NotFound(
                "no judged photos are kept", remedy="Judge answers on a server with --feedback-photos FOLDER"
            )
        return labelled_photos(read_feedback(self._path), self._photos)[0]

    @contextmanager
    def _using(self) -> Iterator[None]:
        """Hold the table, and turn its errors into one that names it."""
        try:
            with self._guard:
                yield
        except sqlite3.Error as error:
            raise RetrievalError(
                f"{self._table}, the table of recent answers, cannot be used: {error}",
                remedy="Make room on its disk, or remove a damaged table, and start the server again",
            ) from error

    def _write(self, photo: bytes) -> str:
        """Write a photo to the folder and return its name; "" after an error."""
        form, folder = format_of(photo), self._photos
        name = digest_of(photo) + ("" if form is None else form.suffixes[0])
        if folder is None or (folder / name).exists():
            return "" if folder is None else name
        try:
            write_file(folder / name, photo, mode=0o600)
        except OSError as error:
            log.warning("feedback is recorded without its photo: %s", explain(error))
            return ""
        return name


def digest_of(photo: bytes) -> str:
    """Return what identifies a photo: the begin of its SHA-256."""
    return hashlib.sha256(photo).hexdigest()[:32]


def _facts(result: SearchResult, digest: str) -> str:
    """Return what a verdict on an answer needs, as JSON, given what identifies its photo if that is kept."""
    facts = {name: getattr(result, name) for name in ("decision", "bundle_id", "gallery_version")}
    nearest = result.nearest
    named = {} if nearest is None else {"item_id": nearest.item_id, "distance": nearest.distance}
    asked = result.box if result.look == PHOTO else None  # a second look has a box, too, but the photo is judged
    return json.dumps({**facts, **named, "bbox": asked, **({DIGEST: digest} if digest else {})})
