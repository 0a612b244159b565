"""Updates of the items and metadata of stored photos."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from .checks import Additions, check_additions, check_ids, refuse_absent
from .reader import Reader
from .store import Store


def changed_facts(
    gallery: Reader,
    store: Store,
    photo_ids: Sequence[str],
    item_ids: Sequence[str],
    metadata: Sequence[Mapping[str, Any]],
) -> Additions:
    """Return stored photos with new items and metadata, and with their vectors, features and thumbnails.

    Raises InvalidParameter if a photo is not in the gallery. The caller must prevent other changes of the gallery.
    """
    ids = check_ids("photo_ids", photo_ids)
    seqs = store.seqs_of(ids)
    refuse_absent([photo_id for photo_id in ids if photo_id not in seqs])
    now = gallery.snapshot()
    positions = np.searchsorted(now.seqs, np.array([seqs[photo_id] for photo_id in ids], dtype=np.int64))
    return check_additions(
        ids,
        item_ids,
        now.vectors(positions),
        metadata,
        [store.thumbnail(photo_id) for photo_id in ids],
        now.features(positions) if gallery.features_key else None,
        dim=gallery.dim,
        features_key=gallery.features_key,
    )
