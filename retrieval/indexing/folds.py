"""Fold vectors of gallery photos, from which a model that was fitted on the whole catalogue gets its threshold."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from index.gallery import Gallery
from index.location import AnyGallery
from index.search.leave_one_out import DRAWS, hashed
from index.snapshot import Snapshot
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.fitted import Fitted
from retrieval.catalogue.photos import Photo
from retrieval.catalogue.reading import in_order
from retrieval.errors import ImageRefused
from retrieval.images import crop, open_image
from retrieval.threshold.fold_draws import FoldVectors

MOST_PHOTOS = 20_000  # of a gallery; of a larger one, whole items up to this number
BATCH = 16


def keep_fold_vectors(bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo], *, progress: bool = True) -> None:
    """Embed the photos of a gallery that have no fold vectors yet, and keep these. A gallery on Milvus keeps none."""
    if not bundle.folds_key or bundle.fitted is None or not isinstance(gallery, Gallery):
        return
    now, before = gallery.snapshot(), FoldVectors.read(gallery, bundle)
    kept = {} if before is None else dict(zip(before.seqs.tolist(), before.vectors, strict=True))
    chosen = sample_of_items(now, bundle.fitted)
    wanted, known = now.seqs[chosen], {photo.photo_id: photo for photo in photos}
    missing = [
        (seq, known[photo_id])
        for seq, (photo_id, *_) in zip(wanted.tolist(), now.photos_at(chosen), strict=True)
        if seq not in kept and photo_id in known
    ]
    if not missing and before is not None and np.isin(before.seqs, wanted).all():
        return
    embedder = bundle.folds_embedder()
    folds = embedder.dim // bundle.dim

    def embed(some: list[tuple[int, Photo]]) -> dict[int, NDArray[np.float16]]:
        squares = {}
        for seq, photo in some:
            try:
                squares[seq] = embedder.square(crop(open_image(photo.read()), photo.bbox))
            except ImageRefused:  # it has changed since it was indexed
                continue
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
    gallery.keep({DRAWS: None}, "keep fold vectors")  # the next draws are made with them
    FoldVectors(bundle.folds_key, np.array(seqs, dtype=np.int64), vectors).write(gallery)


def sample_of_items(now: Snapshot, fitted: Fitted) -> NDArray[np.int64]:
    """Return the positions of up to MOST_PHOTOS live photos of whole items, ascending.

    Items are chosen by a hash of their numbers; those that the model was fitted on come first.
    """
    live = np.flatnonzero(now.live)
    if len(live) <= MOST_PHOTOS:
        return live
    numbers, firsts, counts = np.unique(now.items[live], return_index=True, return_counts=True)
    names = [item for _, item, _ in now.photos_at(live[firsts])]
    others = np.array([fitted.fold_of(name) is None for name in names])
    order = np.lexsort((hashed(numbers.astype(np.int64)), others))
    chosen = numbers[order[np.cumsum(counts[order]) <= MOST_PHOTOS]]
    return live[np.isin(now.items[live], chosen)]
