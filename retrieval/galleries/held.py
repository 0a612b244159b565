"""Removals that can be undone for a day: a gallery holds the removed photos back, each removal as one content.

One more content lists the names of these, which have the time of the removal. After a day a running server drops them;
a rebuild or an erasure of the gallery drops all of them.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from secrets import token_hex

import numpy as np

from index.database import DATABASE, empty_log
from index.files import load_arrays, pack_arrays
from index.gallery import Gallery
from index.location import AnyGallery
from retrieval.bundle.bundle import pack_features, unpack_features

HELD = "removed "  # beginning of the names of these contents, and the name of their list
HELD_FOR = timedelta(days=1)
TIME = "%Y%m%dT%H%M%SZ"  # in names


@dataclass(frozen=True)
class Removal:
    """Photos that were removed together."""

    removal: str  # name, by which they can be restored
    time: datetime
    photo_ids: Sequence[str]
    item_ids: Sequence[str]  # of each photo

    @property
    def until(self) -> datetime:
        """The time until which they can be restored."""
        return self.time + HELD_FOR


def remove(gallery: AnyGallery, photo_ids: Sequence[str], *, actor: str | None = None) -> str:
    """Remove photos of a gallery and hold them back; return the name of the removal."""
    now = gallery.snapshot()
    positions = now.positions(photo_ids)
    stored = now.photos_at(positions)
    jpegs = {photo_id: gallery.thumbnail(photo_id) or b"" for photo_id in photo_ids}
    arrays = {
        "ids": np.array(photo_ids, dtype=str),
        "items": np.array([item for _, item, _ in stored], dtype=str),
        "metadata": np.array([json.dumps(metadata) for *_, metadata in stored], dtype=str),
        "vectors": now.vectors(positions),
        "thumbnails": np.frombuffer(pack_features(jpegs), dtype=np.uint8),
    }
    if gallery.features_key:
        packed = pack_features(dict(zip(photo_ids, now.features(positions), strict=True)))
        arrays["features"] = np.frombuffer(packed, dtype=np.uint8)
    name = f"{datetime.now(UTC).strftime(TIME)}-{token_hex(4)}"
    held = {HELD + name: pack_arrays(arrays), HELD: json.dumps([*names(gallery), HELD + name]).encode()}
    gallery.keep(held, f"hold back {len(photo_ids)} photos for a day", actor=actor)
    gallery.remove(photo_ids=photo_ids, actor=actor)
    return name


def names(gallery: AnyGallery) -> list[str]:
    """Return the names of the contents that hold photos back, the oldest first."""
    return list(json.loads(gallery.kept(HELD) or b"[]"))


def removals(gallery: AnyGallery) -> list[Removal]:
    """Return the removals that can be undone, the newest first."""
    found = []
    for name in reversed(names(gallery)):
        if (content := gallery.kept(name)) is not None and not _is_over(name):
            arrays = load_arrays(content)
            ids, items = arrays["ids"].tolist(), arrays["items"].tolist()
            found.append(Removal(name.removeprefix(HELD), _time(name), ids, items))
    return found


def restore(gallery: AnyGallery, removal: Removal, *, actor: str | None = None) -> None:
    """Add the photos of a removal again; raise InvalidParameter if the gallery has one of their ids."""
    content = gallery.kept(HELD + removal.removal)
    if content is None:
        return
    arrays = load_arrays(content)
    jpegs, packed = unpack_features(arrays["thumbnails"].tobytes()), arrays.get("features")
    features = None if packed is None else unpack_features(packed.tobytes())
    gallery.add(
        removal.photo_ids,
        removal.item_ids,
        arrays["vectors"],
        metadata=[json.loads(text) for text in arrays["metadata"].tolist()],
        thumbnails=[jpegs[photo_id] or None for photo_id in removal.photo_ids],
        features=None if features is None else [features[photo_id] for photo_id in removal.photo_ids],
        actor=actor,
    )
    _drop(gallery, [HELD + removal.removal], actor)


def contents(gallery: AnyGallery, item_ids: Collection[str]) -> tuple[list[bytes], list[bytes]]:
    """Return the thumbnails and the vectors of the photos of some items that a gallery holds back."""
    thumbnails, vectors = list[bytes](), list[bytes]()
    for name in names(gallery):
        arrays = load_arrays(gallery.kept(name) or b"")
        jpegs = unpack_features(arrays["thumbnails"].tobytes())
        for photo_id, item, vector in zip(arrays["ids"].tolist(), arrays["items"], arrays["vectors"], strict=True):
            if item in item_ids:
                thumbnails.append(jpegs[photo_id])
                vectors.append(vector.tobytes())
    return thumbnails, vectors


def has_old(gallery: AnyGallery) -> bool:
    """Return whether a gallery holds photos that were removed more than a day ago."""
    return any(map(_is_over, names(gallery)))


def drop(gallery: AnyGallery, *, only_old: bool = False) -> None:
    """Drop the photos that a gallery holds back, or those that were removed more than a day ago."""
    _drop(gallery, [name for name in names(gallery) if not only_old or _is_over(name)], None)


def _drop(gallery: AnyGallery, gone: Sequence[str], actor: str | None) -> None:
    if gone:
        left = [name for name in names(gallery) if name not in gone]
        rest = {HELD: json.dumps(left).encode() if left else None}
        gallery.keep(dict.fromkeys(gone) | rest, "drop what was held back of removed photos", actor=actor)
        if isinstance(gallery, Gallery):
            empty_log(gallery.path / DATABASE)


def _time(name: str) -> datetime:
    return datetime.strptime(name.removeprefix(HELD).partition("-")[0], TIME).replace(tzinfo=UTC)


def _is_over(name: str) -> bool:
    return datetime.now(UTC) > _time(name) + HELD_FOR
