"""Reads any of the benchmark data sets."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from retrieval.catalogue.read import Photo
from retrieval.errors import DataError, InvalidParameter

from .cars import read_cars
from .cub import read_cub
from .inat import read_inat
from .inshop import read_inshop
from .layout import PROTOCOL_OPEN, PROTOCOL_SHARED
from .sop import read_sop

PROTOCOLS = (PROTOCOL_OPEN, PROTOCOL_SHARED)
DATASETS: Mapping[str, Callable[..., list[Photo]]] = {
    "cub": read_cub,
    "cars": read_cars,
    "sop": read_sop,
    "inshop": read_inshop,
    "inat": read_inat,
}
SHARED = ("cub", "cars")  # data sets with an official split of shared classes


def read_dataset(name: str, root: str | Path, *, protocol: str = PROTOCOL_OPEN) -> list[Photo]:
    """Return the photos of a benchmark data set in the order of its official lists.

    Parameters
    ----------
    name:
        "cub", "cars", "sop", "inshop" or "inat".
    root:
        The folder of the official archive, or its parent.
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
    root = Path(root)
    if not root.is_dir():
        raise DataError(f"{root} is not a folder", remedy="Name the folder of the unpacked official archive")
    return DATASETS[name](root, protocol=protocol) if name in SHARED else DATASETS[name](root)
