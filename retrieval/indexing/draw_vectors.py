"""Vectors that draws are made with: of second looks and windows, of items' names, and of photos by fold models.

The vectors are kept in the gallery, so that draws can be made anew without the photos.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from index.gallery import Gallery
from index.location import AnyGallery
from index.photos import Photos, hashed, sampled
from index.snapshot import Snapshot
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.reading import in_order
from retrieval.errors import GalleryError, ImageRefused
from retrieval.galleries.kept import Kept, pack_folds, pack_parts, read_folds, read_parts
from retrieval.galleries.measured import drawn_photos, fitted_items
from retrieval.galleries.names import names_of, pack_names, read_names
from retrieval.images import crop, full_size, open_image
from retrieval.measuring.drawing import MOST_DRAWS, NameVectors, PartVectors, most_draws
from retrieval.measuring.folds import FoldVectors
from retrieval.search.boxes import MOST_WINDOWS, cropped, windows

from .worker import Batch, embed_batch

WINDOW_PHOTOS = 300  # number of photos whose windows are embedded, with every item once before any item twice
FOLD_PHOTOS = 20_000  # embedded by fold models; of a larger gallery, whole items up to this number
BATCH = 16


def likely_draws(bundle: Bundle, photos: Sequence[Photo]) -> set[str]:
    """Return the ids of the photos that draws would be made of in a gallery of these photos."""
    fitted = bundle.fitted
    photos = [photo for photo in photos if fitted is not None and not fitted.contains(photo.item_id, None)]
    _, items = np.unique([photo.item_id for photo in photos], return_inverse=True)
    keys = hashed(photo.item_id for photo in photos), hashed(photo.photo_id for photo in photos)
    return {photos[place].photo_id for place in sampled(items, *keys)[: most_draws(bundle.verifier)].tolist()}


def keep_looks(
    bundle: Bundle,
    gallery: AnyGallery,
    photos: Sequence[Photo],
    made: Mapping[str, NDArray[np.float32]],
    *,
    progress: bool = True,
) -> None:
    """Keep the vectors of second looks at the photos that draws are made of.

    `made` has vectors by photo_id (`second_vectors`). Other photos are embedded, unless the gallery has their vectors.
    """
    now, before = gallery.snapshot(), read_parts(gallery, Kept.LOOKS)
    wanted = _ids(now, drawn_photos(bundle, now, fitted_items(bundle, gallery)))
    kept = {} if before is None else dict(zip(before.ids.tolist(), before.vectors, strict=True))
    kept |= made
    missing = [photo for photo in photos if photo.photo_id in {*wanted} - kept.keys()]
    if missing:
        embedder, folds = bundle.embedder(), bundle.folds_embedder() if bundle.folds_key else None

        def embed(some: list[Photo]) -> Batch:
            return embed_batch(embedder, some, {}, twice={photo.photo_id for photo in some}, folds=folds)

        batches = [missing[start : start + BATCH] for start in range(0, len(missing), BATCH)]
        bar = tqdm(total=len(missing), desc="second looks", unit="photo", disable=not progress)
        for batch in in_order(embed, batches, threads=os.cpu_count() or 1):
            kept |= batch.looks
            bar.update(len(batch.photos) + len(batch.refused))
        bar.close()
    ids = [photo_id for photo_id in wanted if photo_id in kept]
    if before is not None and {*ids} <= {*before.ids.tolist()} and not made:
        return
    width = max((len(kept[photo_id]) for photo_id in ids), default=1)
    vectors = np.zeros((len(ids), max(1, width), bundle.dim), np.float16)
    for row, photo_id in enumerate(ids):
        vectors[row, : len(kept[photo_id])] = kept[photo_id]
    packed = pack_parts(PartVectors(np.array(ids, dtype=str), vectors), now)
    gallery.keep({Kept.LOOKS: packed, Kept.DRAWS: None}, "keep second looks")  # the next draws are made with them


def keep_windows(bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo], *, progress: bool = True) -> None:
    """Embed the windows of a sample of a gallery's photos, unless it has their vectors, and keep the vectors."""
    now, known = gallery.snapshot(), {photo.photo_id: photo for photo in photos}
    before = read_parts(gallery, Kept.WINDOWS)
    wanted = _ids(now, now.sample(WINDOW_PHOTOS))
    kept = {} if before is None else dict(zip(before.ids.tolist(), before.vectors, strict=True))
    missing = [known[photo_id] for photo_id in wanted if photo_id not in kept and photo_id in known]
    embedder = bundle.embedder()
    for photo in tqdm(missing, desc="windows", unit="photo", disable=not progress):
        image = _picture(photo)
        if image is None:
            continue
        pixels = [embedder.square(cropped(image, box)) for box in windows(*full_size(image))]
        vectors: NDArray[np.float32] = np.zeros((MOST_WINDOWS, bundle.dim), np.float32)
        vectors[: len(pixels)] = embedder.embed_pixels(np.stack(pixels)).vectors
        kept[photo.photo_id] = vectors
    ids = [photo_id for photo_id in wanted if photo_id in kept]
    if before is not None and before.ids.tolist() == ids:
        return
    made = PartVectors(np.array(ids, dtype=str), _stacked(kept, ids, (MOST_WINDOWS, bundle.dim)))
    packed = pack_parts(made, now)
    gallery.keep({Kept.WINDOWS: packed, Kept.DRAWS: None}, "keep windows")  # the next draws are made with them


def keep_names(bundle: Bundle, gallery: AnyGallery, column: str, *, progress: bool = True) -> None:
    """Embed the names of up to MOST_DRAWS items of a gallery, unless it has their vectors, and keep the vectors."""
    names, before = names_of(gallery, column), read_names(gallery, bundle.text_key, column)
    items = np.array(sorted(names), dtype=str)
    items = items[np.argsort(hashed(items.tolist()), kind="stable")][:MOST_DRAWS]
    if before is not None and before.column == column and before.items.tolist() == items.tolist():
        return
    kept = {} if before is None else dict(zip(before.items.tolist(), before.vectors, strict=True))
    embedder = bundle.text_embedder(threads=os.cpu_count() or 1)
    for item in tqdm(items.tolist(), desc="names", unit="name", disable=not progress):
        if item not in kept:
            kept[item] = embedder.embed([names[item]]).vectors[0]
    vectors = _stacked(kept, items.tolist(), (bundle.dim,))
    packed = pack_names(NameVectors(bundle.text_key, column, items, vectors), names)
    gallery.keep({Kept.NAMES: packed, Kept.DRAWS: None}, "keep names")  # the next draws are made with them


def keep_fold_vectors(bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo], *, progress: bool = True) -> None:
    """Embed the photos of a gallery that lack fold vectors, and keep the vectors. A gallery on Milvus keeps none."""
    if not bundle.folds_key or bundle.fitted is None or not isinstance(gallery, Gallery):
        return
    now, before = gallery.snapshot(), _known_folds(bundle, gallery)
    kept = {} if before is None else dict(zip(before.ids.tolist(), before.vectors, strict=True))
    known = {photo.photo_id: photo for photo in photos}
    wanted = _ids(now, sample_of_items(now, bundle.fitted))
    missing = [known[photo_id] for photo_id in wanted if photo_id not in kept and photo_id in known]
    if not missing and before is not None and {*before.ids.tolist()} <= {*wanted}:
        return
    embedder = bundle.folds_embedder()
    folds = embedder.dim // bundle.dim

    def embed(some: list[Photo]) -> dict[str, NDArray[np.float16]]:
        pictures = {photo.photo_id: _picture(photo) for photo in some}
        squares = {photo_id: embedder.square(image) for photo_id, image in pictures.items() if image is not None}
        vectors = embedder.embed_pixels(np.stack(list(squares.values()))).vectors if squares else np.zeros(0)
        return dict(zip(squares, vectors.reshape(-1, folds, bundle.dim).astype(np.float16), strict=True))

    batches = [missing[start : start + BATCH] for start in range(0, len(missing), BATCH)]
    for embedded in tqdm(
        in_order(embed, batches, threads=os.cpu_count() or 1),
        desc="cross-fitting",
        unit="batch",
        total=len(batches),
        disable=not progress,
    ):
        kept |= embedded
    ids = [photo_id for photo_id in wanted if photo_id in kept]
    vectors = _stacked(kept, ids, (folds, bundle.dim)).astype(np.float16)
    packed = pack_folds(FoldVectors(bundle.folds_key, np.array(ids, dtype=str), vectors), now)
    gallery.keep({Kept.FOLDS: packed, Kept.DRAWS: None}, "keep fold vectors")  # the next draws are made with them


def _known_folds(bundle: Bundle, gallery: Gallery) -> FoldVectors | None:
    """Return the fold vectors that a gallery keeps, None if there are none or they are damaged: they are made anew."""
    try:
        return read_folds(gallery, bundle.folds_key)
    except GalleryError:
        return None


def _ids(now: Photos, positions: NDArray[np.int64]) -> list[str]:
    return [photo_id for photo_id, *_ in now.photos_at(positions)]


def _stacked(vectors: Mapping[str, NDArray[Any]], ids: Sequence[str], shape: tuple[int, ...]) -> NDArray[np.float32]:
    """Return the vectors of photos, of one shape each, as an array (n, *shape)."""
    return np.array([vectors[photo_id] for photo_id in ids], dtype=np.float32).reshape(-1, *shape)


def sample_of_items(now: Snapshot, fitted: Fitted) -> NDArray[np.int64]:
    """Return the positions of up to FOLD_PHOTOS live photos of whole items, ascending.

    Items are chosen by a hash of their ids; those that the model was fitted on come first.
    """
    live = np.flatnonzero(now.live)
    if len(live) <= FOLD_PHOTOS:
        return live
    numbers, firsts, counts = np.unique(now.items[live], return_index=True, return_counts=True)
    names = [item for _, item, _ in now.photos_at(live[firsts])]
    others = np.array([fitted.fold_of(name) is None for name in names])
    order = np.lexsort((hashed(names), others))
    chosen = numbers[order[np.cumsum(counts[order]) <= FOLD_PHOTOS]]
    return live[np.isin(now.items[live], chosen)]


def _picture(photo: Photo) -> Image.Image | None:
    """Return the image of a photo, or None if it has changed since it was indexed and cannot be used."""
    try:
        return crop(open_image(photo.read()), photo.bbox)
    except ImageRefused:
        return None
