"""Data sets with the papers' splits: photos, training items and test items, and their catalogue files for `train`."""

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

from research.datasets import read_dataset
from retrieval.catalogue.read import Photo, read_catalogue
from retrieval.catalogue.shards import SPAN
from retrieval.catalogue.splits import Splits, make_splits
from retrieval.errors import DataError
from retrieval.process import threads_of_share
from training.data.folds import share_of_items

from .configuration import HELD_OUT, ON_TEST, SHARED

OWN = "grocery"  # a catalogue below DATA, in the place of a benchmark set
VALIDATION_SHARE = 0.2
MANY = 1000  # number of photos from which reading shows progress


@dataclass(frozen=True)
class LabelledPhotos:
    """Photos with training and test items; if both share classes, test items are named `test:…`."""

    photos: list[Photo]
    train: tuple[str, ...]
    test: tuple[str, ...]

    def splits(self, selection: str, *, seed: int) -> Splits:
        """Return the splits of a run; checkpoints are selected on the test items, a held-out fifth, or not at all."""
        if selection == HELD_OUT:
            held = share_of_items(self.photos, self.train, share=VALIDATION_SHARE, seed=seed)
            fit = tuple(sorted(set(self.train) - set(held)))
            return Splits(fit=fit, validation=held, calibration=(), test=self.test)
        validation = self.test if selection == ON_TEST else ()
        return Splits(fit=self.train, validation=validation, calibration=(), test=self.test)


def read_labelled_photos(name: str, data: Path, *, split: str) -> LabelledPhotos:
    """Return a data set below DATA, or the catalogue DATA if that is a file, whatever its name.

    A catalogue is split by its `partition` column; without one, the splits are those of `retrieval train`, and the
    calibration items are also tested.
    """
    if name != OWN and not data.is_file():
        photos = read_dataset(name, data, protocol="shared" if split == SHARED else "open")
        return _labelled_photos([_apart(photo) for photo in photos] if split == SHARED else photos, name)
    candidates = (data,) if data.is_file() else (data / f"{OWN}.csv", data / OWN, data)
    photos = read_catalogue(next(place for place in candidates if place.exists() or place == candidates[-1]))
    if not any(photo.partition for photo in photos):
        splits = make_splits(photos)
        test = {*splits.calibration, *splits.test}
        photos = [dataclasses.replace(p, partition="test" if p.item_id in test else "train") for p in photos]
    return _labelled_photos([_apart(photo) for photo in _halved(photos)] if split == SHARED else photos, name)


def write_labelled_photos(labelled: LabelledPhotos, path: Path) -> Path:
    """Write the photos as JSON lines that `read_catalogue` reads, with absolute paths."""
    path.parent.mkdir(parents=True, exist_ok=True)
    aside = path.with_suffix(".partial")
    with aside.open("w", encoding="utf-8") as file:
        for photo in labelled.photos:
            row = _row(photo) | {"path": str(photo.path.resolve())}
            if photo.span is not None:
                row[SPAN] = photo.span
            file.write(json.dumps(row) + "\n")
    aside.replace(path)
    return path


class Contents:
    """Content hashes of photos; each photo is read once."""

    def __init__(self) -> None:
        self._known: dict[tuple[Path, tuple[int, int] | None], str] = {}

    def of(self, photos: Sequence[Photo]) -> list[str]:
        """Return the hash of each photo; raise ImageUnreadable if one is missing."""
        fresh = list({_place(photo): photo for photo in photos if _place(photo) not in self._known}.values())
        with ThreadPoolExecutor(threads_of_share()) as pool:
            hashes = pool.map(lambda photo: hashlib.sha256(photo.read()).hexdigest(), fresh)
            bar = tqdm(hashes, desc="reading photos", unit="photo", total=len(fresh), disable=len(fresh) < MANY)
            self._known |= zip(map(_place, fresh), bar, strict=True)
        return [self._known[_place(photo)] for photo in photos]


def digest_of(labelled: LabelledPhotos, contents: Contents) -> str:
    """Return a hash of the catalogue and its photos, independent of their location."""
    digest = hashlib.sha256(json.dumps([labelled.train, labelled.test]).encode())
    for photo, content in zip(labelled.photos, contents.of(labelled.photos), strict=True):
        digest.update(json.dumps([_row(photo), content]).encode())
    return digest.hexdigest()[:16]


def _row(photo: Photo) -> dict[str, Any]:
    """Return the catalogue row of a photo without its path."""
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


def _labelled_photos(photos: Sequence[Photo], name: str) -> LabelledPhotos:
    kept = [photo for photo in photos if photo.partition in ("train", "test")]
    train, test = ({p.item_id for p in kept if p.partition == part} for part in ("train", "test"))
    if len(train) < 4 or len(test) < 2 or train & test:
        raise DataError(
            f"{name} has {len(train)} training and {len(test)} test items, {len(train & test)} of them in both",
            remedy="Bring at least four and two, each in one part",
        )
    return LabelledPhotos(kept, tuple(sorted(train)), tuple(sorted(test)))


def _apart(photo: Photo) -> Photo:
    """Return a test photo of a shared class with a renamed item, which restricts R@k to test photos."""
    return dataclasses.replace(photo, item_id=f"test:{photo.item_id}") if photo.partition == "test" else photo


def _halved(photos: Sequence[Photo]) -> list[Photo]:
    """Return the photos of a catalogue with every second photo of each item for testing: the shared split."""
    seen: dict[str, int] = {}
    halved = []
    for photo in photos:
        seen[photo.item_id] = seen.get(photo.item_id, 0) + 1
        halved.append(dataclasses.replace(photo, partition="train" if seen[photo.item_id] % 2 else "test"))
    return halved
