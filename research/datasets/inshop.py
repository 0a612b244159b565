"""In-Shop Clothes Retrieval (DeepFashion; Liu et al., CVPR 2016): 52,712 photos of 7,982 items.

In-shop Clothes Retrieval Benchmark/
  Eval/list_eval_partition.txt   the count, a header, then image_name item_id evaluation_status (train, query, gallery)
  Img/img/                       (or img/) WOMEN/Dresses/id_00000002/02_1_front.jpg
"""

from __future__ import annotations

from collections import defaultdict
from pathlib import Path

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError

from .layout import TEST, TRAIN, read_rows, require_photos

LIST = "list_eval_partition.txt"
STATUSES = ("train", "query", "gallery")


def read_inshop(folder: Path) -> list[Photo]:
    """Return the photos. The category of an item is its folder, such as WOMEN/Dresses.

    Test photos have the role of the list. Training photos have no role there; they alternate between query and gallery
    within each item, so that validation resembles the test.
    """
    rows = read_rows(folder / "Eval" / LIST, 3, _row, heads=2)
    images = next((place for place in (folder / "Img", folder) if (place / "img").is_dir()), None)
    if images is None:
        raise DataError(f"{folder} contains neither Img/img nor img", remedy="Unpack Img/img.zip there")
    photos = []
    seen: dict[str, int] = defaultdict(int)
    for path, item, status in rows:
        role = status
        if status == TRAIN:
            role = ("query", "gallery")[seen[item] % 2]
            seen[item] += 1
        photos.append(
            Photo(
                photo_id=path,
                path=images / path,
                item_id=item,
                partition=TRAIN if status == TRAIN else TEST,
                role=role,
                metadata={"category": "/".join(path.split("/")[1:-2])},
            )
        )
    return require_photos(photos, root=folder, archive="Img/img.zip")


def _row(words: list[str]) -> tuple[str, str, str]:
    path, item, status = words
    if status not in STATUSES:
        raise ValueError(f"evaluation_status is {status!r}")
    return path, item, status
