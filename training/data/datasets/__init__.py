"""The benchmark sets in their official layouts, with their official splits, one reader a file.

`read_dataset("cub", "CUB_200_2011")` returns the photos with `partition` train or test. Two protocols:

open     the items of the parts are disjoint: the split of the set itself (SOP, In-Shop, iNaturalist), or the first
         and the second half of the classes (CUB 1 to 100 and 101 to 200, Cars 1 to 98 and 99 to 196)
shared   CUB and Cars only: the set's own split for classification, in which every class has training and test
         photos, as in the main tables of the TCM paper (arXiv 2307.04047, Section 5). An item then stands in both
         parts, which `retrieval train` refuses; take the two lists by `partition`.

The official lists hold no calibration items: `set_aside` takes some from the training part.
"""

from .read import DATASETS, PROTOCOLS, read_dataset
from .set_aside import set_aside

__all__ = ["DATASETS", "PROTOCOLS", "read_dataset", "set_aside"]
