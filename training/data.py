"""Photos to training batches: decoded once where memory allows, cropped and coloured anew each time.

Decoding and resizing are `retrieval.images`, the code that serves: another resampler moves the distances.
"""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import TypeVar

import numpy as np
from PIL import Image

from retrieval.catalogue import Photo
from retrieval.errors import DataError, ImageRefused
from retrieval.images import Preprocessing, crop, open_image, resize, see

from .settings import Settings

CACHE_BYTES = 4 * 2**30
PREFETCH = 3  # batches made ahead of the step

T = TypeVar("T")


class PhotoReader:
    """Reads photos upright in RGB, and keeps them decoded while they fit into `cache_bytes`."""

    def __init__(
        self, photos: Sequence[Photo], preprocessing: Preprocessing, *, cache_bytes: int = CACHE_BYTES
    ) -> None:
        self._photos = photos
        self._preprocessing = preprocessing
        self._room = cache_bytes
        self._kept: dict[int, Image.Image] = {}

    def __getitem__(self, position: int) -> Image.Image:
        kept = self._kept.get(position)
        if kept is not None:
            return kept
        photo = self._photos[position]
        try:
            image = crop(
                open_image(photo.read(), min_side=self._preprocessing.min_side if photo.bbox is None else 0), photo.bbox
            )
        except ImageRefused as error:
            raise DataError(
                f"{photo.path}: {error.message}",
                remedy="`retrieval data check` lists every such photo; mend or remove them",
            ) from error
        need = image.width * image.height * 3
        if need <= self._room:
            self._room -= need
            self._kept[position] = image
        return image

    def pixels(self, positions: Sequence[int]) -> np.ndarray:
        """Return uint8 (n, size, size, 3), exactly as serving would see these photos."""
        return np.stack([see(self[position], self._preprocessing) for position in positions])


class Augmentation:
    """Random crop (by our own resize), mirror and mild colour, all decided by the generator it is given."""

    def __init__(self, settings: Settings) -> None:
        os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # its import would look for a newer version
        import albumentations as A

        self._size = settings.size
        self._crop_area = settings.crop_area
        strength = settings.colour
        steps = [A.HorizontalFlip(p=0.5)] if settings.flip else []
        if strength:
            jitter = A.ColorJitter(
                brightness=(1 - strength, 1 + strength),
                contrast=(1 - strength, 1 + strength),
                saturation=(1 - strength, 1 + strength),
                hue=(-strength / 10, strength / 10),
                p=0.8,
            )
            steps.append(jitter)
        self._steps = A.Compose(steps)

    def __call__(self, image: Image.Image, generator: np.random.Generator) -> np.ndarray:
        """Return uint8 (size, size, 3)."""
        pixels = resize(image, self._size, box=_random_box(image, self._crop_area, generator))
        self._steps.set_random_seed(int(generator.integers(2**31)))
        augmented: np.ndarray = self._steps(image=pixels)["image"]
        return augmented


def _random_box(
    image: Image.Image, smallest_area: float, generator: np.random.Generator
) -> tuple[float, float, float, float]:
    """Return a crop of random area and aspect between 3:4 and 4:3 (the field's RandomResizedCrop)."""
    width, height = image.size
    for _ in range(10):
        area = generator.uniform(smallest_area, 1.0) * width * height
        aspect = np.exp(generator.uniform(np.log(3 / 4), np.log(4 / 3)))
        w, h = np.sqrt(area * aspect), np.sqrt(area / aspect)
        if w <= width and h <= height:
            left, upper = generator.uniform(0, width - w), generator.uniform(0, height - h)
            return (left, upper, left + w, upper + h)
    side = min(width, height)
    left, upper = (width - side) / 2, (height - side) / 2
    return (left, upper, left + side, upper + side)


def training_batches(
    reader: PhotoReader,
    augmentation: Augmentation,
    batches: Iterable[np.ndarray],
    *,
    seed: tuple[int, ...],
) -> Iterator[tuple[np.ndarray, np.ndarray]]:
    """Yield (positions (n,), uint8 pixels (n, size, size, 3)), made ahead by one background thread."""

    def make() -> Iterator[tuple[np.ndarray, np.ndarray]]:
        for number, positions in enumerate(batches):
            generator = np.random.default_rng((*seed, number))
            yield positions, np.stack([augmentation(reader[int(p)], generator) for p in positions])

    return ahead(make(), PREFETCH)


def evaluation_batches(reader: PhotoReader, count: int, *, batch_size: int = 64) -> Iterator[np.ndarray]:
    """Yield uint8 (≤ batch_size, size, size, 3) of photos 0..count-1 in order, decoded ahead."""
    blocks = (range(start, min(start + batch_size, count)) for start in range(0, count, batch_size))
    yield from ahead((reader.pixels(block) for block in blocks), PREFETCH)


def ahead(items: Iterator[T], depth: int) -> Iterator[T]:
    """Yield what `items` yields, produced `depth` ahead by a thread; its errors arrive here."""
    ready: queue.Queue[tuple[T | None, BaseException | None]] = queue.Queue(depth)
    stop = threading.Event()

    def put(entry: tuple[T | None, BaseException | None]) -> bool:
        while not stop.is_set():
            try:
                ready.put(entry, timeout=0.1)
            except queue.Full:
                continue
            return True
        return False

    def work() -> None:
        try:
            for item in items:
                if not put((item, None)):
                    return
            put((None, StopIteration()))
        except BaseException as error:  # raised again where the items are used
            put((None, error))

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    try:
        while True:
            item, error = ready.get()
            if isinstance(error, StopIteration):
                return
            if error is not None:
                raise error
            yield item  # type: ignore[misc]
    finally:
        stop.set()
        thread.join()
