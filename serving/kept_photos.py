"""Photos of judged answers, kept in a folder that the operator names."""

from __future__ import annotations

import hashlib
import io
import logging
from collections.abc import Sequence
from pathlib import Path
from threading import Lock

from PIL import Image

from retrieval.files import explain, naming, write_file
from retrieval.formats import format_of
from retrieval.images import Source, plain_source

MOST_BYTES = 10 * 2**30  # of all photos in the folder
log = logging.getLogger("retrieval.serving")


class KeptPhotos:
    """Writes photos to a folder, named by their content. Thread-safe."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._lock = Lock()
        with naming(folder):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._bytes = sum(file.stat().st_size for file in folder.iterdir() if file.is_file())

    def keep(self, photos: Sequence[Source]) -> tuple[str, ...]:
        """Write photos and return the names of their files, none if the folder is full or cannot be written."""
        contents = {photo_name(content): content for content in map(encoded, photos)}
        with self._lock:
            new = {name: content for name, content in contents.items() if not (self._folder / name).exists()}
            size = sum(map(len, new.values()))
            if self._bytes + size > MOST_BYTES:
                log.warning("the folder of judged photos is full: feedback is recorded without its photo")
                return ()
            for name, content in new.items():
                try:
                    write_file(self._folder / name, content, mode=0o600)
                except OSError as error:
                    log.warning("feedback is recorded without its photo: %s", explain(error))
                    return ()
                self._bytes += len(content)
        return tuple(contents)


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
