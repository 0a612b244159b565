"""The misses of an evaluation split with their causes: reads and embeds what the rules need."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from retrieval.catalogue.read import Photo
from retrieval.images import Preprocessing
from training.data.reader import PhotoReader
from training.evaluation.embedding import embed_photos
from training.model import EmbeddingModel

from .appearance import GalleryLook
from .causes import Miss, causes_of, gallery_sample, missed_rows
from .crops import CROPS, crops_of
from .item_search import ItemSearch, Places
from .outcomes import Outcomes

BATCH = 64  # photos in memory at a time

Whitening = Callable[[NDArray[np.float32]], NDArray[np.float32]]


class CropReader(PhotoReader):
    """Reads the crops of photos: position n * len(CROPS) + c is crop c of photo n."""

    def __init__(self, photos: Sequence[Photo], preprocessing: Preprocessing) -> None:
        super().__init__(photos, preprocessing, cache_bytes=0)
        self._cropped, self._model_input = photos, preprocessing

    def pixels(self, positions: Sequence[int]) -> np.ndarray:
        """Return uint8 (n, size, size, 3)."""
        crops = {n: crops_of(self._cropped[n], self._model_input) for n in {p // len(CROPS) for p in positions}}
        return np.stack([crops[position // len(CROPS)][position % len(CROPS)] for position in positions])


def find_misses(
    search: ItemSearch,
    outcomes: Outcomes,
    photos: Sequence[Photo],
    model: EmbeddingModel,
    preprocessing: Preprocessing,
    whitening: Whitening | None = None,
) -> list[Miss]:
    """Return the misses with their causes. The photos of the split must be readable."""
    rows = missed_rows(outcomes)
    if not len(rows):
        return []
    asked = search.split.queries[rows]
    reader = CropReader([photos[position] for position in asked], preprocessing)
    vectors = embed_photos(model, reader, len(asked) * len(CROPS), preprocessing)
    if whitening is not None:
        vectors = whitening(vectors)
    return causes_of(
        search,
        outcomes,
        [photo.group for photo in photos],
        deviations=deviations_of(photos, gallery_sample(search), asked, preprocessing),
        crop_vectors=vectors.reshape(len(asked), len(CROPS), -1),
    )


def deviations_of(
    photos: Sequence[Photo], gallery: Places, asked: Places, preprocessing: Preprocessing
) -> NDArray[np.float64]:
    """Return by how many spreads queries (n,) differ from gallery photos (m,) in each measure; (n, 3)."""
    reader = PhotoReader(photos, preprocessing, cache_bytes=0)
    look = GalleryLook.of(reader.pixels(gallery.tolist()))
    batches = [asked[start : start + BATCH].tolist() for start in range(0, len(asked), BATCH)]
    return np.concatenate([look.deviations(reader.pixels(batch)) for batch in batches])
