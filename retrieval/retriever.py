"""A photo in, matches or an honest no-match out: embed, candidates, exact distance, threshold."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from index.distance import accepts
from index.gallery import Gallery, Neighbour
from index.location import open_gallery
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.local_density import LocalDensity
from retrieval.threshold.recalibrate import Outlook, outlook

from .errors import BundleMismatch, InvalidParameter
from .images import Appearance, Source
from .result import FILTERED_OUT, GALLERY_EMPTY, LOW_CERTAINTY, MATCH, NO_MATCH, OUT_OF_DOMAIN, Match, SearchResult

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

    def search(
        self, image: Source, *, top_k: int = 10, where: str | None = None, explain: bool = False
    ) -> SearchResult:
        """Return the catalogue items that this photo shows, or none.

        Parameters
        ----------
        image:
            Encoded bytes, a path or a PIL image.
        top_k:
            Matches at most.
        where:
            A filter over the gallery's declared columns (`index.filters`).
        explain:
            Say how the answer came about, too: a second search, by the plain distance.
        """
        if not 1 <= top_k <= 1000:
            raise InvalidParameter("top_k", "lie between 1 and 1000", top_k)
        started = time.perf_counter()
        pixels = self.embedder.read([image])
        decoded = time.perf_counter()
        made = self.embedder.embed_pixels(pixels)
        embedded = time.perf_counter()
        version, (neighbours,) = self.gallery.search_version(
            made.vectors, top_k, where=where, measure=self.bundle.measure, within=self.bundle.threshold
        )
        stages = {"decode": decoded - started, "embed": embedded - decoded, "search": time.perf_counter() - embedded}
        certainty = float(made.certainties[0])
        sure = certainty >= self.bundle.operating_point.min_certainty
        matches = [_match(n) for n in neighbours if sure and bool(accepts(n.distance, self.bundle.threshold))]
        return SearchResult(
            matches=tuple(matches),
            decision=MATCH if matches else NO_MATCH,
            reason="" if matches else self._reason(made.vectors, where, sure=sure, empty=not neighbours),
            threshold=self.bundle.threshold,
            nearest_distance=neighbours[0].distance if neighbours else None,
            certainty=certainty,
            nearest=_match(neighbours[0]) if neighbours else None,
            bundle_id=self.bundle.bundle_id,
            gallery_version=version,
            timings_ms={name: round(1e3 * seconds, 3) for name, seconds in stages.items()},
            appearance=Appearance.of(pixels[0]),
            explanation=self._explanation(made.vectors, where) if explain else None,
        )

    def _explanation(self, vectors: NDArray[np.float32], where: str | None) -> dict[str, Any]:
        """Return how the answer to one vector (1, d) comes about."""
        measure = self.bundle.measure
        (plain,) = self.gallery.search(vectors, 1, where=where)
        return {
            "distance_form": measure.form if isinstance(measure, LocalDensity) else measure.key,
            "density": float(measure.densities(vectors)[0]),
            "plain_nearest": _match(plain[0]).to_dict() if plain else None,
            "min_certainty": self.bundle.operating_point.min_certainty,
            "photos": len(self.gallery),
            "items": self.gallery.items,
            "index": self.gallery.index()["kind"] if isinstance(self.gallery, Gallery) else "milvus",
        }

    def _reason(self, vectors: NDArray[np.float32], where: str | None, *, sure: bool, empty: bool) -> str:
        """Return why nothing is returned for one vector (1, d)."""
        if empty:
            return GALLERY_EMPTY if where is None or not len(self.gallery) else FILTERED_OUT
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
