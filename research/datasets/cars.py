"""Cars-196 (Krause et al., 2013): 16,185 photos of 196 cars, in either of its two distributions.

cars_annos.mat            annotations: relative_im_path, class (1 to 196), test; class_names
car_ims/

devkit/                   (or its files next to the photos)
  cars_train_annos.mat    annotations: class, fname
  cars_test_annos_withlabels.mat
  cars_meta.mat           class_names
cars_train/, cars_test/

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


def read_cars(root: Path, *, protocol: str = PROTOCOL_OPEN) -> list[Photo]:
    """Return the photos. Each class is an item; its category is the make of the car."""
    if (root / "cars_annos.mat").is_file():
        values = _load(root / "cars_annos.mat")
        names = _names(values)
        rows = [
            (str(row["relative_im_path"]), int(row["class"]), bool(row["test"]))
            for row in _annotations(values, root / "cars_annos.mat", ("relative_im_path", "class", "test"))
        ]
        archive = "car_ims.tgz"
    else:
        rows, names = _devkit(root)
        archive = "cars_train.tgz and cars_test.tgz"
    photos = []
    for path, label, test in rows:
        training = label <= TRAINING_CLASSES if protocol == PROTOCOL_OPEN else not test
        name = names.get(label, "")
        make = next((long for long in LONG_MAKES if name.startswith(long)), name.split(" ")[0])
        photos.append(
            Photo(
                photo_id=path,
                path=root / path,
                item_id=f"{label:03d}.{name.replace('/', '-')}" if name else f"{label:03d}",
                partition=TRAIN if training else TEST,
                metadata={"name": name, "category": make} if name else {},
            )
        )
    return require_photos(photos, root=root, archive=archive)


def _devkit(root: Path) -> tuple[list[tuple[str, int, bool]], dict[int, str]]:
    places = (root / "devkit", root)
    files = ("cars_train_annos.mat", "cars_test_annos_withlabels.mat")
    folder = next((place for place in places if (place / files[0]).is_file()), None)
    if folder is None:
        raise DataError(
            f"{root} contains neither cars_annos.mat nor devkit/{files[0]}",
            remedy="Name the folder with car_ims and cars_annos.mat, or with cars_train, cars_test and devkit",
        )
    if not (folder / files[1]).is_file():
        raise DataError(
            f"{folder} does not contain {files[1]}",
            remedy="cars_test_annos.mat has no classes: download the file with labels from the official page",
        )
    rows = [
        (f"cars_{part}/{row['fname']}", int(row["class"]), part == "test")
        for part, file in zip(("train", "test"), files, strict=True)
        for row in _annotations(_load(folder / file), folder / file, ("fname", "class"))
    ]
    meta = folder / "cars_meta.mat"
    return rows, _names(_load(meta)) if meta.is_file() else {}


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
