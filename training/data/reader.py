"""Photos to batches: decoded, cached in memory, and augmented for training.

Decoding, and resizing for evaluation, are those of `retrieval.images`, which serves: another resampler would move the
distances.
Symbols: n = photos of a batch, r = this process's share of them.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from PIL import Image
from tqdm import tqdm

from retrieval.catalogue.read import Photo
from retrieval.catalogue.reading import in_order
from retrieval.errors import DataError, ImageRefused, command, counted
from retrieval.images import Preprocessing, center_crop_resize, crop, open_image
from retrieval.process import threads_of_share

from .augmentation import SEEDS, Augmentation

CACHE_BYTES = 4 * 2**30
NAMED = 3  # photos that an error names
REMEDY = (
    f"List all such photos with `{command('data', 'check', 'CATALOGUE', '--report', 'check.json')}`, "
    "then repair or remove them"
)


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

    def __getitem__(self, position: int) -> np.ndarray:
        """Return a photo for augmentation, uint8 (h, w, 3), read-only. Very large ones are reduced in size."""
        view = self._kept.get(position)
        return self._cached(position, self._decoded(position)).pixels if view is None else view.pixels

    def pixels(self, positions: Sequence[int]) -> np.ndarray:
        """Return uint8 (n, size, size, 3), with the preprocessing that serves."""
        return np.stack([center_crop_resize(self.image(position), self._preprocessing) for position in positions])

    def image(self, position: int) -> Image.Image:
        """Return an upright RGB photo, cropped to its bbox, at the size at which it is decoded for the model."""
        view = self._kept.get(position)
        if view is not None and view.exact:
            return Image.fromarray(view.pixels)
        image = self._decoded(position)
        self._cached(position, image, only_exact=True)
        return image

    def _cached(self, position: int, image: Image.Image, *, only_exact: bool = False) -> Decoded:
        """Return a decoded photo, reduced if it is large, and cache it if there is room."""
        factor = max(1, min(image.size) // (2 * self._preprocessing.min_side))
        view = Decoded(np.asarray(image.reduce(factor) if factor > 1 else image), exact=factor == 1)
        with self._lock:
            if view.pixels.nbytes <= self._room and position not in self._kept and (view.exact or not only_exact):
                self._room -= view.pixels.nbytes
                self._kept[position] = view
        return view

    def _decoded(self, position: int) -> Image.Image:
        photo = self._photos[position]
        least = self._preprocessing.min_side if photo.bbox is None else 0
        try:
            return crop(open_image(photo.read(), min_side=least), photo.bbox)
        except ImageRefused as error:
            raise DataError(f"{photo.path}: {error.message}", remedy=REMEDY) from error


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
            f"{len(refusals)} of {counted(len(photos), 'photo')} to train on cannot be used: "
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
) -> Iterator[np.ndarray]:
    """Yield uint8 pixels (r, size, size, 3) of each batch, prefetched by several threads.

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

    def augmented(job: tuple[int, np.ndarray]) -> np.ndarray:
        number, batch = job
        seeds = np.random.default_rng((*seed, number)).integers(SEEDS, size=len(batch))
        rows = np.array_split(np.arange(len(batch)), processes)[rank]
        pixels = np.empty((len(rows), augmentation.size, augmentation.size, 3), np.uint8)
        for place, row in enumerate(rows):
            pixels[place] = augmentation.crop(reader[int(batch[row])], int(seeds[row]))
        return pixels

    return in_order(augmented, enumerate(batches), threads=threads_of_share())


def evaluation_batches(reader: PhotoReader, positions: Sequence[int], *, batch_size: int = 64) -> Iterator[np.ndarray]:
    """Yield uint8 (≤ batch_size, size, size, 3) of photos in order, prefetched by several threads."""
    blocks = (positions[start : start + batch_size] for start in range(0, len(positions), batch_size))
    return in_order(reader.pixels, blocks, threads=threads_of_share())


def is_readable(photo: Photo) -> bool:
    """Return whether a photo can be used; indexing reports those that cannot."""
    try:
        crop(open_image(photo.read()), photo.bbox)
    except ImageRefused:
        return False
    return True
