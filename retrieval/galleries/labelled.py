"""Labelled queries of a gallery: users' photos with item ids, embedded to measure its threshold on them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from index.groups import GROUP, group_of
from index.location import AnyGallery
from index.photos import CONTENT
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.ids import as_spelled, describe_missing
from retrieval.catalogue.photos import Photo
from retrieval.errors import DataError, counted, listed
from retrieval.indexing.worker import Batch, embed_batch, looks_of
from retrieval.measuring.draws import Probes

BATCH = 64  # labelled photos per batch


def embed_queries(bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo]) -> tuple[Probes, list[tuple[str, str]]]:
    """Return the vectors of the usable labelled photos, and the id and reason of each refused photo.

    A photo that is in the gallery is refused, because it would find itself, and so are copies of a photo. Raises
    DataError if no photo can be used, or if most photos show items that are not in the gallery.
    """
    contents = list(gallery.values(CONTENT))
    indexed, known = {digest for *_, digest in contents}, {item for _, item, _ in contents}
    photos = as_spelled(photos, known)
    embedder = bundle.embedder()
    twice = {photo.photo_id for photo in photos if bundle.looks_twice}
    starts = range(0, len(photos), BATCH)
    batches = [embed_batch(embedder, photos[start : start + BATCH], {}, twice=twice) for start in starts]
    refused = [(photo_id, str(error)) for batch in batches for photo_id, error in batch.refused]
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
    missing = Counter(item for item in named if item not in known)
    if 2 * missing.total() > len(named):
        raise DataError(
            f"{counted(missing.total(), 'labelled photo shows an item', 'labelled photos show items')} that the "
            f"gallery does not have, of {len(named)} in all: {listed(describe_missing(missing, known))}",
            remedy="Use the item ids of the gallery, or an empty item id for a photo that shows none of them",
        )
    features = [whole.features[place] for place in kept] if whole.features else ()
    groups = [group_of(photo.item_id, {GROUP: photo.group}) for photo in whole.photos]
    looks = looks_of(whole, ids) if bundle.looks_twice else None
    return Probes(whole.vectors[kept], ids, items, features, [groups[place] for place in kept], looks=looks), refused
