"""The benchmark sets in miniature: folders in the exact official form, with a few drawn photos of a few classes.

Each writer fills `root` as the official archives do when unpacked, and returns the folder to hand to
`research.datasets.read_dataset`. `classes` are those of the training part; the test part has as many others.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
from PIL import Image

from .world import draw

SIDE = 80
BIRDS = ("Albatross", "Auklet", "Blackbird", "Bunting")
MAKES = ("AM General Hummer SUV", "Acura RL Sedan", "Aston Martin Virage Coupe", "Land Rover LR2 SUV", "Ram C/V Van")
PRODUCTS = ("bicycle", "cabinet", "chair", "coffee_maker")
CLOTHES = ("WOMEN/Dresses", "WOMEN/Blouses_Shirts", "MEN/Denim")
KINGDOMS = ("Plantae", "Aves", "Insecta")


def write_cub(root: Path, *, classes: int = 8, photos: int = 8) -> Path:
    """Write CUB_200_2011: classes 1, 2, … (training) and 101, 102, … (test); every second photo is the shared test."""
    folder = root / "CUB_200_2011"
    images, labels, names, split, boxes = [], [], [], [], []
    for label in _two_ranges(classes, 101):
        bird = BIRDS[label % len(BIRDS)]
        name = f"{label:03d}.Test_{_letters(label)}_{bird}"
        names.append(f"{label} {name}")
        for number in range(photos):
            where = f"{name}/Test_{_letters(label)}_{bird}_{number:04d}_{label * 1000 + number}.jpg"
            _photo(folder / "images" / where, label, number)
            images.append(f"{len(images) + 1} {where}")
            labels.append(f"{len(images)} {label}")
            split.append(f"{len(images)} {(number + 1) % 2}")
            boxes.append(f"{len(images)} 1.0 2.0 {SIDE - 4}.0 {SIDE - 8}.0")
    for file, lines in (
        ("images.txt", images),
        ("image_class_labels.txt", labels),
        ("classes.txt", names),
        ("train_test_split.txt", split),
        ("bounding_boxes.txt", boxes),
    ):
        (folder / file).write_text("\n".join(lines) + "\n")
    return folder


def write_cars(root: Path, *, classes: int = 8, photos: int = 8, devkit: bool = False) -> Path:
    """Write Cars-196: car_ims and cars_annos.mat, or cars_train, cars_test and the devkit's annotations."""
    from scipy.io import savemat

    rows = [(label, number) for label in _two_ranges(classes, 99) for number in range(photos)]
    names = np.empty(196, dtype=object)
    names[:] = [f"{MAKES[i % len(MAKES)]} {_letters(i + 1)} {1990 + i % 25}" for i in range(196)]
    box = (np.uint8(1), np.uint8(2), np.uint8(SIDE - 3), np.uint8(SIDE - 2))
    corners = ("bbox_x1", "bbox_y1", "bbox_x2", "bbox_y2")
    root.mkdir(parents=True, exist_ok=True)
    if not devkit:
        kinds = [("relative_im_path", "O"), *((c, "O") for c in corners), ("class", "O"), ("test", "O")]
        table = np.empty(len(rows), dtype=kinds)
        for i, (label, number) in enumerate(rows):
            where = f"car_ims/{i + 1:06d}.jpg"
            _photo(root / where, label, number)
            table[i] = (where, *box, np.uint8(label), np.uint8(number % 2))
        savemat(root / "cars_annos.mat", {"annotations": table, "class_names": names})
        return root
    (root / "devkit").mkdir(exist_ok=True)
    savemat(root / "devkit" / "cars_meta.mat", {"class_names": names})
    for part, file in enumerate(("cars_train_annos.mat", "cars_test_annos_withlabels.mat")):
        mine = [row for row in rows if row[1] % 2 == part]
        table = np.empty(len(mine), dtype=[*((c, "O") for c in corners), ("class", "O"), ("fname", "O")])
        for i, (label, number) in enumerate(mine):
            name = f"{i + 1:05d}.jpg"
            _photo(root / ("cars_test" if part else "cars_train") / name, label, number)
            table[i] = (*box, np.uint8(label), name)
        savemat(root / "devkit" / file, {"annotations": table})
    return root


def write_sop(root: Path, *, classes: int = 8, photos: int = 5) -> Path:
    """Write Stanford_Online_Products: Ebay_train.txt, Ebay_test.txt and one folder a category."""
    folder = root / "Stanford_Online_Products"
    head = "image_id class_id super_class_id path"
    number_of = 0
    everything = [head]
    for part, labels in (("train", range(1, classes + 1)), ("test", range(11319, 11319 + classes))):
        lines = [head]
        for label in labels:
            group = label % len(PRODUCTS)
            for number in range(photos):
                number_of += 1
                where = f"{PRODUCTS[group]}_final/{110000000000 + label}_{number}.JPG"
                _photo(folder / where, label, number)
                lines.append(f"{number_of} {label} {group + 1} {where}")
        everything += lines[1:]
        (folder / f"Ebay_{part}.txt").write_text("\n".join(lines) + "\n")
    (folder / "Ebay_info.txt").write_text("\n".join(everything) + "\n")
    return folder


def write_inshop(root: Path, *, classes: int = 8, photos: int = 6) -> Path:
    """Write the In-shop Clothes Retrieval Benchmark: Eval/list_eval_partition.txt and Img/img."""
    folder = root / "In-shop Clothes Retrieval Benchmark"
    lines = []
    for label in range(1, 2 * classes + 1):
        item = f"id_{label:08d}"
        for number in range(photos):
            where = f"img/{CLOTHES[label % len(CLOTHES)]}/{item}/{number // 4 + 1:02d}_{number % 4 + 1}_front.jpg"
            status = "train" if label <= classes else ("query", "gallery")[number % 2]
            _photo(folder / "Img" / where, label, number)
            lines.append(f"{where:<80}{item:<20}{status}")
    (folder / "Eval").mkdir()
    head = f"{len(lines)}\n{'image_name':<80}{'item_id':<20}evaluation_status\n"
    (folder / "Eval" / "list_eval_partition.txt").write_text(head + "\n".join(lines) + "\n")
    return folder


def write_inat(root: Path, *, classes: int = 8, photos: int = 5) -> Path:
    """Write iNaturalist-2018: train_val2018, the competition's JSON files and the retrieval split's two lists."""
    root.mkdir(parents=True, exist_ok=True)
    lists: dict[str, list[str]] = {"train": [], "test": []}
    images, annotations, categories = [], [], []
    for label in range(2 * classes):
        kingdom = KINGDOMS[label % len(KINGDOMS)]
        family = f"Family {label % 5}"
        categories.append(
            {
                "id": label,
                "name": f"Genus{label // 2} species{label}",
                "supercategory": kingdom,
                "kingdom": "Life",
                "phylum": kingdom,
                "class": kingdom,
                "order": f"Order {label % 3}",
                "family": family,
                "genus": f"Genus{label // 2}",
            }
        )
        for number in range(photos):
            name = hashlib.md5(f"{label} {number}".encode(), usedforsecurity=False).hexdigest()
            where = f"train_val2018/{kingdom}/{label}/{name}.jpg"
            _photo(root / where, label, number)
            lists["train" if label < classes else "test"].append(where)
            images.append({"id": len(images) + 1, "width": SIDE, "height": SIDE, "file_name": where})
            annotations.append({"id": len(images), "image_id": len(images), "category_id": label})
    (root / "Inat_dataset_splits").mkdir()
    for part, lines in lists.items():
        (root / "Inat_dataset_splits" / f"Inaturalist_{part}_set1.txt").write_text("\n".join(lines) + "\n")
    last = range(photos - 1, len(images), photos)  # the competition's own validation part
    for file, some in (("train2018.json", sorted({*range(len(images))} - {*last})), ("val2018.json", [*last])):
        body = {
            "info": {"year": 2018},
            "images": [images[i] for i in some],
            "annotations": [annotations[i] for i in some],
            "categories": [{key: c[key] for key in ("id", "name", "supercategory")} for c in categories],
        }
        (root / file).write_text(json.dumps(body))
    (root / "categories.json").write_text(json.dumps(categories))
    return root


WRITERS = {"cub": write_cub, "cars": write_cars, "sop": write_sop, "inshop": write_inshop, "inat": write_inat}


def _two_ranges(classes: int, second: int) -> list[int]:
    return [*range(1, classes + 1), *range(second, second + classes)]


def _letters(number: int) -> str:
    """Return a word for a number, as names of classes have no digits."""
    return "".join("Abcdefghij"[int(digit)] for digit in str(number)).capitalize()


def _photo(path: Path, item: int, number: int) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    draw(item, number).resize((SIDE, SIDE), Image.Resampling.BICUBIC).save(path, "JPEG", quality=90)
