"""Photos of a run that continues earlier runs: the photos of all catalogues, each once, and their contents."""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.photos import QUERIES, ROLES, Photo
from retrieval.catalogue.read import read_catalogue, with_groups
from retrieval.catalogue.remote import RemotePhoto
from retrieval.catalogue.splits import EvaluationProtocol, side
from retrieval.errors import ImageRefused
from retrieval.process import cores

Place = tuple[object, ...]


def merge_catalogues(catalogues: Sequence[str], protocol: EvaluationProtocol) -> list[Photo]:
    """Return the photos of known items of several catalogues, the earliest first.

    A photo in several catalogues is taken from the last one. A photo of a known item has the group and partition of
    that item unless it names its own. A photo from a source that the first catalogue does not have counts as one of the
    evaluation's query source, because it comes from users. A repeated photo id gets a number.
    """
    first, *others = (read_catalogue(place, labels=QUERIES) for place in catalogues)
    grouped = any(photo.group for photo in first)
    sides = {side(photo) for photo in first}
    known = {photo.item_id: photo for photo in reversed(first) if photo.item_id}
    merged: dict[Place, Photo] = {place_of(photo): photo for photo in first}
    for photos in others:
        for photo in photos:
            earlier = known.setdefault(photo.item_id, photo)
            group = photo.group or earlier.group or (photo.item_id if grouped else "")
            known_photo = replace(photo, group=group, partition=photo.partition or earlier.partition)
            merged[place_of(photo)] = known_photo if side(photo) in sides else _as_query(known_photo, protocol)
    by_id: dict[str, Photo] = {}
    for photo in merged.values():
        photo_id = photo.photo_id
        while photo_id in by_id:
            photo_id += " (2)"
        if photo.item_id:
            by_id[photo_id] = replace(photo, photo_id=photo_id)
    return with_groups([*by_id.values()])


def _as_query(photo: Photo, protocol: EvaluationProtocol) -> Photo:
    source = protocol.query_source
    return replace(photo, role=source) if source and source in ROLES else replace(photo, source=source, role="")


def place_of(photo: Photo) -> Place:
    """Return the key of a photo: its file or URL, its place in the file, and its bounding box."""
    file = photo.url if isinstance(photo, RemotePhoto) else os.path.normpath(photo.path.absolute())
    return file, photo.span, photo.bbox


def photo_contents(photos: Sequence[Photo]) -> dict[str, str]:
    """Return the hash of the file content and bounding box of each photo, by its id."""
    with ThreadPoolExecutor(cores()) as pool:
        digests = pool.map(photo_content, photos)
        return {photo.photo_id: digest for photo, digest in zip(photos, digests, strict=True)}


def is_fitted(photo: Photo, fitted: Fitted, content: str | None) -> bool:
    """Return whether a model was fitted on a photo with a content hash, on its item, or on its item's group.

    Without a content hash, the item and its group decide.
    """
    return fitted.contains(photo.item_id, content) or fitted.contains(photo.group_key, None)


def photo_content(photo: Photo) -> str:
    """Return the hash of a photo's content, its id where it cannot be read: training reports such photos."""
    try:
        return content_hash(photo.read(), photo.bbox)
    except ImageRefused:
        return photo.photo_id
