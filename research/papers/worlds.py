"""A data set as a paper splits it: photos, training items, test items; and that as a catalogue for `train`."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tqdm import tqdm

from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.shards import SPAN
from retrieval.errors import DataError
from training.data.datasets import read_dataset
from training.data.folds import share_of_items
from training.data.prefetch import thread_count
from training.data.splits import Splits, make_splits

from .configuration import HELD_OUT, ON_TEST, SHARED

OWN = "grocery"  # any catalogue of one's own
VALIDATION_SHARE = 0.2
MANY = 1000  # photos whose reading is shown


@dataclass(frozen=True)
class World:
    """Photos, and who is for training and who for testing; where both share their classes, test items are `test:…`."""

    photos: list[Photo]
    train: tuple[str, ...]
    test: tuple[str, ...]

    def splits(self, selection: str, *, seed: int) -> Splits:
        """Return the parts of a run: its checkpoint is chosen on the test items, on a held-out fifth, or not."""
        if selection == HELD_OUT:
            held = share_of_items(self.photos, self.train, share=VALIDATION_SHARE, seed=seed)
            fit = tuple(sorted(set(self.train) - set(held)))
            return Splits(fit=fit, validation=held, calibration=(), test=self.test)
        validation = self.test if selection == ON_TEST else ()
        return Splits(fit=self.train, validation=validation, calibration=(), test=self.test)


def read_world(name: str, data: Path, *, split: str) -> World:
    """Return a data set below DATA, or the catalogue that DATA is.

    A benchmark set lies in DATA/NAME, or DATA is its folder. A catalogue has the parts of its `partition` column; where
    it has none, those that `retrieval train` would make, its calibration items for testing too.
    """
    if name != OWN:
        place = data / name if (data / name).is_dir() else data
        photos = read_dataset(name, place, protocol="shared" if split == SHARED else "open")
        return _world([_apart(photo) for photo in photos] if split == SHARED else photos, name)
    candidates = (data, data / f"{OWN}.csv", data / OWN) if data.is_file() else (data / f"{OWN}.csv", data / OWN, data)
    photos = read_catalogue(next(place for place in candidates if place.exists() or place == candidates[-1]))
    if not any(photo.partition for photo in photos):
        splits = make_splits(photos, seed=0)
        test = {*splits.calibration, *splits.test}
        photos = [dataclasses.replace(p, partition="test" if p.item_id in test else "train") for p in photos]
    return _world([_apart(photo) for photo in _halved(photos)] if split == SHARED else photos, name)


def write_world(world: World, path: Path) -> Path:
    """Write the photos as JSON lines that `read_catalogue` reads, with absolute paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".partial")
    with aside.open("w", encoding="utf-8") as file:
        for photo in world.photos:
            row = _row(photo) | {"path": str(photo.path.resolve())}
            if photo.span is not None:
                row[SPAN] = photo.span
            file.write(json.dumps(row) + "\n")
    aside.replace(path)
    return path


class Contents:
    """Hashes of the photos' bytes; each is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, tuple[int, int] | None], str] = {}

    def of(self, photos: Sequence[Photo]) -> list[str]:
        """Return the hash of each photo; ImageUnreadable where one is gone."""
        fresh = list({_place(photo): photo for photo in photos if _place(photo) not in self._known}.values())
        with ThreadPoolExecutor(thread_count(0)) as pool:
            hashes = pool.map(lambda photo: hashlib.sha256(photo.read()).hexdigest(), fresh)
            bar = tqdm(hashes, desc="reading photos", unit="photo", total=len(fresh), disable=len(fresh) < MANY)
            self._known |= zip(map(_place, fresh), bar, strict=True)
        return [self._known[_place(photo)] for photo in photos]


def digest_of(world: World, contents: Contents) -> str:
    """Return a hash of all that a catalogue of the world says and shows, wherever its photos lie."""
    digest = hashlib.sha256(json.dumps([world.train, world.test]).encode())
    for photo, content in zip(world.photos, contents.of(world.photos), strict=True):
        digest.update(json.dumps([_row(photo), content]).encode())
    return digest.hexdigest()[:16]


def _row(photo: Photo) -> dict[str, Any]:
    """Return what a catalogue says of a photo, but for where it lies."""
    return {
        **photo.metadata,
        "photo_id": photo.photo_id,
        "item_id": photo.item_id,
        "group": photo.group,
        "source": photo.source,
        "role": photo.role,
        "bbox": photo.bbox,
    }


def _place(photo: Photo) -> tuple[Path, tuple[int, int] | None]:
    return (photo.path, photo.span)


def _world(photos: Sequence[Photo], name: str) -> World:
    kept = [photo for photo in photos if photo.partition in ("train", "test")]
    train, test = ({p.item_id for p in kept if p.partition == part} for part in ("train", "test"))
    if len(train) < 4 or len(test) < 2 or train & test:
        raise DataError(
            f"{name} has {len(train)} training and {len(test)} test items, {len(train & test)} of them in both",
            remedy="Bring at least four and two, each in one part",
        )
    return World(kept, tuple(sorted(train)), tuple(sorted(test)))


def _apart(photo: Photo) -> Photo:
    """Return a test photo of a shared class under a name of its own: R@k is then among test photos alone."""
    return dataclasses.replace(photo, item_id=f"test:{photo.item_id}") if photo.partition == "test" else photo


def _halved(photos: Sequence[Photo]) -> list[Photo]:
    """Return a catalogue's photos with every second one of each item for testing: the shared split of one's own."""
    seen: dict[str, int] = {}
    halved = []
    for photo in photos:
        seen[photo.item_id] = seen.get(photo.item_id, 0) + 1
        halved.append(dataclasses.replace(photo, partition="train" if seen[photo.item_id] % 2 else "test"))
    return halved
