"""Readers of the benchmark data sets in their official layouts, with their official splits.

`read_dataset("cub", "CUB_200_2011")` returns the photos with `partition` train or test. Two protocols:

open     disjoint items in train and test: the official split (SOP, In-Shop, iNaturalist), or the first and the second
         half of the classes (CUB 1 to 100 and 101 to 200, Cars 1 to 98 and 99 to 196)
shared   CUB and Cars only: the official split for classification, in which every class has training and test photos,
         as in the main tables of the TCM paper (arXiv 2307.04047, Section 5). Items are then in both parts, which
         `retrieval train` refuses; select the photos by `partition`.

The official lists have no calibration items: `set_aside` takes some from the training part.
"""

from .calibration import set_aside
from .read import DATASETS, PROTOCOLS, find_dataset, read_dataset

__all__ = ["DATASETS", "PROTOCOLS", "find_dataset", "read_dataset", "set_aside"]
