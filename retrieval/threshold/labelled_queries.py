"""Labelled queries: users' photos with item ids, which a gallery keeps to measure its threshold on them."""

from __future__ import annotations

import io
from dataclasses import replace
from typing import Any

import numpy as np

from index.files import load_arrays
from index.location import AnyGallery
from index.search.leave_one_out import Probes
from retrieval.bundle.bundle import Bundle, pack_features, unpack_features

from .error_rates import LABELLED, UNKNOWN

QUERIES = "labelled queries"  # name under which a gallery keeps the queries that its own model embedded
UNKNOWN_ITEM = "unknown item of the photo {}"
FEATURES, FEATURES_KEY = "features", "features_key"  # arrays of queries with local features


def kept_queries(gallery: AnyGallery, bundle: Bundle) -> Probes | None:
    """Return the labelled queries that a gallery keeps for a bundle, None if there are none."""
    return read_queries(gallery, bundle.features_key)


def read_queries(gallery: AnyGallery, features_key: str = "") -> Probes | None:
    """Return the labelled queries that a gallery keeps, None if there are none.

    With a `features_key`, which identifies how local features are computed, queries without these features are
    ignored.
    """
    content = gallery.kept(QUERIES)
    if content is None:
        return None
    arrays = load_arrays(content)
    queries = Probes(arrays["vectors"], arrays["ids"].tolist(), arrays["items"].tolist())
    if not features_key:
        return queries
    if FEATURES not in arrays or str(arrays[FEATURES_KEY]) != features_key:
        return None
    stored = unpack_features(arrays[FEATURES].tobytes())
    return replace(queries, features=[stored[photo_id] for photo_id in queries.ids])


def pack_queries(probes: Probes, features_key: str) -> bytes:
    """Return labelled queries for a gallery to keep, with their local features if there is a `features_key`."""
    file = io.BytesIO()
    arrays: dict[str, Any] = {"ids": np.array(probes.ids, dtype=str), "items": np.array(probes.items, dtype=str)}
    if features_key:
        packed = pack_features(dict(zip(probes.ids, probes.features, strict=True)))
        arrays |= {FEATURES: np.frombuffer(packed, dtype=np.uint8), FEATURES_KEY: np.array(features_key)}
    np.savez(file, vectors=probes.vectors, **arrays)
    return file.getvalue()


def by_source(queries: Probes) -> dict[str, Probes]:
    """Return labelled queries by source: LABELLED, and UNKNOWN where the item id is empty.

    Each photo of an unknown item counts as an item of its own.
    """
    sources = {}
    for source in (LABELLED, UNKNOWN):
        rows = [row for row, item in enumerate(queries.items) if (item == "") == (source == UNKNOWN)]
        if rows:
            ids = [queries.ids[row] for row in rows]
            items = [queries.items[row] or UNKNOWN_ITEM.format(queries.ids[row]) for row in rows]
            features = [queries.features[row] for row in rows] if queries.features else ()
            sources[source] = Probes(queries.vectors[rows], ids, items, features)
    return sources
