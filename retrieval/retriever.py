"""The `Retriever`: embed a photo, search the gallery, and decide by the threshold (`retrieval.search.answers`)."""

from __future__ import annotations

import time
from collections.abc import Collection, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Self

import numpy as np
from numpy.typing import NDArray

from index.location import AnyGallery, open_gallery
from index.search.item_distance import mean_photo
from index.search.neighbours import Neighbour
from retrieval.bundle.bundle import Bundle, require_match
from retrieval.bundle.embedder import Embeddings
from retrieval.bundle.text_embedder import TextEmbedder
from retrieval.galleries.points import GalleryPoint
from retrieval.measuring.draws import NAMES, PHOTOS, TWICE
from retrieval.measuring.point import Point
from retrieval.measuring.rates import VersionRates

from .errors import GalleryError, ImageRefused
from .images import Source, full_size, open_image
from .search.answers import Answers
from .search.boxes import WINDOWS, check_boxes, windows
from .search.looks import MOST_IMAGES, Look, Options, check_images, distinct, embed_several
from .search.result import SHARED_PHOTO, TWINS, SearchResult
from .search.second_look import SecondLook, energies_of, nearest_of

TRIES = 5  # attempts at a search and the rates of one version, while other processes change the gallery


class Retriever:
    """Searches a gallery with the model and threshold of a bundle. Thread-safe.

    As a context manager it closes itself on exit, together with the gallery if `open` opened it.
    """

    def __init__(self, bundle: Bundle, gallery: AnyGallery, *, threads: int = 1) -> None:
        require_match(bundle, gallery)
        self.bundle, self.gallery = bundle, gallery
        self.gallery_point = GalleryPoint(bundle, gallery)
        self.embedder = bundle.embedder(threads=threads)
        self._threads = threads
        self._owns_gallery = False
        self._closed = False

    @classmethod
    def open(cls, bundle: str | Path, gallery: str | Path, *, threads: int = 1) -> Retriever:
        """Open a bundle and a gallery; raise BundleMismatch if another model made the gallery."""
        opened = Bundle.open(bundle)
        place = open_gallery(gallery, read_only=True)
        try:
            retriever = cls(opened, place, threads=threads)
        except BaseException:
            place.close()
            raise
        retriever._owns_gallery = True
        return retriever

    @property
    def point(self) -> Point:
        """The operating point that serves in the newest version of the gallery."""
        return self.gallery_point.point

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __repr__(self) -> str:
        point, closed = self.gallery_point.last[1], ", closed" if self._closed else ""
        state = f"threshold {point.threshold:.4f}" if point.decides else point.status
        return f"<Retriever {self.bundle.path} on {self.gallery.path}, {state}{closed}>"

    def close(self) -> None:
        """Close the gallery if `open` opened it. Later searches raise GalleryError."""
        self._closed = True
        if self._owns_gallery:
            self.gallery.close()

    def search(
        self,
        image: Source,
        *,
        bbox: Sequence[float] | None = None,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        review: float | None = None,
        left_out: Collection[str] = (),
    ) -> SearchResult:
        """Return the catalogue items that match a photo, if any, or the nearest ones if there is no threshold.

        Parameters
        ----------
        image:
            Encoded bytes or a BytesIO of them, a path, a PIL image, or RGB pixels uint8 (height, width, 3).
        bbox:
            Part of the photo to search with: left, upper, right, lower in pixels of the upright photo.
        top_k:
            Maximum number of matches and candidates for review together, 1 to 100.
        where:
            Filter over the gallery's declared columns (`index.search.filters`).
        explain:
            Add what the distances of the nearest items are made of.
        review:
            Largest p-value of the items beyond the threshold that are returned for review, 0 to 1. By default, items
            up to the distance at which a question is worth it are returned (`Perhaps`). The list is empty if the
            threshold was not set in this gallery. The list may be incomplete, unlike the matches.
        left_out:
            Ids of photos to search without, such as the photo of the gallery that is searched for; not with `where`.

        Raises
        ------
        ImageRefused
            If the photo cannot be used.
        InvalidParameter
            If an argument is invalid.
        """
        self._check_open()
        options = Options(top_k, where, explain, review, left_out)
        started = time.perf_counter()
        return self._answers([Look.read(self.embedder, image, bbox)], options, started)[0]

    def search_batch(
        self,
        images: Sequence[Source],
        *,
        top_k: int = 10,
        where: str | None = None,
        explain: bool = False,
        review: float | None = None,
    ) -> list[SearchResult | ImageRefused]:
        """Search with up to 64 photos at once and return one result per photo.

        A photo that cannot be used gets an `ImageRefused` in its place. The other arguments are those of `search`.
        Each result's timings are the batch's timings divided by the number of photos.
        """
        self._check_open()
        check_images(images, 0, MOST_IMAGES)
        options = Options(top_k, where, explain, review)
        started = time.perf_counter()
        looks = [self._look_or_refusal(image) for image in images]
        read = [look for look in looks if isinstance(look, Look)]
        answers = iter(self._answers(read, options, started))
        return [next(answers) if isinstance(look, Look) else look for look in looks]

    def search_photos(self, images: Sequence[Source], *, top_k: int = 10, where: str | None = None) -> SearchResult:
        """Search with the mean vector of 2 to 4 photos of the same item.

        A gallery with enough items that have as many photos decides by draws of its own for such queries; else the
        answer is "ranked". Photos that are nearer to each other than most photos of one item count as one. Local
        features are compared only if a single photo is left. The arguments and errors are those of `search`.
        """
        self._check_open()
        options = Options(top_k, where)
        started = time.perf_counter()
        every = embed_several(self.embedder, images)
        embedded = time.perf_counter()
        rates = self.gallery_point.measured()[1]
        vectors = distinct(every.vectors, 0.0 if rates is None else rates.same_item)
        mean = np.asarray(mean_photo(vectors)[None], dtype=np.float32)
        made = Embeddings(mean, every.certainties.mean(keepdims=True))
        if len(vectors) == 1:
            described = self.bundle.verifier and self.embedder.describe(self.embedder.open(images[0]))
            answers, (neighbours,) = self._searched(mean, options, features=[described or b""])
        else:
            answers, (neighbours,) = self._searched(mean, options, kind=PHOTOS.format(len(vectors)))
        stages = {"embed": embedded - started, "search": time.perf_counter() - embedded}
        return replace(answers.answer(made, neighbours), timings_ms=_milliseconds(stages))

    def search_boxes(
        self,
        image: Source,
        boxes: str | Sequence[Sequence[float]] = WINDOWS,
        *,
        top_k: int = 10,
        where: str | None = None,
        review: float | None = None,
        left_out: Collection[str] = (),
    ) -> list[SearchResult]:
        """Search with several parts of one photo and return an answer, with its box, for each.

        1 to 64 given boxes are queries of their own that share the target FPIR: each decides at the target divided by
        their number, or ranks if the draws of the gallery do not support so low a target. "windows" (the photo, its
        halves, quarters and centre) decide in a gallery that was indexed with windows, by draws of the nearest of all
        windows; else they rank. Their answers are sorted by nearest distance, and of windows with the same nearest item
        the nearest one is returned. The other arguments are those of `search`.

        Raises
        ------
        ImageRefused
            If the photo cannot be used.
        InvalidParameter
            If an argument is invalid.
        """
        self._check_open()
        options = Options(top_k, where, review=review, left_out=left_out)
        chosen = check_boxes(boxes)
        started = time.perf_counter()
        opened = open_image(image)
        if not isinstance(chosen, str):
            looks = [Look.of_part(self.embedder, opened, box) for box in chosen]
            return self._answers(looks, options, started, queries=len(looks))
        parts = windows(*full_size(opened))
        looks = [Look.of_part(self.embedder, opened, box, describe=False) for box in parts]
        answers = self._answers(looks, options, started, kind=chosen)
        nearest: dict[str, SearchResult] = {}
        for answer in sorted(answers, key=lambda answer: answer.nearest_distance or 0):
            nearest.setdefault("" if answer.nearest is None else answer.nearest.item_id, answer)
        return list(nearest.values())

    @cached_property
    def text_embedder(self) -> TextEmbedder:
        """The embedder of texts, which is made when it is first needed (`Bundle.text_embedder`)."""
        return self.bundle.text_embedder(threads=self._threads)

    def search_text(
        self, text: str, *, top_k: int = 10, where: str | None = None, review: float | None = None
    ) -> SearchResult:
        """Search with words, such as an item's name, by the text tower of the bundle.

        Words decide in a gallery that was indexed with its items' names, by draws of these names; else they rank. Local
        features are not compared. The other arguments are those of `search`.

        Raises
        ------
        InvalidParameter
            If the text is empty or longer than 1,000 characters, or the bundle has no text tower.
        MissingDependency
            If the extra `text` is not installed.
        """
        self._check_open()
        options, started = Options(top_k, where, review=review), time.perf_counter()
        made = self.text_embedder.embed([text])
        embedded = time.perf_counter()
        answers, (neighbours,) = self._searched(made.vectors, options, kind=NAMES)
        stages = {"embed": embedded - started, "search": time.perf_counter() - embedded}
        answer = answers.answer(made, neighbours)
        return replace(answer, embedding_norm=None, timings_ms=_milliseconds(stages))  # the norm is none of a photo

    def _look_or_refusal(self, image: Source) -> Look | ImageRefused:
        try:
            return Look.read(self.embedder, image)
        except ImageRefused as refusal:
            return refusal

    def _answers(
        self, looks: Sequence[Look], options: Options, started: float, *, queries: int = 1, kind: str = ""
    ) -> list[SearchResult]:
        """Return the answer to each look, which is one of `queries` that share the target FPIR, or is of a `kind`."""
        if not looks:
            return []
        decoded = time.perf_counter()
        made = self.embedder.embed_pixels(np.stack([look.pixels for look in looks]))
        embedded = time.perf_counter()
        features = None if kind else [look.features for look in looks]
        answers, found = self._searched(made.vectors, options, features=features, queries=queries, kind=kind)
        results = [answers.answer(made.where([row]), found[row], look) for row, look in enumerate(looks)]
        searched = time.perf_counter()
        stages = {"decode": decoded - started, "embed": embedded - decoded, "search": searched - embedded}
        if answers.point.basis.looks == TWICE and not kind and queries == 1:
            self._look_again(looks, made, answers, found, results)
            stages["again"] = time.perf_counter() - searched
        timings = _milliseconds({name: seconds / len(looks) for name, seconds in stages.items()})
        return [replace(result, timings_ms=dict(timings)) for result in results]

    def _look_again(
        self,
        looks: Sequence[Look],
        made: Embeddings,
        answers: Answers,
        found: Sequence[list[Neighbour]],
        results: list[SearchResult],
    ) -> None:
        """Replace the results of photos that do not match by those of two looks."""
        seconds = {
            row: second
            for row, (look, energy) in enumerate(zip(looks, energies_of(made), strict=True))
            if look.image is not None and not results[row].matched and results[row].reason not in (TWINS, SHARED_PHOTO)
            if (second := SecondLook.at(look.image, energy, self.embedder)) is not None
        }
        if not seconds:
            return
        rows, options = list(seconds), answers.options
        vectors = self.embedder.embed_pixels(np.stack([second.pixels for second in seconds.values()])).vectors
        features, first = [looks[row].features for row in rows], [found[row] for row in rows]
        for _ in range(TRIES):
            again, nearer = self._searched(vectors, options)
            if again.version == answers.version:
                break
            answers, first = self._searched(made.vectors[rows], options, features=features)
            if answers.point.basis.looks != TWICE:  # the threshold is for one look now
                return
        else:  # the gallery changes all the time
            return
        for row, before, after in zip(rows, first, nearer, strict=True):
            look, second = looks[row], seconds[row]
            if after and (not before or after[0].distance < before[0].distance):
                look = replace(look, name=second.name, box=second.box)
            results[row] = answers.answer(made.where([row]), nearest_of([*before, *after]), look)

    def _searched(
        self,
        vectors: NDArray[np.float32],
        options: Options,
        *,
        features: Sequence[bytes] | None = None,
        queries: int = 1,
        kind: str = "",
    ) -> tuple[Answers, list[list[Neighbour]]]:
        """Search with vectors (n, d), and local features if given; return what makes the answers, and the items.

        The rates are those of the version that was searched. If another process has changed the gallery before they
        were read, the new version is searched. Each of `queries` shares the target FPIR of the point. Queries of a
        kind rank if the gallery has no draws of this kind.
        """
        for _ in range(TRIES):
            found = self.gallery.search_version(
                vectors,
                max(2, options.top_k),  # the second item may be a twin of the first
                where=options.where,
                item_distance=self.bundle.item_distance,
                verifier=None if features is None else self.bundle.verifier,
                features=features,
                left_out=options.left_out,
            )
            point, rates = self.gallery_point.measured_at(found.version, found.point)
            if rates is not None or not point.is_anchored or found.version == self.gallery.version:
                break
        if kind or queries > 1:
            point, rates = _shared(point, rates, queries, kind)
        thumbnail = self.gallery.thumbnail
        return Answers(self.bundle, found.photos, thumbnail, options, point, found.version, rates), found.neighbours

    def _check_open(self) -> None:
        if self._closed:
            raise GalleryError("the retriever is closed", remedy="Open it again: Retriever.open(BUNDLE, GALLERY)")


def _milliseconds(stages: dict[str, float]) -> dict[str, float]:
    return {name: round(1e3 * seconds, 3) for name, seconds in stages.items()}


def _shared(point: Point, rates: VersionRates | None, queries: int, kind: str) -> tuple[Point, VersionRates | None]:
    """Return the point of queries of a kind, or of each of several queries, with the rates of their kind."""
    if kind:
        known = None if rates is None else rates.kinds.get(kind)
        of_kind, own = known or (None, Point.uncalibrated(point.target_fpir, origin=point.origin))
        return own, of_kind if own.decides else None
    if rates is None:
        return Point.uncalibrated(point.target_fpir, origin=point.origin), None
    return rates.shared(point, queries), rates
