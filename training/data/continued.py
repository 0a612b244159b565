"""Photos of a run that continues earlier ones: those of all catalogues, each photo once.

Photos that are copies of photos on the other side of the partition (items that the model is fitted on, items that are
held out) are found by their content.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.catalogue.photos import QUERIES, ROLES, Photo
from retrieval.catalogue.read import read_catalogue, with_groups
from retrieval.catalogue.remote import RemotePhoto
from retrieval.catalogue.splits import EvaluationProtocol, Splits, side
from retrieval.errors import ImageRefused
from retrieval.process import cores

Place = tuple[object, ...]


def merge_catalogues(catalogues: Sequence[str], protocol: EvaluationProtocol) -> tuple[list[Photo], set[str]]:
    """Return the photos of several catalogues, and the ids of those that are in a catalogue after the first one.

    The earliest photos come first; those of unknown items are left out.

    A photo in several catalogues is taken from the last one. A photo of a known item has the group and partition of
    that item unless it names its own. A photo from a source that the first catalogue does not have counts as one of the
    evaluation's query source, because it comes from users. A repeated photo id gets a number.
    """
    first, *others = (read_catalogue(place, labels=QUERIES) for place in catalogues)
    grouped = any(photo.group for photo in first)
    sides = {side(photo) for photo in first}
    known = {photo.item_id: photo for photo in reversed(first) if photo.item_id}
    merged: dict[Place, Photo] = {place_of(photo): photo for photo in first}
    added: set[Place] = set()
    for photos in others:
        for photo in photos:
            earlier = known.setdefault(photo.item_id, photo)
            group = photo.group or earlier.group or (photo.item_id if grouped else "")
            known_photo = replace(photo, group=group, partition=photo.partition or earlier.partition)
            merged[place_of(photo)] = known_photo if side(photo) in sides else _as_query(known_photo, protocol)
            added.add(place_of(photo))
    found: dict[str, Photo] = {}
    for photo in merged.values():
        photo_id = photo.photo_id
        while photo_id in found:
            photo_id += " (2)"
        if photo.item_id:
            found[photo_id] = replace(photo, photo_id=photo_id)
    return with_groups([*found.values()]), {photo_id for photo_id, photo in found.items() if place_of(photo) in added}


def _as_query(photo: Photo, protocol: EvaluationProtocol) -> Photo:
    source = protocol.query_source
    return replace(photo, role=source) if source and source in ROLES else replace(photo, source=source, role="")


def place_of(photo: Photo) -> Place:
    """Return the key of a photo: its file or URL, its place in the file, and its bounding box."""
    file = photo.url if isinstance(photo, RemotePhoto) else os.path.normpath(photo.path.absolute())
    return file, photo.span, photo.bbox


def copies_across(
    photos: Sequence[Photo],
    splits: Splits,
    contents: Mapping[str, str],
    *,
    added: Collection[str],
    fitted: Fitted,
) -> set[str]:
    """Return the ids of added photos that are copies of photos on the other side, and of fitted ones that are held out.

    A copy has the same content in `contents`, under any name. Of two added photos, the later one is returned. `fitted`
    is what the earlier run was fitted on: photos of it, or variants, may be under held-out items now.
    """
    fit = set(splits.fit)
    sides: dict[str, set[bool]] = defaultdict(set)
    found = set()
    for photo in sorted(photos, key=lambda photo: photo.photo_id in added):
        digest, is_fit = contents[photo.photo_id], photo.item_id in fit
        is_copy = photo.photo_id in added and (not is_fit) in sides[digest]
        if is_copy or (not is_fit and is_fitted(photo, fitted, digest)):
            found.add(photo.photo_id)
        else:
            sides[digest].add(is_fit)
    return found


def photo_contents(photos: Sequence[Photo]) -> dict[str, str]:
    """Return the hash of the file content and bounding box of each photo, by its id."""
    with ThreadPoolExecutor(cores()) as pool:
        digests = pool.map(photo_content, photos)
        return {photo.photo_id: digest for photo, digest in zip(photos, digests, strict=True)}


def is_fitted(photo: Photo, fitted: Fitted, content: str) -> bool:
    """Return whether a model was fitted on a photo with a content hash, on its item, or on its item's group."""
    return fitted.contains(photo.item_id, content) or fitted.contains(photo.group_key, None)


def photo_content(photo: Photo) -> str:
    """Return the hash of a photo's content, its id where it cannot be read: training reports such photos."""
    try:
        return content_hash(photo.read(), photo.bbox)
    except ImageRefused:
        return photo.photo_id
