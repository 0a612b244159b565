"""Cars-196 (Krause et al., 2013): 16,185 photos of 196 cars, in either of its two distributions.

cars_annos.mat            annotations: relative_im_path, class (1 to 196), test; class_names
car_ims/

devkit/                   (each of its files may lie next to the photos)
  cars_train_annos.mat    annotations: class, fname
  cars_test_annos_withlabels.mat
  cars_meta.mat           class_names (optional)
cars_train/, cars_test/   (or cars_train/cars_train/)

The shared protocol is the set's own split, of 8,144 and 8,041 photos. (The table of data sets in the TCM paper lists
196 classes on both sides beside 8,054 and 8,131 photos, which are the numbers of the open protocol.)
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, importing

from .layout import PROTOCOL_OPEN, TEST, TRAIN, require_photos

TRAINING_CLASSES = 98
LONG_MAKES = ("AM General", "Aston Martin", "Land Rover")  # the makes of two words


def read_cars(folder: Path, *, protocol: str = PROTOCOL_OPEN) -> list[Photo]:
    """Return the photos. Each class is an item; its category is the make of the car."""
    annotations = folder / "cars_annos.mat"
    if annotations.is_file() and ((folder / "car_ims").is_dir() or not (folder / "cars_train").is_dir()):
        values = _load(annotations)
        names = _names(values)
        rows = [
            (str(row["relative_im_path"]), int(row["class"]), bool(row["test"]))
            for row in _annotations(values, annotations, ("relative_im_path", "class", "test"))
        ]
        archive = "car_ims.tgz"
    else:
        rows, names = _devkit(folder)
        archive = "cars_train.tgz and cars_test.tgz"
    photos = []
    for path, label, test in rows:
        training = label <= TRAINING_CLASSES if protocol == PROTOCOL_OPEN else not test
        name = names.get(label, "")
        make = next((long for long in LONG_MAKES if name.startswith(long)), name.split(" ")[0])
        photos.append(
            Photo(
                photo_id=path,
                path=folder / path,
                item_id=f"{label:03d}.{name.replace('/', '-')}" if name else f"{label:03d}",
                partition=TRAIN if training else TEST,
                metadata={"name": name, "category": make} if name else {},
            )
        )
    return require_photos(photos, root=folder, archive=archive)


def _devkit(folder: Path) -> tuple[list[tuple[str, int, bool]], dict[int, str]]:
    rows = []
    for part, stem in (("train", "cars_train_annos"), ("test", "cars_test_annos_withlabels")):
        if (path := _find(folder, stem)) is None:
            raise DataError(
                f"{folder} contains no {stem}.mat, there or in devkit",
                remedy="Add it: cars_test_annos.mat has no classes, and cars_annos.mat numbers the photos of car_ims",
            )
        photos = f"cars_{part}"
        if (folder / photos / photos).is_dir():
            photos = f"{photos}/{photos}"
        annotations = _annotations(_load(path), path, ("fname", "class"))
        rows += [(f"{photos}/{row['fname']}", int(row["class"]), part == "test") for row in annotations]
    meta = _find(folder, "cars_meta")
    return rows, _names(_load(meta)) if meta else {}


def _find(folder: Path, stem: str) -> Path | None:
    """Return a file of the devkit, which a browser may have called "cars_meta (1).mat"."""
    places = (folder, folder / "devkit", folder / "car_devkit" / "devkit")
    return next((path for place in places for path in sorted(place.glob(f"{stem}*.mat"))), None)


def _load(path: Path) -> dict[str, Any]:
    with importing("scipy", "train", called="scipy, which reads Cars-196's .mat files,"):
        from scipy.io import loadmat
    try:
        values: dict[str, Any] = loadmat(path, squeeze_me=True)
    except Exception as error:  # for damaged files scipy raises zlib.error, IndexError, TypeError, UnboundLocalError, …
        raise DataError(f"{path} is not a MATLAB file: {error}", remedy="Download it from the official page") from error
    return values


def _annotations(values: dict[str, Any], path: Path, fields: tuple[str, ...]) -> np.ndarray:
    table = np.atleast_1d(values.get("annotations", np.empty(0)))
    missing = [name for name in fields if name not in (table.dtype.names or ())]
    if missing:
        raise DataError(f"{path}: annotations have no field {missing[0]}", remedy="Download it from the official page")
    return table


def _names(values: dict[str, Any]) -> dict[int, str]:
    return {label: str(name) for label, name in enumerate(np.atleast_1d(values.get("class_names", [])), 1)}
