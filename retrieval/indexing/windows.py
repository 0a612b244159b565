"""Windows of gallery photos: searches with windows of a photo get a threshold from draws with windows of these."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from index.gallery import Gallery
from index.location import AnyGallery
from index.search.leave_one_out import DRAWS, WINDOWS, Windows, sample
from retrieval.bundle.bundle import Bundle
from retrieval.catalogue.photos import Photo
from retrieval.errors import ImageRefused, InvalidParameter
from retrieval.images import crop, open_image
from retrieval.search.boxes import MOST_WINDOWS, cropped, windows

MOST_PHOTOS = 300  # whose windows are embedded, with every item once before any item twice


def keep_windows(bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo], *, progress: bool = True) -> None:
    """Embed the windows of a sample of a gallery's photos and keep them in the gallery.

    Raises InvalidParameter for a gallery on Milvus.
    """
    if not isinstance(gallery, Gallery):
        raise InvalidParameter("--windows", "be used with a local gallery", "a gallery on Milvus")
    now, known = gallery.snapshot(), {photo.photo_id: photo for photo in photos}
    embedder, seqs, vectors = bundle.embedder(), [], []
    chosen = sample(now, MOST_PHOTOS)
    for position in tqdm(chosen.tolist(), desc="windows", unit="photo", disable=not progress):
        photo = known.get(now.photo(position)[0])
        if photo is None:
            continue
        try:
            image = crop(open_image(photo.read()), photo.bbox)
        except ImageRefused:  # it has changed since it was indexed
            continue
        pixels = [embedder.square(cropped(image, box)) for box in windows(image.width, image.height)]
        found: NDArray[np.float32] = np.zeros((MOST_WINDOWS, bundle.dim), np.float32)
        found[: len(pixels)] = embedder.embed_pixels(np.stack(pixels)).vectors
        seqs.append(int(now.seqs[position]))
        vectors.append(found)
    shape = -1, MOST_WINDOWS, bundle.dim
    kept = Windows(np.array(seqs, dtype=np.int64), np.array(vectors, dtype=np.float32).reshape(shape))
    gallery.keep({WINDOWS: kept.pack(), DRAWS: None}, "keep windows")  # the next draws are made with them
