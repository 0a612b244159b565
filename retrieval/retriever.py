"""A photo in, matches or an honest no-match out: embed, candidates, exact distance, threshold."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from index.distance import accepts
from index.gallery import Gallery, Neighbour

from .bundle import Bundle
from .cohort import LocalDensity
from .errors import BundleMismatch, InvalidParameter
from .images import Source
from .places import open_gallery
from .recalibration import Outlook, outlook
from .result import GALLERY_EMPTY, LOW_CERTAINTY, MATCH, NO_MATCH, OUT_OF_DOMAIN, Match, SearchResult

if TYPE_CHECKING:
    from index.milvus import MilvusGallery


class Retriever:
    """A bundle and a gallery that belong together, ready for any number of threads."""

    def __init__(self, bundle: Bundle, gallery: Gallery | MilvusGallery, *, threads: int = 1) -> None:
        require_match(bundle, gallery)
        self.bundle = bundle
        self.gallery = gallery
        self.embedder = bundle.embedder(threads=threads)
        self._outlooks: dict[int, Outlook | None] = {}

    @classmethod
    def open(cls, bundle: str | Path, gallery: str | Path, *, threads: int = 1) -> Retriever:
        """Open both directories; BundleMismatch when the gallery was made by another model."""
        return cls(Bundle.open(bundle), open_gallery(gallery, read_only=True), threads=threads)

    def search(self, image: Source, *, top_k: int = 10, where: str | None = None) -> SearchResult:
        """Return the catalogue items that this photo shows, or none.

        Parameters
        ----------
        image:
            Encoded bytes, a path or a PIL image.
        top_k:
            Matches at most.
        where:
            A filter over the gallery's declared columns (`index.where`).
        """
        if not 1 <= top_k <= 1000:
            raise InvalidParameter("top_k", "lie between 1 and 1000", top_k)
        made = self.embedder.embed([image])
        version, (neighbours,) = self.gallery.search_version(
            made.vectors, top_k, where=where, measure=self.bundle.measure, within=self.bundle.threshold
        )
        certainty = float(made.certainties[0])
        sure = certainty >= self.bundle.operating_point.min_certainty
        matches = [_match(n) for n in neighbours if sure and bool(accepts(n.distance, self.bundle.threshold))]
        return SearchResult(
            matches=tuple(matches),
            decision=MATCH if matches else NO_MATCH,
            reason="" if matches else self._reason(made.vectors, sure=sure, empty=not neighbours),
            threshold=self.bundle.threshold,
            nearest_distance=neighbours[0].distance if neighbours else None,
            certainty=certainty,
            nearest=_match(neighbours[0]) if neighbours else None,
            bundle_id=self.bundle.bundle_id,
            gallery_version=version,
        )

    def _reason(self, vectors: NDArray[np.float32], *, sure: bool, empty: bool) -> str:
        """Return why nothing is returned for one vector (1, d)."""
        if empty:
            return GALLERY_EMPTY
        if not sure:
            return LOW_CERTAINTY
        measure = self.bundle.measure
        if isinstance(measure, LocalDensity) and measure.is_outside(vectors)[0]:
            return OUT_OF_DOMAIN
        return NO_MATCH

    def outlook(self) -> Outlook | None:
        """Return what the threshold does in a gallery as large as this one now, None where the bundle cannot tell."""
        items = self.gallery.items
        if items not in self._outlooks:
            self._outlooks = {items: outlook(self.bundle, items)}
        return self._outlooks[items]


def require_match(bundle: Bundle, gallery: Gallery | MilvusGallery) -> None:
    """Refuse a gallery whose vectors another model made."""
    if gallery.embedding_id != bundle.embedding_id:
        raise BundleMismatch(
            f"the gallery {gallery.path} was made by another model than the bundle {bundle.path}",
            remedy=f"Index the photos again: retrieval index {bundle.path} PHOTOS -o NEW_GALLERY",
        )


def _match(neighbour: Neighbour) -> Match:
    return Match(neighbour.item_id, neighbour.photo_id, neighbour.distance, dict(neighbour.metadata))
