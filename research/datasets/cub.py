"""CUB-200-2011 (Wah et al., 2011): 11,788 photos of 200 birds.

CUB_200_2011/
  images.txt              image id, path below images/, of which the folder is the class (001.Black_footed_Albatross)
  image_class_labels.txt  image id, class id (1 to 200)
  train_test_split.txt    image id, 1 for training (the shared protocol: 5,994 and 5,794 photos)
  images/
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError

from .layout import PROTOCOL_OPEN, TEST, TRAIN, T, numbered, read_rows, require_photos

TRAINING_CLASSES = 100  # of the open protocol


def read_cub(folder: Path, *, protocol: str = PROTOCOL_OPEN) -> list[Photo]:
    """Return the photos. Each class is an item; its category is the last word of its name, such as Albatross."""
    paths = _table(folder / "images.txt", str)
    labels = _table(folder / "image_class_labels.txt", int)
    split = {} if protocol == PROTOCOL_OPEN else _table(folder / "train_test_split.txt", str)
    photos = []
    for image, path in paths.items():
        try:
            label = labels[image]
            training = label <= TRAINING_CLASSES if protocol == PROTOCOL_OPEN else split[image] == "1"
        except KeyError as error:
            raise DataError(
                f"{folder}: image {image} has no class or no part",
                remedy="Extract the lists from the official archive again",
            ) from error
        name = path.split("/")[0]
        plain = name.split(".", 1)[-1].replace("_", " ")
        photos.append(
            Photo(
                photo_id=f"images/{path}",
                path=folder / "images" / path,
                item_id=name,
                partition=TRAIN if training else TEST,
                metadata={"name": plain, "category": plain.split()[-1]},
            )
        )
    return require_photos(photos, root=folder, archive="CUB_200_2011.tgz")


def _table(path: Path, value: Callable[[str], T]) -> dict[int, T]:
    return numbered(read_rows(path, 2, lambda words: (int(words[0]), value(words[1]))), path)
