"""Files of answers, to which an interrupted search can append: JSON lines, or parquet made from them at the end.

The first line of a JSON-lines file has the options of the search under `head`; each further line is the answer to one
photo. Lines are appended batch by batch, and an incomplete last line is removed when the search continues. While a
search writes a parquet file, its answers are in the JSON-lines file NAME.partial.
"""

from __future__ import annotations

import fcntl
import json
import os
import stat
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from retrieval.errors import DataError, InvalidParameter
from retrieval.files import naming

from .parquet import head_of_parquet, lines_of_parquet, write_parquet

FORMAT = "retrieval-answers-1"
HEAD = "head"
LINES, PARQUET = (".jsonl", ".ndjson"), (".parquet", ".pq")
ANOTHER = "Choose a new name"

Line = dict[str, Any]


def check_output(path: Path) -> None:
    """Raise InvalidParameter unless the name of the file ends in .jsonl or .parquet (or .ndjson, .pq)."""
    if path.suffix.lower() not in (*LINES, *PARQUET):
        raise InvalidParameter("output", "end in .jsonl or .parquet", str(path))


@contextmanager
def open_answers(path: Path, options: Mapping[str, Any]) -> Iterator[AnswersFile]:
    """Open or create a file of answers. A parquet file is written when the block ends without an error.

    Raises DataError if the file is not a file of answers, has other options, or is open in another process.
    """
    check_output(path)
    head = {HEAD: {"format": FORMAT, **options}}
    if path.suffix.lower() in LINES:
        with _locked(path, head) as answers:
            yield answers
            answers.sync()
        return
    partial = path.with_name(f"{path.name}.partial")
    if path.exists():
        _check_head(path, {HEAD: head_of_parquet(path)}, head)
    with _locked(partial, head) as answers:
        if path.exists() and not answers.done:
            answers.append(list(lines_of_parquet(path)))
        yield answers
        write_parquet(path, head[HEAD], answers.lines())
        partial.unlink()


class AnswersFile:
    """A locked JSON-lines file of answers."""

    def __init__(self, path: Path, file: IO[bytes]) -> None:
        self.path = path
        self._file = file
        self.done = {str(line["photo_id"]) for line in self.lines()}  # photos that have an answer

    def append(self, lines: Sequence[Line]) -> None:
        """Append answers; raise OSError unless all of them are written."""
        with naming(self.path):
            self._file.seek(0, os.SEEK_END)
            _write(self._file, b"".join(_encoded(line) for line in lines))
        self.done.update(str(line["photo_id"]) for line in lines)

    def lines(self) -> Iterator[Line]:
        """Yield the answers so far."""
        with self.path.open("rb") as file:
            next(file)
            for number, text in enumerate(file, 2):
                yield _decoded(self.path, number, text)

    def sync(self) -> None:
        """Flush the file to disk."""
        with naming(self.path):
            os.fsync(self._file.fileno())


@contextmanager
def _locked(path: Path, head: Line) -> Iterator[AnswersFile]:
    with naming(path):
        number = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK, 0o666)  # reading a pipe would block
        file = os.fdopen(number, "r+b", buffering=0)
    with file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise DataError(f"{path} is not a regular file", remedy=ANOTHER)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            is_removed = not path.exists() or path.stat().st_ino != os.fstat(file.fileno()).st_ino
        except BlockingIOError:
            is_removed = True
        if is_removed:
            raise DataError(f"another process is writing {path}", remedy="Wait until it has finished")
        _start(path, file, head)
        yield AnswersFile(path, file)


def _start(path: Path, file: IO[bytes], head: Line) -> None:
    """Write the head of a new file, or check it and cut off a line without an end."""
    first = _encoded(head)
    start = file.readline()
    end = file.tell()
    for line in file:
        end += len(line) if line.endswith(b"\n") else 0
    cut_off = first.startswith(start) and start != first
    stored = {} if cut_off else _decoded(path, 1, start)
    if cut_off or (end == len(start) and _is_head(stored)):  # no answers, so the options may change
        file.seek(0)
        with naming(path):
            file.truncate()
            _write(file, first)
        return
    _check_head(path, stored, head)
    file.truncate(end)


def _check_head(path: Path, stored: Line, head: Line) -> None:
    """Raise DataError unless the answers of a file were found with the same options."""
    if not _is_head(stored):
        raise DataError(f"{path} is not a file of answers", remedy=ANOTHER)
    before = stored[HEAD]
    for name, value in head[HEAD].items():
        if before.get(name) != value:
            raise DataError(
                f"{path} has answers with the {name.replace('_', ' ')} {_shown(before.get(name))}, "
                f"and this search has {_shown(value)}",
                remedy=f"{ANOTHER}, or search with the same options to continue",
            )


def _is_head(line: Line) -> bool:
    head = line.get(HEAD)
    return isinstance(head, dict) and head.get("format") == FORMAT


def _shown(value: Any) -> str:
    return ", ".join(map(str, value)) if isinstance(value, list) else repr(value)


def _encoded(line: Line) -> bytes:
    """Return a line; what UTF-8 cannot encode, as the name of a file may have it, is written as a JSON escape."""
    return json.dumps(line, ensure_ascii=False).encode(errors="backslashreplace") + b"\n"


def _write(file: IO[bytes], content: bytes) -> None:
    """Write all of the content to an unbuffered file, which may take only a part of it at a time."""
    rest = memoryview(content)
    while rest:
        rest = rest[file.write(rest) :]


def _decoded(path: Path, number: int, text: bytes) -> Line:
    try:
        line = json.loads(text)
        if number == 1 or "photo_id" in line:
            return dict(line)
    except (ValueError, TypeError) as error:
        raise DataError(f"{path}, line {number} is not an answer: {error}", remedy=ANOTHER) from error
    raise DataError(f"{path}, line {number} is not an answer", remedy=ANOTHER)
