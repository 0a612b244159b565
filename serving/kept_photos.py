"""Photos of judged answers, kept in a folder that the operator names."""

from __future__ import annotations

import hashlib
import io
import logging
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from PIL import Image

from retrieval.files import explain, naming, write_file
from retrieval.images import Source, plain_source
from retrieval.images.formats import format_of
from retrieval.threshold.feedback import owner_folder

MOST_BYTES = 10 * 2**30  # of all photos in the folder
COUNTED_S = 60.0  # age in seconds up to which the counted sizes are used
log = logging.getLogger("retrieval.serving")


class KeptPhotos:
    """Writes photos to a folder, named by their content. Thread-safe.

    The photos of each API key are in a folder of their own. A key may use as many bytes as remain free, so one key uses
    at most half of MOST_BYTES. A server without keys may use all of them.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        self._counted, self._bytes = 0.0, Counter[str]()
        with naming(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._count()

    def keep(self, photos: Sequence[Source], key: str = "") -> tuple[str, ...]:
        """Write photos that a key sent and return the names of their files, none without room or after an error."""
        contents = {photo_name(content): content for content in map(encoded, photos)}
        owner = owner_folder(key)
        folder = self._folder / owner
        with self._lock:
            try:
                if time.monotonic() - self._counted > COUNTED_S:  # other workers write too, and operators delete
                    self._count()
                new = {name: content for name, content in contents.items() if not (folder / name).exists()}
                if new and not self._has_room(owner, sum(map(len, new.values()))):
                    log.warning("the folder of judged photos is full: feedback is recorded without its photo")
                    return ()
                if owner:
                    folder.mkdir(mode=0o700, exist_ok=True)
                for name, content in new.items():
                    write_file(folder / name, content, mode=0o600)
                    self._bytes[owner] += len(content)
            except OSError as error:
                log.warning("feedback is recorded without its photo: %s", explain(error))
                return ()
        return tuple(contents)

    def _has_room(self, owner: str, size: int) -> bool:
        free = MOST_BYTES - self._bytes.total() - size
        return free >= (self._bytes[owner] + size if owner else 0)

    def _count(self) -> None:
        """Count the bytes of the photos of each key; those of a server without keys are in the folder itself."""
        self._counted, self._bytes = time.monotonic(), Counter[str]()
        for entry in self._folder.iterdir():
            of_key = entry.is_dir() and not entry.is_symlink()
            for file in entry.iterdir() if of_key else (entry,):
                with suppress(FileNotFoundError):  # deleted meanwhile
                    self._bytes[entry.name if of_key else ""] += file.lstat().st_size


def photo_name(content: bytes) -> str:
    """Return the name of a photo's file: a hash of its content, and the suffix of its format."""
    form = format_of(content)
    return hashlib.sha256(content).hexdigest()[:32] + ("" if form is None else form.suffixes[0])


def encoded(photo: Source) -> bytes:
    """Return a photo as it was sent, or as PNG if it is a part of the one that was sent."""
    plain = plain_source(photo)
    if isinstance(plain, bytes):
        return plain
    if isinstance(plain, Path):
        return plain.read_bytes()
    file = io.BytesIO()
    plain.save(file, "PNG")
    return file.getvalue()


def size_of(photo: Source) -> int:
    """Return the memory that a photo takes, in bytes."""
    plain = plain_source(photo)
    if isinstance(plain, Image.Image):
        return plain.width * plain.height * len(plain.getbands())
    return len(plain) if isinstance(plain, bytes) else 0
