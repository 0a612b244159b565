"""Photos to training batches: decoded once where memory or a disk allows, cropped and coloured anew each time.

Decoding and resizing are `retrieval.images`, the code that serves: another resampler moves the distances.
Symbols: n = photos of a batch, r = this process's share of them.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

import numpy as np
from PIL import Image
from tqdm import tqdm

from index.shell import command
from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, ImageRefused
from retrieval.images import Preprocessing, crop, open_image, see

from .augmentation import NUMBERS, Augmentation
from .cache import Decoded, PixelCache, photo_key
from .prefetch import ahead, core_threads, shared_ahead

__all__ = ["Augmentation", "PhotoReader", "ahead", "evaluation_batches", "require_readable", "training_batches"]

CACHE_BYTES = 4 * 2**30
PREFETCH = 3  # batches made ahead of the step
NAMED = 3  # photos that an error names
REMEDY = (
    f"Mend or remove them; `{command('data', 'check', 'CATALOGUE', '--report', 'check.json')}` lists all such photos"
)
SHARE = 4  # photos that a thread takes at a time, at most


class PhotoReader:
    """Reads photos upright in RGB, and keeps them decoded in `cache_bytes` of memory and in the folder `cache_dir`.

    Whether a photo comes from a cache or from its file, its pixels are the same. Any number of threads may read.
    """

    def __init__(
        self,
        photos: Sequence[Photo],
        preprocessing: Preprocessing,
        *,
        cache_bytes: int = CACHE_BYTES,
        cache_dir: str | Path = "",
    ) -> None:
        self._photos = photos
        self._preprocessing = preprocessing
        self._room = cache_bytes
        self._kept: dict[int, Decoded] = {}
        self._lock = threading.Lock()
        self._disk = PixelCache(cache_dir, min_side=preprocessing.min_side) if cache_dir else None

    @property
    def size(self) -> int:
        """Side of what the model sees, in pixels."""
        return self._preprocessing.size

    def __getitem__(self, position: int) -> Image.Image:
        """Return a photo to take training crops from: one far larger than they need is reduced by a whole factor."""
        return self._training_view(position).image

    def pixels(self, positions: Sequence[int]) -> np.ndarray:
        """Return uint8 (n, size, size, 3), exactly as serving would see these photos."""
        return np.stack([see(self._exact(position), self._preprocessing) for position in positions])

    def publish(self) -> None:
        """Let other processes and later runs see what this one put into `cache_dir`."""
        if self._disk is not None:
            self._disk.publish()

    def _training_view(self, position: int) -> Decoded:
        view, key = self._cached(position)
        if view is None:
            view = self._reduced(self._decoded(position))
            self._keep(position, view, key)
        return view

    def _exact(self, position: int) -> Image.Image:
        """Return all that the decoder gives of a photo."""
        view, key = self._cached(position)
        if view is not None and view.exact:
            return view.image
        image = self._decoded(position)
        if view is None and (view := self._reduced(image)).exact:
            self._keep(position, view, key)
        return image

    def _reduced(self, image: Image.Image) -> Decoded:
        factor = min(image.size) // (2 * self._preprocessing.min_side)
        return Decoded(image, True) if factor < 2 else Decoded(image.reduce(factor), False)

    def _cached(self, position: int) -> tuple[Decoded | None, bytes | None]:
        """Return a photo where a cache holds it, and else its key on disk where there is such a cache."""
        kept = self._kept.get(position)
        if kept is not None or self._disk is None:
            return kept, None
        try:
            key = photo_key(self._photos[position])
        except OSError:  # the photo is gone; reading it says so
            return None, None
        stored = self._disk.get(key)
        if stored is not None:
            self._keep(position, stored, None)
        return stored, key

    def _keep(self, position: int, view: Decoded, key: bytes | None) -> None:
        """Keep a photo in memory where there is room, and on disk where it has a key."""
        need = view.image.width * view.image.height * 4  # as Pillow holds RGB
        with self._lock:
            if need <= self._room and position not in self._kept:
                self._room -= need
                self._kept[position] = view
        if key is not None and self._disk is not None:
            self._disk.put(key, view)

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


def require_readable(
    photos: Sequence[Photo], preprocessing: Preprocessing, *, cache_dir: str = "", threads: int = 0
) -> None:
    """Open every photo as training does, and raise a DataError that counts those that cannot be used."""
    reader = PhotoReader(photos, preprocessing, cache_bytes=0, cache_dir=cache_dir)

    def refusal(position: int) -> str:
        try:
            reader[position]
        except DataError as error:
            return error.message
        return ""

    with ThreadPoolExecutor(core_threads(threads)) as pool:
        told = pool.map(refusal, range(len(photos)))
        refusals = [text for text in tqdm(told, desc="checking", unit="photo", total=len(photos)) if text]
    reader.publish()
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
    threads: int = 0,
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (positions (r,), uint8 pixels (r, size, size, 3)) of each batch, made ahead by several threads.

    Parameters
    ----------
    batches:
        Positions (n,) of the photos of each batch, of all processes together.
    seed:
        With the number of a batch and a photo's place in it, it decides the photo's crop and colour: neither the
        threads nor the processes do.
    part:
        (rank, number of processes): which of `np.array_split` of a batch is this process's.
    threads:
        Decoding threads; 0 = one a core.
    """
    rank, world = part

    def jobs() -> Iterator[tuple[tuple[np.ndarray, np.ndarray], list[Callable[[], None]]]]:
        for number, whole in enumerate(batches):
            numbers = np.random.default_rng((*seed, number)).random((len(whole), NUMBERS))
            rows = np.array_split(np.arange(len(whole)), world)[rank]
            positions = whole[rows]
            pixels = np.empty((len(rows), augmentation.size, augmentation.size, 3), np.uint8)
            yield (positions, pixels), _parts(partial(crops, positions, numbers[rows], pixels), len(rows))

    def crops(positions: np.ndarray, numbers: np.ndarray, pixels: np.ndarray, block: slice) -> None:
        for row in range(*block.indices(len(positions))):
            pixels[row] = augmentation.crop(reader[int(positions[row])], numbers[row])

    try:
        yield from shared_ahead(jobs(), threads=core_threads(threads), depth=PREFETCH)
    finally:
        reader.publish()


def evaluation_batches(
    reader: PhotoReader, count: int, *, batch_size: int = 64, threads: int = 0
) -> Iterator[np.ndarray]:
    """Yield uint8 (≤ batch_size, size, size, 3) of photos 0..count-1 in order, decoded ahead by several threads."""

    def jobs() -> Iterator[tuple[np.ndarray, list[Callable[[], None]]]]:
        for start in range(0, count, batch_size):
            positions = range(start, min(start + batch_size, count))
            pixels = np.empty((len(positions), reader.size, reader.size, 3), np.uint8)
            yield pixels, _parts(partial(squares, positions, pixels), len(positions))

    def squares(positions: range, pixels: np.ndarray, block: slice) -> None:
        pixels[block] = reader.pixels(positions[block])

    try:
        yield from shared_ahead(jobs(), threads=core_threads(threads), depth=PREFETCH)
    finally:
        reader.publish()


def _parts(work: Callable[[slice], None], count: int) -> list[Callable[[], None]]:
    return [partial(work, slice(start, start + SHARE)) for start in range(0, count, SHARE)]
