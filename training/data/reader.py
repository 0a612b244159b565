"""Photos to batches: decoded, cached in memory, and augmented for training.

Decoding, and resizing for evaluation, are those of `retrieval.images`, which serves: another resampler would move the
distances.
Symbols: n = photos of a batch, r = this process's share of them.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, TypeVar

import numpy as np
from PIL import Image
from tqdm import tqdm

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, ImageRefused, command
from retrieval.images import Preprocessing, center_crop_resize, crop, open_image
from retrieval.process import threads_of_share

from .augmentation import SEEDS, Augmentation

T = TypeVar("T")

CACHE_BYTES = 4 * 2**30
PREFETCH = 3  # batches prepared ahead of the step
NAMED = 3  # photos that an error names
REMEDY = (
    f"List all such photos with `{command('data', 'check', 'CATALOGUE', '--report', 'check.json')}`, "
    "then repair or remove them"
)
SHARE = 4  # photos that a thread takes at a time


class Decoded(NamedTuple):
    """A decoded photo, uint8 (h, w, 3); not `exact` if it was reduced for training."""

    pixels: np.ndarray
    exact: bool


class PhotoReader:
    """Reads photos as upright RGB, and caches them decoded in `cache_bytes` of memory.

    A cached photo has the same pixels as one read from its file. Any number of threads may read.
    """

    def __init__(
        self,
        photos: Sequence[Photo],
        preprocessing: Preprocessing,
        *,
        cache_bytes: int = CACHE_BYTES,
    ) -> None:
        self._photos = photos
        self._preprocessing = preprocessing
        self._room = cache_bytes
        self._kept: dict[int, Decoded] = {}
        self._lock = threading.Lock()

    @property
    def size(self) -> int:
        """Side of what the model sees, in pixels."""
        return self._preprocessing.size

    def __getitem__(self, position: int) -> np.ndarray:
        """Return a photo for augmentation, uint8 (h, w, 3), read-only. Very large ones are reduced in size."""
        return self._training_view(position).pixels

    def pixels(self, positions: Sequence[int]) -> np.ndarray:
        """Return uint8 (n, size, size, 3), with the preprocessing that serves."""
        return np.stack([center_crop_resize(self._exact(position), self._preprocessing) for position in positions])

    def image(self, position: int) -> Image.Image:
        """Return an upright RGB photo, cropped to its bbox, at the size at which it is decoded for the model."""
        return self._exact(position)

    def _training_view(self, position: int) -> Decoded:
        view = self._kept.get(position)
        if view is None:
            view = self._reduced(self._decoded(position))
            self._keep(position, view)
        return view

    def _exact(self, position: int) -> Image.Image:
        """Return a photo at the full decoded size."""
        view = self._kept.get(position)
        if view is not None and view.exact:
            return Image.fromarray(view.pixels)
        image = self._decoded(position)
        if view is None and (view := self._reduced(image)).exact:
            self._keep(position, view)
        return image

    def _reduced(self, image: Image.Image) -> Decoded:
        factor = min(image.size) // (2 * self._preprocessing.min_side)
        if factor < 2:
            return Decoded(np.asarray(image), exact=True)
        return Decoded(np.asarray(image.reduce(factor)), exact=False)

    def _keep(self, position: int, view: Decoded) -> None:
        """Cache a photo in memory if there is room."""
        with self._lock:
            if view.pixels.nbytes <= self._room and position not in self._kept:
                self._room -= view.pixels.nbytes
                self._kept[position] = view

    def _decoded(self, position: int) -> Image.Image:
        photo = self._photos[position]
        try:
            return crop(
                open_image(photo.read(), min_side=self._preprocessing.min_side if photo.bbox is None else 0), photo.bbox
            )
        except ImageRefused as error:
            raise DataError(
                f"{photo.path}: {error.message}",
                remedy=REMEDY,
            ) from error


def require_readable(photos: Sequence[Photo], preprocessing: Preprocessing) -> None:
    """Open every photo as training does; raise a DataError that counts the photos that cannot be used."""
    reader = PhotoReader(photos, preprocessing, cache_bytes=0)

    def refusal(position: int) -> str:
        try:
            reader[position]
        except DataError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(threads_of_share()) as pool:
        messages = pool.map(refusal, range(len(photos)))
        refusals = [text for text in tqdm(messages, desc="checking", unit="photo", total=len(photos)) if text]
    if refusals:
        more = f"; and {len(refusals) - NAMED} more" if len(refusals) > NAMED else ""
        raise DataError(
            f"{len(refusals)} of the {len(photos)} photos to train on cannot be used: "
            f"{'; '.join(refusals[:NAMED])}{more}",
            remedy=REMEDY,
        )


def training_batches(
    reader: PhotoReader,
    augmentation: Augmentation,
    batches: Iterable[np.ndarray],
    *,
    seed: tuple[int, ...],
    part: tuple[int, int] = (0, 1),
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (positions (r,), uint8 pixels (r, size, size, 3)) of each batch, prefetched by several threads.

    Parameters
    ----------
    batches:
        Positions (n,) of the photos of each batch, for all processes together.
    seed:
        Decides the augmentation of each photo together with the number of the batch and the place in it, for any
        number of threads and processes.
    part:
        (rank, number of processes): the part of `np.array_split` of a batch that this process yields.
    """
    rank, processes = part

    def jobs() -> Iterator[tuple[tuple[np.ndarray, np.ndarray], list[Callable[[], None]]]]:
        for number, batch in enumerate(batches):
            seeds = np.random.default_rng((*seed, number)).integers(SEEDS, size=len(batch))
            rows = np.array_split(np.arange(len(batch)), processes)[rank]
            positions = batch[rows]
            pixels = np.empty((len(rows), augmentation.size, augmentation.size, 3), np.uint8)
            yield (positions, pixels), _parts(partial(augment, positions, seeds[rows], pixels), len(rows))

    def augment(positions: np.ndarray, seeds: np.ndarray, pixels: np.ndarray, block: slice) -> None:
        for row in range(*block.indices(len(positions))):
            pixels[row] = augmentation.crop(reader[int(positions[row])], int(seeds[row]))

    return prefetch_parallel(jobs(), threads=threads_of_share(), depth=PREFETCH)


def evaluation_batches(reader: PhotoReader, positions: Sequence[int], *, batch_size: int = 64) -> Iterator[np.ndarray]:
    """Yield uint8 (≤ batch_size, size, size, 3) of photos in order, prefetched by several threads."""

    def jobs() -> Iterator[tuple[np.ndarray, list[Callable[[], None]]]]:
        for start in range(0, len(positions), batch_size):
            chosen = positions[start : start + batch_size]
            pixels = np.empty((len(chosen), reader.size, reader.size, 3), np.uint8)
            yield pixels, _parts(partial(squares, chosen, pixels), len(chosen))

    def squares(chosen: Sequence[int], pixels: np.ndarray, block: slice) -> None:
        pixels[block] = reader.pixels(chosen[block])

    return prefetch_parallel(jobs(), threads=threads_of_share(), depth=PREFETCH)


def _parts(work: Callable[[slice], None], count: int) -> list[Callable[[], None]]:
    return [partial(work, slice(start, start + SHARE)) for start in range(0, count, SHARE)]


def prefetch_parallel(jobs: Iterable[tuple[T, list[Callable[[], None]]]], *, threads: int, depth: int) -> Iterator[T]:
    """Yield the results of jobs (result, parts that fill it) in order, running `depth` jobs ahead.

    The parts run in `threads` threads, in the order of the jobs. Jobs are drawn in the consuming thread, which also
    receives the errors of parts. Closing waits for running parts and cancels the others.
    """
    waiting: deque[tuple[T, list[Future[None]]]] = deque()
    pool = ThreadPoolExecutor(threads, thread_name_prefix="prefetch")
    try:
        for result, parts in jobs:
            waiting.append((result, [pool.submit(part) for part in parts]))
            if len(waiting) > depth:
                yield _done(*waiting.popleft())
        while waiting:
            yield _done(*waiting.popleft())
    finally:
        pool.shutdown(wait=True, cancel_futures=True)


def _done(result: T, futures: list[Future[None]]) -> T:
    for future in futures:
        future.result()
    return result
