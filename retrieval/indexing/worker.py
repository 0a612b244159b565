"""The way of a photo into a gallery: decode, embed, describe and write; for the command line, HTTP and Ray."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from index.location import AnyGallery
from index.photos import CONTENT
from retrieval.bundle.embedder import Embedder
from retrieval.bundle.fitted import content_hash
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.reading import Content, content
from retrieval.errors import ImageRefused
from retrieval.images import DAMAGED, center_crop_resize, crop, open_image
from retrieval.images.thumbnails import thumbnail
from retrieval.search.second_look import reduced, second_vectors

FILE, BOX = "_file", "_bbox"  # reserved metadata keys: state of the file (`Photo.state`) and bounding box, if any
LOST = "_damaged"  # reserved metadata key: True for a JPEG with lost or noisy blocks


@dataclass
class Batch:
    """The embedded, unchanged and refused photos of a batch."""

    photos: list[Photo] = field(default_factory=list)
    hashes: list[str] = field(default_factory=list)
    thumbnails: list[bytes] = field(default_factory=list)
    features: list[bytes] = field(default_factory=list)  # local features, empty if the bundle does not verify matches
    vectors: NDArray[np.float32] | None = None
    looks: dict[str, NDArray[np.float32]] = field(default_factory=dict)  # vectors (w, d) of second looks, by photo_id
    unchanged: list[Photo] = field(default_factory=list)  # photos whose content has the hash in `known`
    refused: list[tuple[str, ImageRefused]] = field(default_factory=list)  # photo_id, reason
    damaged: list[str] = field(default_factory=list)  # ids among `photos`, of JPEGs with lost or noisy blocks

    @classmethod
    def of(cls, batches: Sequence[Batch]) -> Batch:
        """Return one batch of the photos of several."""
        vectors = [batch.vectors for batch in batches if batch.vectors is not None]
        return cls(
            [photo for batch in batches for photo in batch.photos],
            [digest for batch in batches for digest in batch.hashes],
            [jpeg for batch in batches for jpeg in batch.thumbnails],
            [packed for batch in batches for packed in batch.features],
            np.concatenate(vectors) if vectors else None,
            {photo_id: look for batch in batches for photo_id, look in batch.looks.items()},
            [photo for batch in batches for photo in batch.unchanged],
            [refusal for batch in batches for refusal in batch.refused],
            [photo_id for batch in batches for photo_id in batch.damaged],
        )


def embed_batch(
    embedder: Embedder,
    photos: Sequence[Photo],
    known: Mapping[str, str],
    read: Iterable[Content] | None = None,
    *,
    twice: Container[str] = (),
    folds: Embedder | None = None,
) -> Batch:
    """Decode and embed photos, skipping those whose content hash equals the one in `known` (photo_id to hash).

    Parameters
    ----------
    read:
        The content of each photo; by default the photos are read here.
    twice, folds:
        Ids of photos to look at twice, with the fold models too if there are any (`second_vectors`).
    """
    batch = Batch()
    squares, again = [], {}
    preprocessing = embedder.preprocessing
    for photo, data in zip(photos, map(content, photos) if read is None else read, strict=True):
        try:
            if isinstance(data, ImageRefused):
                raise data
            digest = content_hash(data, photo.bbox)
            if known.get(photo.photo_id) == digest:
                batch.unchanged.append(photo)
                continue
            image = crop(open_image(data, min_side=preprocessing.min_side if photo.bbox is None else 0), photo.bbox)
            squares.append(center_crop_resize(image, preprocessing))
            features = embedder.describe(image)
            batch.thumbnails.append(thumbnail(image, data if photo.bbox is None else b""))
        except ImageRefused as error:
            batch.refused.append((photo.photo_id, error))
            continue
        if photo.photo_id in twice:
            again[len(batch.photos)] = reduced(image, preprocessing)
        batch.damaged += [photo.photo_id] if DAMAGED in image.info else []
        batch.photos.append(photo)
        batch.hashes.append(digest)
        batch.features += [] if features is None else [features]
    if squares:
        made = embedder.embed_pixels(np.stack(squares))
        looks = second_vectors(embedder, list(again.values()), made.where(list(again)), folds)
        batch.looks = {batch.photos[row].photo_id: look for row, look in zip(again, looks, strict=True)}
        batch.vectors = made.vectors
    return batch


def looks_of(batch: Batch, photo_ids: Sequence[str]) -> NDArray[np.float32]:
    """Return the vectors (n, d) of the second looks at photos that were looked at twice, zeros where there is none."""
    dim = 0 if batch.vectors is None else batch.vectors.shape[1]
    vectors = np.zeros((len(photo_ids), dim), np.float32)
    for row, photo_id in enumerate(photo_ids):
        vectors[row] = batch.looks[photo_id][:1].sum(axis=0)
    return vectors


def write_batch(
    gallery: AnyGallery, batch: Batch, *, states: Mapping[str, str] | None = None, actor: str | None = None
) -> int:
    """Add the embedded photos to a gallery, replacing those with the same photo_id; return their number.

    `states` maps photo_ids to the state of their file (`Photo.state`) before it was read.
    """
    if batch.vectors is None:
        return 0
    return gallery.add(
        [photo.photo_id for photo in batch.photos],
        [photo.item_id for photo in batch.photos],
        batch.vectors,
        metadata=[
            stored_metadata(photo, digest, (states or {}).get(photo.photo_id, ""))
            | ({LOST: True} if photo.photo_id in batch.damaged else {})
            for photo, digest in zip(batch.photos, batch.hashes, strict=True)
        ],
        thumbnails=batch.thumbnails,
        features=batch.features or None,
        upsert=True,
        actor=actor,
    )


def stored_metadata(photo: Photo, digest: str, state: str = "") -> dict[str, Any]:
    """Return the metadata stored with a photo: the catalogue's, the hash of the content, and file state and box."""
    own = {CONTENT: digest, FILE: state, BOX: photo.bbox and list(photo.bbox)}
    return {**catalogue_metadata(photo), **{key: value for key, value in own.items() if value}}


def catalogue_metadata(photo: Photo) -> dict[str, Any]:
    """Return what the catalogue says of a photo: group, source and the other columns."""
    named = {"group": photo.group, "source": photo.source}
    return {**{key: value for key, value in named.items() if value}, **photo.metadata}
