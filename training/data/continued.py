"""Photos of a run that continues earlier ones: those of all catalogues, each photo once."""

from __future__ import annotations

import os
from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace
from itertools import count

from retrieval.catalogue.photos import QUERIES, ROLES, Photo
from retrieval.catalogue.read import read_catalogue
from retrieval.catalogue.remote import RemotePhoto

from .splits import EvaluationProtocol, side

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
