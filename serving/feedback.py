"""Recent answers, kept in one table that all processes of a server share, and verdicts on them."""

from __future__ import annotations

import hashlib
import json
import logging
import os
import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Lock

from index.files import write_errors
from retrieval.errors import InvalidParameter, RetrievalError
from retrieval.feedback import FEEDBACK, Verdict, append_feedback
from retrieval.files import explain, naming, write_file
from retrieval.images.formats import format_of
from retrieval.retriever import Retriever
from retrieval.search.result import SearchResult

from .access.guard import Caller
from .access.limits import NoSuchThing

KEPT_PER_KEY = 4096  # newest answers of a key
PHOTO_BYTES_PER_KEY = 64 * 2**20  # photos of its newest answers
FOLDER_BYTES = 10 * 2**30  # all photos of judged answers
TRIM_EVERY = 64  # answers
BUSY_S = 1.0  # time to wait for the other processes
SCHEMA = """
CREATE TABLE IF NOT EXISTS answers (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL,
    request_id TEXT NOT NULL, answer TEXT NOT NULL, photo INTEGER, UNIQUE (key, request_id));
CREATE TABLE IF NOT EXISTS photos (number INTEGER PRIMARY KEY AUTOINCREMENT, key TEXT NOT NULL, content BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS verdicts (number INTEGER PRIMARY KEY, verdict TEXT NOT NULL, right_item_id TEXT NOT NULL);
CREATE INDEX IF NOT EXISTS answers_of_key ON answers (key, number);
CREATE INDEX IF NOT EXISTS photos_of_key ON photos (key, number);
"""
DROP_ANSWERS = """
DELETE FROM answers WHERE number IN (SELECT number FROM answers WHERE key = ? ORDER BY number DESC LIMIT -1 OFFSET ?)
"""
DROP_PHOTOS = """
DELETE FROM photos WHERE number IN (SELECT number FROM (
    SELECT number, sum(length(content)) OVER (ORDER BY number DESC) AS total FROM photos WHERE key = ?) WHERE total > ?)
"""
FIND = """
SELECT answers.number, answers.key, answer, content FROM answers LEFT JOIN photos ON photos.number = answers.photo
WHERE request_id = ? AND (answers.key = ? OR ?) ORDER BY answers.key = ? DESC, answers.number DESC LIMIT 1
"""
RECENT = """
SELECT request_id, answer, coalesce(verdict, ''), coalesce(right_item_id, ''), max(answers.number) AS newest
FROM answers JOIN photos ON photos.number = answers.photo LEFT JOIN verdicts ON verdicts.number = answers.number
WHERE json_extract(answer, '$.bbox') IS NULL GROUP BY request_id ORDER BY newest DESC LIMIT ?
"""  # the other columns are of the newest row
DROP_VERDICTS = "DELETE FROM verdicts WHERE number NOT IN (SELECT number FROM answers)"
PHOTO_OF = """
SELECT content FROM answers JOIN photos ON photos.number = answers.photo
WHERE request_id = ? AND json_extract(answer, '$.bbox') IS NULL ORDER BY answers.number DESC LIMIT 1
"""
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
        self._guard, self._added = Lock(), 0
        self._table = table = path.with_name(f"{path.name}.answers.sqlite")
        with naming(table):
            os.close(os.open(table, os.O_RDWR | os.O_CREAT, 0o600))
        if photos is not None:
            photos.mkdir(mode=0o700, parents=True, exist_ok=True)
        with self._using():
            self._database = sqlite3.connect(table, timeout=BUSY_S, isolation_level=None, check_same_thread=False)
            self._database.execute("PRAGMA journal_mode = WAL")
            self._database.execute("PRAGMA synchronous = OFF")  # answers need not survive a power cut
            self._database.executescript(SCHEMA)

    def close(self) -> None:
        """Close the table."""
        with self._guard:
            self._database.close()

    def keep(self, caller: Caller, results: Mapping[str, SearchResult], photo: bytes) -> None:
        """Keep what verdicts on the answers to a photo need, by request id, and the photo if photos are kept."""
        rows = [(caller.key, name, _facts(result)) for name, result in results.items() if result.nearest is not None]
        try:
            with self._guard, self._database:
                self._database.execute("BEGIN IMMEDIATE")
                number = None
                if self._photos is not None:
                    insert = "INSERT INTO photos VALUES (NULL, ?, ?)"
                    number = self._database.execute(insert, (caller.key, photo)).lastrowid
                    self._database.execute(DROP_PHOTOS, (caller.key, PHOTO_BYTES_PER_KEY))
                for row in rows:
                    self._database.execute("REPLACE INTO answers VALUES (NULL, ?, ?, ?, ?)", (*row, number))
                self._added += len(rows)
                if self._added >= TRIM_EVERY:
                    self._database.execute(DROP_ANSWERS, (caller.key, KEPT_PER_KEY))
                    self._database.execute(DROP_VERDICTS)
                    self._added = 0
        except sqlite3.Error as error:
            log.warning("an answer was not kept for feedback: %s", error)

    def record(
        self, retriever: Retriever, caller: Caller, request_id: str, verdict: Verdict, right_item_id: str = ""
    ) -> None:
        """Append the caller's verdict on one of its answers to the feedback file; an admin may judge any answer.

        Raises
        ------
        NoSuchThing
            If the answer is not kept, or the gallery does not have the item that is said to be right.
        DiskFull
            If the file cannot grow any more.
        """
        with self._using():
            found = self._database.execute(FIND, (request_id, caller.key, caller.is_admin, caller.key)).fetchone()
        if found is None:
            raise NoSuchThing(
                "this request id is unknown, or its answer is no longer kept",
                remedy=f"Judge one of your newest {KEPT_PER_KEY:,} answers, with the key that asked for it",
            )
        if right_item_id and verdict != "wrong":
            raise InvalidParameter("verdict", "be wrong if another item is named", verdict)
        if right_item_id and not retriever.gallery.photos(right_item_id):
            raise NoSuchThing("the gallery does not have this item", remedy="Send an item_id of the gallery")
        number, asked_by, answer, photo = found
        facts = json.loads(answer) | {"verdict": verdict, "request_id": request_id, "right_item_id": right_item_id}
        facts |= {"time": datetime.now(UTC).isoformat(timespec="seconds"), "asked_by": asked_by, "key": caller.key}
        facts["photo"] = "" if photo is None else self._write(photo)
        with write_errors(self._path):
            append_feedback(self._path, FEEDBACK.validate_json(json.dumps(facts)))
        try:
            with self._guard:
                self._database.execute("REPLACE INTO verdicts VALUES (?, ?, ?)", (number, verdict, right_item_id))
        except sqlite3.Error as error:
            log.warning("a verdict is in the feedback file, but is not shown for review: %s", error)

    def recent(self) -> list[dict[str, str]]:
        """Return the recent answers to whole photos that are kept, newest first, with the last verdict on each.

        Clients may choose request ids. Of several answers with one id, the newest is returned.
        """
        with self._using():
            rows = self._database.execute(RECENT, (MOST_RECENT,)).fetchall()
        found = []
        for request_id, answer, verdict, right, _ in rows:
            facts = json.loads(answer)
            told = {"request_id": request_id, "decision": facts["decision"], "item_id": facts.get("item_id", "")}
            found.append({**told, "verdict": verdict, "right_item_id": right})
        return found

    def photo(self, request_id: str) -> bytes | None:
        """Return the photo of the newest answer to a whole photo with a request id, None if it is not kept."""
        with self._using():
            row = self._database.execute(PHOTO_OF, (request_id,)).fetchone()
        return None if row is None else bytes(row[0])

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
        """Write a photo to the folder and return its name; "" without room or after an error."""
        form, folder = format_of(photo), self._photos
        name = hashlib.sha256(photo).hexdigest()[:32] + ("" if form is None else form.suffixes[0])
        if folder is None or (folder / name).exists():
            return "" if folder is None else name
        try:
            if sum(file.lstat().st_size for file in folder.iterdir()) + len(photo) > FOLDER_BYTES:
                log.warning("the folder of judged photos is full: feedback is recorded without its photo")
                return ""
            write_file(folder / name, photo, mode=0o600)
        except OSError as error:
            log.warning("feedback is recorded without its photo: %s", explain(error))
            return ""
        return name


def _facts(result: SearchResult) -> str:
    """Return what a verdict on an answer needs, as JSON."""
    facts = {name: getattr(result, name) for name in ("decision", "bundle_id", "gallery_version")}
    nearest = result.nearest
    named = {} if nearest is None else {"item_id": nearest.item_id, "distance": nearest.distance}
    return json.dumps({**facts, **named, "bbox": result.box})
