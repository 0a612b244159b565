"""iNaturalist-2018 (Van Horn et al., CVPR 2018) with the retrieval split of Smooth-AP (Brown et al., ECCV 2020).

train_val2018/Plantae/7477/3b60c9486db1d2ee875f11a669fbde4a.jpg      super-category, category id, photo
Inat_dataset_splits/Inaturalist_train_set1.txt                       325,846 paths of 5,690 species
Inat_dataset_splits/Inaturalist_test_set1.txt                        136,093 paths of 2,452 species
categories.json, train2018.json                                      (optional, one of them) names of the categories
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError

from .layout import TEST, TRAIN, read_rows, require_photos

SPLITS = "Inat_dataset_splits"
RANKS = ("genus", "family", "order", "class")


def read_inat(folder: Path) -> list[Photo]:
    """Return the photos. Each category (species) is an item; its category is the super-category, such as Plantae.

    If the category list of the competition is there, the metadata has the species' name, and its genus, family, order
    and class if listed.
    """
    names = _categories(folder)
    photos = []
    for part in (TRAIN, TEST):
        for path, above, species in read_rows(folder / SPLITS / f"Inaturalist_{part}_set1.txt", 1, _row):
            photos.append(
                Photo(
                    photo_id=path,
                    path=folder / path,
                    item_id=f"{species:04d}",
                    partition=part,
                    metadata={"category": above, **names.get(species, {})},
                )
            )
    return require_photos(photos, root=folder, archive="train_val2018.tar.gz")


def _row(words: list[str]) -> tuple[str, str, int]:
    parts = words[0].split("/")
    if len(parts) < 4:
        raise ValueError("not train_val2018/SUPER-CATEGORY/CATEGORY/PHOTO")
    return words[0], parts[-3], int(parts[-2])


def _categories(folder: Path) -> dict[int, dict[str, str]]:
    """Return name and taxonomy by category id, from categories.json or train2018.json, or nothing."""
    for file in ("categories.json", "train2018.json"):
        if not (folder / file).is_file():
            continue
        try:
            content: Any = json.loads((folder / file).read_text())
            rows = content if isinstance(content, list) else content["categories"]
            return {
                int(row["id"]): {"name": str(row["name"]), **{rank: str(row[rank]) for rank in RANKS if row.get(rank)}}
                for row in rows
            }
        except (ValueError, KeyError, TypeError) as error:
            raise DataError(
                f"{folder / file} is not in the competition's format: {error!r}",
                remedy="Download it again, or remove it",
            ) from error
    return {}
