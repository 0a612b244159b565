"""Vectors of gallery photos that draws are made with: of windows of photos, and of photos by fold models.

They are kept in the gallery, so that draws can be made anew without the photos.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from PIL import Image
from tqdm import tqdm

from index.gallery import Gallery
from index.location import AnyGallery
from index.maintenance import FOLDS, Kept, fold_problems, with_moves, write_folds
from index.search.leave_one_out import DRAWS, WINDOWS, FoldVectors, Windows, hashed, sample
from index.snapshot import Snapshot
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.reading import in_order
from retrieval.errors import ImageRefused, InvalidParameter
from retrieval.images import crop, open_image
from retrieval.search.boxes import MOST_WINDOWS, cropped, windows

WINDOW_PHOTOS = 300  # whose windows are embedded, with every item once before any item twice
FOLD_PHOTOS = 20_000  # embedded by fold models; of a larger gallery, whole items up to this number
BATCH = 16


def keep_windows(bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo], *, progress: bool = True) -> None:
    """Embed the windows of a sample of a gallery's photos, where it has none of these yet, and keep them.

    Raises InvalidParameter for a gallery on Milvus.
    """
    if not isinstance(gallery, Gallery):
        raise InvalidParameter("--windows", "be used with a local gallery", "a gallery on Milvus")
    now, known, before = gallery.snapshot(), {photo.photo_id: photo for photo in photos}, Windows.read(gallery)
    chosen = sample(now, WINDOW_PHOTOS)
    wanted, kept = now.seqs[chosen].tolist(), _by_seq(gallery, before)
    missing = [place for place, seq in zip(chosen.tolist(), wanted, strict=True) if seq not in kept]
    embedder = bundle.embedder()
    for position in tqdm(missing, desc="windows", unit="photo", disable=not progress):
        photo = known.get(now.photo(position)[0])
        image = None if photo is None else _picture(photo)
        if image is None:
            continue
        pixels = [embedder.square(cropped(image, box)) for box in windows(image.width, image.height)]
        found: NDArray[np.float32] = np.zeros((MOST_WINDOWS, bundle.dim), np.float32)
        found[: len(pixels)] = embedder.embed_pixels(np.stack(pixels)).vectors
        kept[int(now.seqs[position])] = found
    seqs = [seq for seq in wanted if seq in kept]
    if before is not None and before.seqs.tolist() == seqs:
        return
    vectors = np.array([kept[seq] for seq in seqs], dtype=np.float32).reshape(-1, MOST_WINDOWS, bundle.dim)
    packed = Windows(np.array(seqs, dtype=np.int64), vectors).pack()
    gallery.keep({WINDOWS: packed, DRAWS: None}, "keep windows")  # the next draws are made with them


def _by_seq(gallery: Gallery, kept: Kept | None) -> dict[int, NDArray[Any]]:
    """Return the vectors that a gallery keeps of its photos, by their seqs."""
    if kept is None:
        return {}
    now = with_moves(gallery, kept)
    return dict(zip(now.seqs.tolist(), now.vectors, strict=True))


def keep_fold_vectors(bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo], *, progress: bool = True) -> None:
    """Embed the photos of a gallery that have no fold vectors yet, and keep these. A gallery on Milvus keeps none."""
    if not bundle.folds_key or bundle.fitted is None or not isinstance(gallery, Gallery):
        return
    now, before = gallery.snapshot(), FoldVectors.read(gallery, bundle.folds_key)
    before = None if fold_problems(gallery.path) else before
    kept = _by_seq(gallery, before)
    chosen = sample_of_items(now, bundle.fitted)
    wanted, known = now.seqs[chosen], {photo.photo_id: photo for photo in photos}
    missing = [
        (seq, known[photo_id])
        for seq, (photo_id, *_) in zip(wanted.tolist(), now.photos_at(chosen), strict=True)
        if seq not in kept and photo_id in known
    ]
    if not missing and before is not None and np.isin(before.seqs, wanted).all() and gallery.kept(FOLDS) is not None:
        return
    embedder = bundle.folds_embedder()
    folds = embedder.dim // bundle.dim

    def embed(some: list[tuple[int, Photo]]) -> dict[int, NDArray[np.float16]]:
        pictures = {seq: _picture(photo) for seq, photo in some}
        squares = {seq: embedder.square(image) for seq, image in pictures.items() if image is not None}
        vectors = embedder.embed_pixels(np.stack(list(squares.values()))).vectors if squares else np.zeros(0)
        return dict(zip(squares, vectors.reshape(-1, folds, bundle.dim).astype(np.float16), strict=True))

    batches = [missing[start : start + BATCH] for start in range(0, len(missing), BATCH)]
    for found in tqdm(
        in_order(embed, batches, threads=os.cpu_count() or 1),
        desc="cross-fitting",
        unit="batch",
        total=len(batches),
        disable=not progress,
    ):
        kept |= found
    seqs = [seq for seq in wanted.tolist() if seq in kept]
    vectors = np.array([kept[seq] for seq in seqs], dtype=np.float16).reshape(-1, folds, bundle.dim)
    digest = write_folds(gallery, FoldVectors(bundle.folds_key, np.array(seqs, dtype=np.int64), vectors))
    gallery.keep({**digest, DRAWS: None}, "keep fold vectors")  # the next draws are made with them


def sample_of_items(now: Snapshot, fitted: Fitted) -> NDArray[np.int64]:
    """Return the positions of up to FOLD_PHOTOS live photos of whole items, ascending.

    Items are chosen by a hash of their numbers; those that the model was fitted on come first.
    """
    live = np.flatnonzero(now.live)
    if len(live) <= FOLD_PHOTOS:
        return live
    numbers, firsts, counts = np.unique(now.items[live], return_index=True, return_counts=True)
    names = [item for _, item, _ in now.photos_at(live[firsts])]
    others = np.array([fitted.fold_of(name) is None for name in names])
    order = np.lexsort((hashed(numbers.astype(np.int64)), others))
    chosen = numbers[order[np.cumsum(counts[order]) <= FOLD_PHOTOS]]
    return live[np.isin(now.items[live], chosen)]


def _picture(photo: Photo) -> Image.Image | None:
    """Return the image of a photo, or None if it has changed since it was indexed and cannot be used."""
    try:
        return crop(open_image(photo.read()), photo.bbox)
    except ImageRefused:
        return None
