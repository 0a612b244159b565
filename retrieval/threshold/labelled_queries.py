"""Labelled queries: users' photos with item ids, which a gallery keeps to measure its threshold on them.

The *query shift* is by how much users' photos are farther from other items than gallery photos of the same items are.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.files import load_arrays
from index.location import AnyGallery
from index.search.leave_one_out import OWN, Draws, Probes
from index.snapshot import GROUP, group_of
from retrieval.bundle.bundle import Bundle, pack_features, unpack_features
from retrieval.catalogue.photos import Photo
from retrieval.errors import DataError, counted, listed
from retrieval.indexing.worker import CONTENT, Batch, embed_batch
from retrieval.metrics.identification import SearchScores

from .error_rates import LABELLED, LEAST_ITEMS, PROBE, REFERENCE, UNKNOWN, Shift

QUERIES = "labelled queries"  # name under which a gallery keeps the queries that its own model embedded
UNKNOWN_ITEM = "unknown item of the photo {}"
QUANTILES = np.linspace(0.02, 0.25, 24)  # the shift is the mean difference of these quantiles
RESAMPLES = 200
BATCH = 64  # labelled photos per batch
FEATURES, FEATURES_KEY = "features", "features_key"  # arrays of queries with local features

Floats = NDArray[np.float64]


def embed_queries(bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo]) -> tuple[Probes, list[tuple[str, str]]]:
    """Return the vectors of the usable labelled photos, and the id and reason of each refused photo.

    A photo that is in the gallery is refused, because it would find itself, and so are copies of a photo. Raises
    DataError if no photo can be used, or most show items that are not in the gallery.
    """
    indexed = {digest for *_, digest in gallery.values(CONTENT)}
    embedder = bundle.embedder()
    batches = [embed_batch(embedder, photos[start : start + BATCH], {}) for start in range(0, len(photos), BATCH)]
    refused = [(photo_id, error.message) for batch in batches for photo_id, error in batch.refused]
    whole = Batch.of(batches)
    kept, first = list[int](), dict[str, str]()
    for place, (photo, digest) in enumerate(zip(whole.photos, whole.hashes, strict=True)):
        if digest in indexed:
            refused.append((photo.photo_id, "the photo is in the gallery, so it would find itself"))
        elif digest in first:
            refused.append((photo.photo_id, f"it is the same photo as {first[digest]}"))
        else:
            kept.append(place)
            first[digest] = photo.photo_id
    if whole.vectors is None or not kept:
        raise DataError(
            f"none of the labelled photos can be used: {listed([': '.join(each) for each in refused], between='; ')}",
            remedy="Label photos that users took and that are not in the gallery",
        )
    ids, items = ([getattr(whole.photos[place], name) for place in kept] for name in ("photo_id", "item_id"))
    named = [item for item in items if item]
    missing = [item for item in named if not gallery.photos(item)]
    if 2 * len(missing) > len(named):
        raise DataError(
            f"{counted(len(missing), 'labelled photo shows an item', 'labelled photos show items')} that the gallery "
            f"does not have, of {len(named)} in all: {listed(sorted(set(missing)))}",
            remedy="Use the item ids of the gallery, or an empty one where a photo shows no item of it",
        )
    features = [whole.features[place] for place in kept] if whole.features else ()
    groups = [group_of(photo.item_id, {GROUP: photo.group}) for photo in whole.photos]
    return Probes(whole.vectors[kept], ids, items, features, [groups[place] for place in kept]), refused


def read_queries(gallery: AnyGallery, features_key: str = "") -> Probes | None:
    """Return the labelled queries that a gallery keeps, None if there are none.

    With a `features_key`, which identifies how local features are computed, queries without these features are
    ignored.
    """
    content = gallery.kept(QUERIES)
    if content is None:
        return None
    arrays = load_arrays(content)
    groups = arrays["groups"].tolist() if "groups" in arrays else ()
    queries = Probes(arrays["vectors"], arrays["ids"].tolist(), arrays["items"].tolist(), groups=groups)
    if not features_key:
        return queries
    if FEATURES not in arrays or str(arrays[FEATURES_KEY]) != features_key:
        return None
    stored = unpack_features(arrays[FEATURES].tobytes())
    return replace(queries, features=[stored[photo_id] for photo_id in queries.ids])


def pack_queries(probes: Probes, features_key: str) -> bytes:
    """Return labelled queries for a gallery to keep, with their local features if there is a `features_key`."""
    file = io.BytesIO()
    arrays: dict[str, Any] = {
        name: np.array(getattr(probes, name), dtype=str) for name in ("ids", "items", "groups") if getattr(probes, name)
    }
    if features_key:
        packed = pack_features(dict(zip(probes.ids, probes.features, strict=True)))
        arrays |= {FEATURES: np.frombuffer(packed, dtype=np.uint8), FEATURES_KEY: np.array(features_key)}
    np.savez(file, vectors=probes.vectors, **arrays)
    return file.getvalue()


def by_source(queries: Probes) -> dict[str, Probes]:
    """Return labelled queries by source: LABELLED, and UNKNOWN where the item id is empty.

    Each photo of an unknown item counts as an item of its own, or those of one group as one.
    """
    sources = {}
    for source in (LABELLED, UNKNOWN):
        rows = [row for row, item in enumerate(queries.items) if (item == "") == (source == UNKNOWN)]
        if rows:
            found = queries.where(rows)
            items = [item or UNKNOWN_ITEM.format(photo) for item, photo in zip(found.items, found.ids, strict=True)]
            sources[source] = replace(found, items=items)
    return sources


def measure_shift(queries: SearchScores, gallery: SearchScores, *, seed: int = 0) -> Shift:
    """Measure the query shift from searches with two kinds of photos of the same items.

    Parameters
    ----------
    queries, gallery:
        Searches (n,) with users' photos and (m,) with gallery photos. `impostor` is the distance to the nearest other
        item. Only items in both are used.
    """
    items = np.intersect1d(queries.labels, gallery.labels)
    if len(items) < LEAST_ITEMS:
        return Shift(items=len(items))
    users, catalogue = (_Side.of(scores, items) for scores in (queries, gallery))

    def difference(copies: NDArray[np.int64]) -> float:
        return float((users.quantiles(copies) - catalogue.quantiles(copies)).mean())

    generator, count = np.random.default_rng(seed), len(items)
    resampled = [
        difference(np.bincount(generator.integers(0, count, count), minlength=count)) for _ in range(RESAMPLES)
    ]
    return Shift(difference(np.ones(count, np.int64)), float(np.std(resampled)), count)


def gallery_shift(sources: Mapping[str, Draws]) -> Shift:
    """Return the query shift, from labelled queries if there are enough, else from the bundle's calibration photos."""
    for users, catalogue in ((LABELLED, OWN), (PROBE, REFERENCE)):
        if users in sources and catalogue in sources:
            shown, own = sources[users], sources[catalogue]
            if users == PROBE:  # photos without a role are on both sides, and show no shift
                shown = shown.where(~np.isin(shown.ids, own.ids))
            shift = measure_shift(_searches(shown), _searches(own))
            if shift.items >= LEAST_ITEMS:
                return shift
    return Shift()


def _searches(draws: Draws) -> SearchScores:
    finite = np.isfinite(draws.distances)
    return SearchScores(draws.groups[finite], draws.own[finite], draws.distances[finite], 0)


@dataclass(frozen=True)
class _Side:
    """The distances (n,) of the photos of one kind, ascending, with the number of each one's item and its weight."""

    distances: Floats
    codes: NDArray[np.int64]
    weights: Floats  # 1 / photos of the item

    @classmethod
    def of(cls, scores: SearchScores, items: NDArray[np.generic]) -> _Side:
        """Return the side of some items (k,), ascending."""
        chosen = np.flatnonzero(np.isin(scores.labels, items))
        codes = np.searchsorted(items, scores.labels[chosen])
        order = np.argsort(scores.impostor[chosen], kind="stable")
        weights = 1 / np.bincount(codes, minlength=len(items))[codes]
        return cls(scores.impostor[chosen][order], codes[order], weights[order])

    def quantiles(self, copies: NDArray[np.int64]) -> Floats:
        """Return the quantiles of a sample with some copies of each item (k,), with items weighted equally."""
        rows = np.repeat(np.arange(len(self.codes)), copies[self.codes])
        weights = self.weights[rows] / copies.sum()
        middles = np.cumsum(weights) - weights / 2
        return np.interp(QUANTILES, middles, self.distances[rows])
