"""Reads any of the benchmark data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import NamedTuple

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, InvalidParameter

from .cars import read_cars
from .cub import read_cub
from .inat import read_inat
from .inshop import read_inshop
from .layout import PROTOCOL_OPEN, PROTOCOL_SHARED, has, locate
from .sop import read_sop

PROTOCOLS = (PROTOCOL_OPEN, PROTOCOL_SHARED)


class Archive(NamedTuple):
    """The unpacked archive of a data set: its reader, files of which its folder has at least one, and all it needs."""

    read: Callable[..., list[Photo]]
    marks: tuple[str, ...]
    holds: str


DATASETS: Mapping[str, Archive] = {
    "cub": Archive(
        read_cub, ("image_class_labels.txt", "images.txt"), "CUB_200_2011: images.txt, image_class_labels.txt, images"
    ),
    "cars": Archive(
        read_cars,
        ("car_ims", "cars_annos.mat", "cars_train", "devkit/cars_train_annos.mat"),
        "Cars-196: car_ims and cars_annos.mat, or cars_train, cars_test, devkit and cars_test_annos_withlabels.mat",
    ),
    "sop": Archive(
        read_sop,
        ("Ebay_train.txt", "Ebay_test.txt"),
        "Stanford_Online_Products: Ebay_train.txt, Ebay_test.txt, bicycle_final and the other eleven folders",
    ),
    "inshop": Archive(
        read_inshop,
        ("Eval/list_eval_partition.txt",),
        "In-shop Clothes Retrieval Benchmark: Eval/list_eval_partition.txt, Img/img",
    ),
    "inat": Archive(
        read_inat,
        ("Inat_dataset_splits", "train_val2018"),
        "iNaturalist-2018: train_val2018, and Inat_dataset_splits with Inaturalist_train_set1.txt and _test_set1.txt",
    ),
}
SHARED = ("cub", "cars")  # data sets with an official split of shared classes


def read_dataset(name: str, root: str | Path, *, protocol: str = PROTOCOL_OPEN) -> list[Photo]:
    """Return the photos of a benchmark data set in the order of its official lists.

    Parameters
    ----------
    name:
        "cub", "cars", "sop", "inshop" or "inat".
    root:
        The folder of the unpacked archive, or one up to two levels above it.
    protocol:
        "open" (disjoint items in train and test), or "shared" for CUB and Cars (each item is in both).

    `partition` is train or test, `role` gallery or query for In-Shop, `metadata["category"]` the super-label if there
    is one. Bounding boxes are left out, as in the papers. Raises DataError if a list or a photo is missing.
    """
    if name not in DATASETS:
        raise InvalidParameter("name", f"be one of {', '.join(DATASETS)}", name)
    if protocol not in PROTOCOLS:
        raise InvalidParameter("protocol", f"be one of {', '.join(PROTOCOLS)}", protocol)
    if protocol == PROTOCOL_SHARED and name not in SHARED:
        raise InvalidParameter("protocol", f"be open for {name}, which has no split of shared items", protocol)
    read, marks, holds = DATASETS[name]
    folder = find_dataset(name, root)
    if folder is None or not has(folder, marks):
        above = Path(root).resolve().parent
        raise DataError(
            f"{root} does not contain {name}: no {' or '.join(marks)}, there or up to two levels below",
            remedy=f"Name {above}" if has(above, marks) else f"Name the folder of the unpacked archive, {holds}",
        )
    return read(folder, protocol=protocol) if name in SHARED else read(folder)


def find_dataset(name: str, root: str | Path) -> Path | None:
    """Return the folder of a data set's unpacked archive, looked for from `root`/NAME on if that exists, or None."""
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder", remedy="Name the folder of the unpacked official archive")
    own = root / name
    return locate(own, DATASETS[name].marks) or own if own.is_dir() else locate(root, DATASETS[name].marks)
