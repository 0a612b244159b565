"""Photos for the threshold of searches by regions: read from a table, embedded, and kept by the gallery.

Lines of the table with the same file are one photo with several items. All items of a photo are left out of its draw.
"""

from __future__ import annotations

import io
import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from index.arrays import load_arrays
from index.drawable import Drawable
from index.region_draws import RegionProbes
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.remote import RemotePhoto
from retrieval.errors import DataError, ImageRefused
from retrieval.images import center_crop_resize, open_image
from retrieval.regions.boxes import cropped
from retrieval.regions.policy import RegionPolicy

from .drawn_distances import LABELLED, UNKNOWN
from .labelled_queries import UNKNOWN_ITEM
from .reviewed_photos import ALL_JUDGED

PHOTOS = "photos of regions {}"  # name under which a gallery keeps them, by policy
MOST_REGIONS, MOST_BYTES = 20_000, 32 * 2**20  # of all photos together, and of their vectors
MOST_ITEMS = 32  # of a photo


@dataclass(frozen=True)
class RegionPhotos:
    """Photos divided into regions, embedded."""

    probes: RegionProbes  # the items of a photo of unknown items are empty
    indexed: frozenset[str] = frozenset()  # ids of the photos that are in the gallery themselves

    def by_source(self, fitted: Collection[str]) -> dict[str, RegionProbes]:
        """Return the photos by source: LABELLED, and UNKNOWN where a photo has no items.

        Each photo of unknown items counts as an item of its own. If a photo shows an item that the model was fitted on,
        its draw counts as one of that item.
        """
        sources: dict[str, list[int]] = {LABELLED: [], UNKNOWN: []}
        named = []
        for number, items in enumerate(self.probes.items):
            sources[LABELLED if items else UNKNOWN].append(number)
            first = sorted(items, key=lambda item: item not in fitted)
            named.append(first or [UNKNOWN_ITEM.format(self.probes.ids[number])])
        whole = RegionProbes(self.probes.vectors, self.probes.photos, self.probes.ids, named)
        return {name: whole.where(numbers) for name, numbers in sources.items() if numbers}

    def pack(self) -> bytes:
        """Return the photos for a gallery to keep."""
        file = io.BytesIO()
        texts = {"items": [list(items) for items in self.probes.items], "indexed": sorted(self.indexed)}
        packed = np.frombuffer(json.dumps({"ids": list(self.probes.ids), **texts}).encode(), dtype=np.uint8)
        np.savez(file, vectors=self.probes.vectors, photos=self.probes.photos, about=packed)
        return file.getvalue()

    @classmethod
    def read(cls, gallery: Drawable, regions: str) -> RegionPhotos | None:
        """Return the photos that a gallery keeps for a policy, None if there are none."""
        content = gallery.kept(PHOTOS.format(regions))
        if content is None:
            return None
        arrays = load_arrays(content)
        about = json.loads(arrays["about"].tobytes())
        probes = RegionProbes(arrays["vectors"], arrays["photos"], about["ids"], about["items"])
        return cls(probes, frozenset(about["indexed"]))


def embed_region_photos(
    bundle: Bundle, photos: Sequence[Photo], policy: RegionPolicy, indexed: Collection[str]
) -> tuple[RegionPhotos, list[tuple[str, str]]]:
    """Return the usable photos, divided into regions, and the id and reason of each refused photo.

    `indexed` has the content hashes of the gallery's photos. Raises DataError if no photo can be used.
    """
    embedder = bundle.embedder()
    grouped = _by_file(photos)
    refused: list[tuple[str, str]] = []
    vectors, numbers, items = [], [], []
    ids: list[str] = []
    found: list[str] = []
    left = most = min(MOST_REGIONS, MOST_BYTES // (4 * bundle.dim))
    for first, own, complete in grouped:
        if not complete:
            refused.append((first.photo_id, "not all items that were found in it were judged"))
            continue
        if left < policy.most:
            refused.append((first.photo_id, f"the photos before it have about {most:,} regions, which is the limit"))
            continue
        try:
            data = first.read()
            image = open_image(data)
            regions = policy.find(image)
        except ImageRefused as error:
            refused.append((first.photo_id, error.message))
            continue
        if not regions or len(own) > MOST_ITEMS:
            reason = "no region was found in it" if not regions else f"it has more than {MOST_ITEMS} items"
            refused.append((first.photo_id, reason))
            continue
        squares = [center_crop_resize(cropped(image, region.bbox), embedder.preprocessing) for region in regions]
        vectors.append(embedder.embed_pixels(np.stack(squares)).vectors)
        numbers.append(np.full(len(squares), len(ids)))
        if content_hash(data, None) in indexed:
            found.append(first.photo_id)
        ids.append(first.photo_id)
        items.append(own)
        left -= len(squares)
    if not ids:
        raise DataError(
            f"none of the photos can be used, such as {refused[0][0]}: {refused[0][1]}",
            remedy="Pass photos like those that users send",
        )
    probes = RegionProbes(np.concatenate(vectors), np.concatenate(numbers), ids, items)
    return RegionPhotos(probes, frozenset(found)), refused


def _by_file(photos: Sequence[Photo]) -> list[tuple[Photo, list[str], bool]]:
    """Return the first line of each file, its items, and whether they are all that it shows, as far as is known.

    A line without an item adds none. Exported feedback says whether all items of a photo were judged.
    """
    groups: dict[object, tuple[Photo, list[str]]] = {}
    partly: set[object] = set()
    for photo in photos:
        file = photo.url if isinstance(photo, RemotePhoto) else (photo.path, photo.span)
        key = file if type(photo) in (Photo, RemotePhoto) else photo.photo_id  # others hold their content
        items = groups.setdefault(key, (photo, []))[1]
        if photo.item_id and photo.item_id not in items:
            items.append(photo.item_id)
        if photo.metadata.get(ALL_JUDGED) is False:
            partly.add(key)
    return [(*group, key not in partly) for key, group in groups.items()]
