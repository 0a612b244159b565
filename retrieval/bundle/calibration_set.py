"""Calibration sets: the searches that a bundle's threshold was chosen on.

calibration.npz holds n searches with photos of items that were used for nothing else: the distances `own` and
`impostor` (n,) and `near` (n, k); `certainty`, `item_id`, `group` and `photo_id` (n,); `vector` (n, d) and
`appearance` (n, 3) of the query photos; and `gallery_items`. `gallery_vector` (m, d), `gallery_item` and
`gallery_photo` (m,) are the photos that were searched.
"""

from __future__ import annotations

import io
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from index.files import load_arrays
from index.search.leave_one_out import Probes
from retrieval.errors import BundleError
from retrieval.metrics.identification import SearchScores


@dataclass(frozen=True)
class CalibrationSet:
    """The searches that a bundle was calibrated on."""

    scores: SearchScores
    groups: NDArray[np.str_] | None  # (n,) groups of related items, if the catalogue has them
    photo_ids: NDArray[np.str_]  # (n,)
    certainties: NDArray[np.float32]  # (n,)
    vectors: NDArray[np.float32] | None = None  # (n, d) of the query photos
    appearances: NDArray[np.float32] | None = None  # (n, 3) brightness, contrast, sharpness
    gallery: Probes | None = None  # the photos that were searched, m with their items

    def pack(self) -> bytes:
        """Serialize as npz."""
        scores = self.scores
        if scores.near is None:
            raise BundleError("the searches kept no nearest items")
        gallery = self.gallery or Probes(np.zeros((0, 0), np.float32), [], [])
        file = io.BytesIO()
        np.savez_compressed(
            file,
            own=scores.own,
            impostor=scores.impostor,
            near=scores.near,
            item_id=scores.labels.astype(str),
            group=np.array([], dtype=str) if self.groups is None else self.groups.astype(str),
            photo_id=self.photo_ids.astype(str),
            certainty=self.certainties,
            vector=np.zeros((0, 0), np.float32) if self.vectors is None else self.vectors,
            appearance=np.zeros((0, 3), np.float32) if self.appearances is None else self.appearances,
            gallery_items=np.array(scores.gallery_items),
            gallery_vector=gallery.vectors,
            gallery_item=np.array(gallery.items, dtype=str),
            gallery_photo=np.array(gallery.ids, dtype=str),
        )
        return file.getvalue()

    @classmethod
    def unpack(cls, data: bytes) -> CalibrationSet:
        """Read the output of `pack`."""
        file = load_arrays(data)
        groups = file["group"] if len(file["group"]) else None
        scores = SearchScores(
            file["item_id"], file["own"], file["impostor"], int(file["gallery_items"]), near=file["near"]
        )
        vectors = file["vector"] if "vector" in file and len(file["vector"]) else None
        looks = file["appearance"] if "appearance" in file and len(file["appearance"]) else None
        gallery = None
        if "gallery_vector" in file and len(file["gallery_vector"]):
            gallery = Probes(file["gallery_vector"], file["gallery_photo"].tolist(), file["gallery_item"].tolist())
        return cls(scores, groups, file["photo_id"], file["certainty"], vectors, looks, gallery)
