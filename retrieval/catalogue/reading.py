"""Read the photos of the next batches while earlier ones are decoded, and work on batches in threads."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar

from retrieval.errors import ImageRefused

from .photos import Photo

READERS = 32  # photos that are read at the same time
HELD = 2**28  # bytes of photos that wait to be used, above which no further photo is read ahead

Part = TypeVar("Part")
Result = TypeVar("Result")
Content = bytes | ImageRefused  # an encoded photo, or the reason why there is none


@dataclass
class _Held:
    """Number of bytes that were read ahead and wait to be used."""

    size: int = 0
    _lock: Lock = field(default_factory=Lock)

    def read(self, photo: Photo) -> Content | Photo:
        """Return the content of a photo, or the photo itself if too much is held."""
        if self.size >= HELD:
            return photo
        read = content(photo)
        self.change(_size(read))
        return read

    def change(self, size: int) -> None:
        with self._lock:
            self.size += size


@dataclass(frozen=True)
class ReadBatch:
    """Photos whose contents are being read."""

    photos: Sequence[Photo]
    _reads: deque[Future[Content | Photo] | Photo]
    _held: _Held

    def contents(self) -> Iterator[Content]:
        """Yield the content of each photo in order, once, so that it is freed as soon as it has been used."""
        while self._reads:
            read = self._reads.popleft()
            found = read.result() if isinstance(read, Future) else read
            if isinstance(found, Photo):
                yield content(found)
            else:
                self._held.change(-_size(found))
                yield found


def read_ahead(photos: Sequence[Photo], *, size: int) -> Iterator[ReadBatch]:
    """Yield batches of `size` photos. The reading of a batch begins when it is taken, so take it before it is needed.

    Up to READERS photos are read at the same time, so that a slow disk or network delays little. Photos that cannot be
    read ahead are read by `contents`, and so are further photos while HELD bytes wait to be used.
    """
    pool = ThreadPoolExecutor(READERS, thread_name_prefix="read")
    held = _Held()
    try:
        for start in range(0, len(photos), size):
            batch = photos[start : start + size]
            reads = [pool.submit(held.read, photo) if photo.reads_ahead else photo for photo in batch]
            yield ReadBatch(batch, deque(reads), held)
    finally:
        pool.shutdown(wait=False)


def content(photo: Photo) -> Content:
    """Return the encoded photo, or the reason why there is none."""
    try:
        return photo.read()
    except ImageRefused as error:
        return error


def _size(read: Content) -> int:
    return len(read) if isinstance(read, bytes) else 0


def in_order(work: Callable[[Part], Result], parts: Iterable[Part], *, threads: int) -> Iterator[Result]:
    """Yield the results of `work` on each part, in order; `threads` + 2 parts are taken before the first result."""
    with ThreadPoolExecutor(threads) as pool:
        waiting: deque[Future[Result]] = deque()
        for part in parts:
            waiting.append(pool.submit(work, part))
            if len(waiting) > threads + 1:
                yield waiting.popleft().result()
        while waiting:
            yield waiting.popleft().result()
