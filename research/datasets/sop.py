"""Stanford Online Products (Song et al., CVPR 2016): 120,053 photos of 22,634 items in 12 categories.

Stanford_Online_Products/
  Ebay_train.txt   a header, then image_id class_id super_class_id path (classes 1 to 11,318)
  Ebay_test.txt    the same (classes 11,319 to 22,634)
  bicycle_final/ …
"""

from __future__ import annotations

from pathlib import Path

from retrieval.catalogue.read import Photo

from .layout import TEST, TRAIN, read_rows, require_photos


def read_sop(folder: Path) -> list[Photo]:
    """Return the photos. Each class is an item; its category is the folder's name without "_final"."""
    photos = []
    for part in (TRAIN, TEST):
        rows = read_rows(folder / f"Ebay_{part}.txt", 4, lambda words: (int(words[1]), words[3]), heads=1)
        photos += [
            Photo(
                photo_id=path,
                path=folder / path,
                item_id=f"{label:05d}",
                partition=part,
                metadata={"category": path.split("/")[0].removesuffix("_final")},
            )
            for label, path in rows
        ]
    return require_photos(photos, root=folder, archive="Stanford_Online_Products.zip")
