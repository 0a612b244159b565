"""Photos of a run that continues earlier ones: those of all catalogues, each photo once.

Photos that are copies of photos on the other side of the partition (items that the model is fitted on, items that are
held out) are found by their content.
"""

from __future__ import annotations

import os
from collections import defaultdict
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count

from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.photos import QUERIES, ROLES, Photo
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.reading import in_order
from retrieval.catalogue.remote import RemotePhoto
from retrieval.catalogue.splits import EvaluationProtocol, Splits, side
from retrieval.errors import ImageRefused
from retrieval.process import cores

BLOCK = 64  # photos that a thread reads

Place = tuple[object, ...]


@dataclass(frozen=True)
class MergedPhotos:
    """The photos of several catalogues."""

    photos: list[Photo]
    added: frozenset[str]  # ids of the photos in catalogues after the first one


def read_catalogues(
    catalogues: Sequence[str], protocol: EvaluationProtocol, *, left_out: Collection[str] = ()
) -> list[Photo]:
    """Return the photos of `merge_catalogues`, without those whose ids are in `left_out`."""
    photos = merge_catalogues(catalogues, protocol).photos
    return [photo for photo in photos if photo.photo_id not in left_out]


def merge_catalogues(catalogues: Sequence[str], protocol: EvaluationProtocol) -> MergedPhotos:
    """Return the photos of several catalogues, the earliest first; those of unknown items are left out.

    A photo in several catalogues is taken from the last one. A photo of a known item has the group and partition of
    that item unless it names its own. A photo from a source that the first catalogue does not have counts as one of the
    evaluation's query source, because it comes from users. A repeated photo id gets a number.
    """
    first, *others = (read_catalogue(place, labels=QUERIES) for place in catalogues)
    grouped = any(photo.group for photo in first)
    sides = {side(photo) for photo in first}
    known = {photo.item_id: photo for photo in reversed(first) if photo.item_id}
    merged: dict[Place, Photo] = {_place(photo): photo for photo in first}
    added: set[Place] = set()
    for photos in others:
        for photo in photos:
            earlier = known.setdefault(photo.item_id, photo)
            group = photo.group or earlier.group or (photo.item_id if grouped else "")
            known_photo = replace(photo, group=group, partition=photo.partition or earlier.partition)
            merged[_place(photo)] = known_photo if side(photo) in sides else _as_query(known_photo, protocol)
            added.add(_place(photo))
    found = _with_own_ids([photo for photo in merged.values() if photo.item_id])
    return MergedPhotos(found, frozenset(photo.photo_id for photo in found if _place(photo) in added))


def _as_query(photo: Photo, protocol: EvaluationProtocol) -> Photo:
    source = protocol.query_source
    return replace(photo, role=source) if source and source in ROLES else replace(photo, source=source, role="")


def _place(photo: Photo) -> Place:
    """Return the key of a photo: its file or URL, its place in the file, and its bounding box."""
    file = photo.url if isinstance(photo, RemotePhoto) else os.path.normpath(photo.path.absolute())
    return file, photo.span, photo.bbox


def _with_own_ids(photos: Sequence[Photo]) -> list[Photo]:
    """Return photos with unique ids: a repeated id gets a number."""
    taken = {photo.photo_id for photo in photos}
    seen: set[str] = set()
    found = []
    for photo in photos:
        photo_id = photo.photo_id
        if photo_id in seen:
            names = (f"{photo_id} ({number})" for number in count(2))
            photo_id = next(name for name in names if name not in taken)
            taken.add(photo_id)
        seen.add(photo_id)
        found.append(replace(photo, photo_id=photo_id))
    return found


def copies_across(photos: Sequence[Photo], splits: Splits, *, added: Collection[str]) -> list[str]:
    """Return the ids of added photos that are copies of photos on the other side.

    A copy has the same file content and bounding box, under any name. Of two added photos, the later one is returned.
    """
    if not added:
        return []
    fit = set(splits.fit)
    sides: dict[str, set[bool]] = defaultdict(set)
    found = []
    ordered = sorted(photos, key=lambda photo: photo.photo_id in added)
    blocks = (ordered[start : start + BLOCK] for start in range(0, len(ordered), BLOCK))
    hashes = in_order(_hashes, blocks, threads=cores())
    for photo, digest in zip(ordered, (digest for block in hashes for digest in block), strict=True):
        is_fit = photo.item_id in fit
        if digest is None:
            continue
        if photo.photo_id in added and (not is_fit) in sides[digest]:
            found.append(photo.photo_id)
        else:
            sides[digest].add(is_fit)
    return found


def _hashes(photos: Sequence[Photo]) -> list[str | None]:
    """Return the content hash of each photo, None where it cannot be read: training reports such photos."""
    return [_hash(photo) for photo in photos]


def _hash(photo: Photo) -> str | None:
    try:
        return content_hash(photo.read(), photo.bbox)
    except ImageRefused:
        return None
