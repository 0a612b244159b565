"""Propose a new operating point for a gallery and show what would change, before writing it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from index.database import POINT
from index.location import AnyGallery
from index.search.distance import accepts
from index.search.leave_one_out import OWN, Draws, KeptDraws, Probes
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.operating_point import OperatingPoint
from retrieval.catalogue.read import Photo
from retrieval.errors import CalibrationError, DataError
from retrieval.indexing.worker import CONTENT, Batch, embed_batch

from .anchor import Anchored, GalleryAnchor
from .error_rates import LABELLED, PROBE, UNKNOWN, DrawnDistances, GalleryRates
from .gallery_points import served_point
from .labelled_queries import kept_queries

BATCH = 64  # labelled photos per batch
CALIBRATION, QUERIES = "calibration search", "labelled query"
NOTHING = "no match"


@dataclass(frozen=True)
class Proposal:
    """A new operating point for a gallery, with the one that serves now."""

    anchor: GalleryAnchor
    before: OperatingPoint
    anchored: Anchored
    labelled: Probes | None
    refused: list[tuple[str, str]] = field(default_factory=list)  # photo_id and reason, of labelled photos

    @property
    def after(self) -> OperatingPoint:
        """The new operating point; raise CalibrationError if there is none."""
        if self.anchored.point is None:
            raise CalibrationError(self.anchored.why_not)
        return self.anchored.point

    @cached_property
    def answers(self) -> ChangedAnswers:
        """The stored searches whose answer changes, none if no threshold serves now."""
        searches = stored_searches(self.anchored.draws) if self.before.decides else []
        return ChangedAnswers.of(searches, self.before.threshold, self.after.threshold)

    def to_dict(self) -> dict[str, Any]:
        """Return the proposal as plain JSON values."""
        rates = GalleryRates.of(self.anchored.draws, self.after)
        old = rates.fpir(self.before.threshold) if rates is not None and self.before.decides else None
        return {
            "before": self.before.to_dict(),
            "after": self.after.to_dict(),
            "fpir": {"before": old, "after": None if rates is None else rates.fpir(self.after.threshold)},
            "unknown": self._unknown(),
            "answers": self.answers.to_dict(),
            "refused": [{"photo_id": photo_id, "reason": reason} for photo_id, reason in self.refused],
        }

    def changes(self) -> list[str]:
        """Return lines that compare the new threshold with the one that serves now."""
        if not self.before.decides:
            return [f"The gallery gets its first threshold, {self.after.threshold:.4f}.", *self._unknown_lines()]
        rates = GalleryRates.of(self.anchored.draws, self.after)
        old, new = self.before.threshold, self.after.threshold
        moved = f"goes {'down' if new < old else 'up'} from {old:.4f} to {new:.4f}"
        lines = [f"The threshold {f'stays at {old:.4f}' if new == old else moved}."]
        if rates is not None:
            lines.append(
                f"Searches for unknown items that return a match: {rates.fpir(old):.1%} before, "
                f"{rates.fpir(new):.1%} after (at most {rates.fpir_upper(new):.1%} with 95 % confidence)."
            )
        source = LABELLED if LABELLED in self.anchored.draws.sources else OWN
        draws = self.anchored.draws.sources[source]
        mated = np.isfinite(draws.own)
        if mated.any():
            right = draws.own < draws.distances
            shares = [float((accepts(draws.own, t) & right)[mated].mean()) for t in (old, new)]
            photos = "labelled queries" if source == LABELLED else "catalogue photos"
            lines.append(f"{photos.capitalize()} that find their item: {shares[0]:.1%} before, {shares[1]:.1%} after.")
        return [*lines, *self._unknown_lines(), *filter(None, [self.answers.summary()])]

    def _unknown(self) -> dict[str, Any] | None:
        """Return how many labelled photos of unknown items return a match, None if there are none."""
        draws = self.anchored.draws.sources.get(UNKNOWN)
        if draws is None or not len(draws.ids):
            return None
        drawn = DrawnDistances.of(draws)
        old, new = (self.before.threshold if self.before.decides else None), self.after.threshold
        return {
            "photos": drawn.items,
            "before": None if old is None else drawn.fpir(old),
            "after": drawn.fpir(new),
            "upper": drawn.fpir_upper(new),
        }

    def _unknown_lines(self) -> list[str]:
        unknown = self._unknown()
        if unknown is None:
            return []
        before = "" if unknown["before"] is None else f"{unknown['before']:.1%} before, "
        return [
            f"Labelled photos of unknown items that return a match: {before}{unknown['after']:.1%} after, of "
            f"{unknown['photos']} (at most {unknown['upper']:.1%} with 95 % confidence)."
        ]

    def write(self, gallery: AnyGallery) -> None:
        """Keep the new operating point in the gallery."""
        self.anchor.write(gallery, self.anchored, labelled=self.labelled, action="calibrate")


def propose(
    bundle: Bundle,
    gallery: AnyGallery,
    *,
    target_fpir: float | None = None,
    photos: Sequence[Photo] | None = None,
    certify: bool = False,
) -> Proposal:
    """Return the operating point that follows from the gallery as it is now, without writing it.

    Parameters
    ----------
    target_fpir:
        Target FPIR. Defaults to that of the operating point that serves now.
    photos:
        Users' photos with item ids of the gallery, or "" if they show no item of it. They replace the labelled queries
        that the gallery keeps.
    certify:
        Certify the target even with few items, or raise (`anchor`).

    Raises
    ------
    DataError
        If no labelled photo can be used.
    """
    before = served_point(gallery.kept(POINT), bundle)
    target = before.target_fpir if target_fpir is None else target_fpir
    indexed = {digest for *_, digest in gallery.values(CONTENT)}
    labelled, refused = (None, []) if photos is None else _embed(bundle, photos, indexed)
    if labelled is not None:
        _check_items(gallery, labelled)
    anchor = GalleryAnchor(bundle)
    queries = kept_queries(gallery, bundle) if labelled is None else labelled
    draws = anchor.draws(gallery, labelled=queries)
    anchored = anchor.anchored(gallery, draws, target_fpir=target, certify=certify)
    return Proposal(anchor, before, anchored, labelled, refused)


def _check_items(gallery: AnyGallery, labelled: Probes) -> None:
    """Raise DataError if most of the labelled photos show items that are not in the gallery."""
    named = [item for item in labelled.items if item]
    missing = [item for item in named if not gallery.photos(item)]
    if 2 * len(missing) > len(named):
        raise DataError(
            f"{len(missing)} of {len(named)} labelled photos show items that the gallery does not have, "
            f"such as {missing[0]!r}",
            remedy="Use the item ids of the gallery, or an empty one where a photo shows no item of it",
        )


def _embed(bundle: Bundle, photos: Sequence[Photo], indexed: Collection[str]) -> tuple[Probes, list[tuple[str, str]]]:
    """Return the vectors of the usable labelled photos, and the id and reason of each refused photo.

    `indexed` has the content hashes of the gallery's photos: a photo that is in the gallery would find itself.
    """
    embedder = bundle.embedder()
    batches = [embed_batch(embedder, photos[start : start + BATCH], {}) for start in range(0, len(photos), BATCH)]
    refused = [(photo_id, error.message) for batch in batches for photo_id, error in batch.refused]
    whole = Batch.of(batches)
    kept = [place for place, digest in enumerate(whole.hashes) if digest not in indexed]
    refused += [
        (photo.photo_id, "the photo is in the gallery, so it would find itself")
        for photo, digest in zip(whole.photos, whole.hashes, strict=True)
        if digest in indexed
    ]
    if whole.vectors is None or not kept:
        raise DataError(
            f"none of the labelled photos can be used, such as {refused[0][0]}: {refused[0][1]}",
            remedy="Label photos that users took and that are not in the gallery",
        )
    ids, items = ([getattr(whole.photos[place], name) for place in kept] for name in ("photo_id", "item_id"))
    features = [whole.features[place] for place in kept] if whole.features else ()
    return Probes(whole.vectors[kept], ids, items, features), refused


@dataclass(frozen=True)
class StoredSearch:
    """A search with its nearest item."""

    kind: str  # CALIBRATION or QUERIES
    name: str  # photo id of the query
    item_id: str  # nearest item
    distance: float

    def answer(self, threshold: float) -> str:
        """Return the item that the search returns first at a threshold, or NOTHING."""
        return self.item_id if accepts(self.distance, threshold) else NOTHING


@dataclass(frozen=True)
class ChangedAnswers:
    """The stored searches whose answer differs between two thresholds."""

    before: float
    after: float
    searched: Mapping[str, int]  # number of stored searches by kind
    changed: Sequence[StoredSearch]  # in order of their distance

    @classmethod
    def of(cls, searches: Sequence[StoredSearch], before: float, after: float) -> ChangedAnswers:
        """Compare the answers to searches at two thresholds."""
        changed = [search for search in searches if search.answer(before) != search.answer(after)]
        counts = Counter(search.kind for search in searches)
        return cls(before, after, counts, sorted(changed, key=lambda search: search.distance))

    def summary(self) -> str:
        """Return a sentence with the number of changed answers by kind, empty if no searches are stored."""
        counts = Counter(search.kind for search in self.changed)
        parts = [f"{counts[kind]} of {total} {_plural(kind)}" for kind, total in self.searched.items()]
        return f"Answers that change: {', '.join(parts)}." if parts else ""

    def lines(self) -> list[str]:
        """Return one line per changed answer."""
        return [
            f"{search.kind} {search.name}: {search.answer(self.before)} -> {search.answer(self.after)}, "
            f"at distance {search.distance:.4f}"
            for search in self.changed
        ]

    def to_dict(self) -> dict[str, Any]:
        """Return plain JSON values."""
        changed = [
            {**vars(search), "before": search.answer(self.before), "after": search.answer(self.after)}
            for search in self.changed
        ]
        return {"searched": dict(self.searched), "changed": changed}


def stored_searches(draws: KeptDraws) -> list[StoredSearch]:
    """Return the bundle's calibration searches and the labelled queries, in this gallery."""
    found: list[StoredSearch] = []
    for source, kind in ((PROBE, CALIBRATION), (LABELLED, QUERIES), (UNKNOWN, QUERIES)):
        if source in draws.sources:
            found += _of_draws(kind, draws.sources[source])
    return found


def _of_draws(kind: str, draws: Draws) -> list[StoredSearch]:
    """Return draws as searches, with the nearest item: their own or another."""
    return [
        StoredSearch(kind, name, item if own <= other else rival, min(own, other))
        for name, item, own, rival, other in zip(
            draws.ids.tolist(),
            draws.items.tolist(),
            draws.own.tolist(),
            draws.nearest_items.tolist(),
            draws.distances.tolist(),
            strict=True,
        )
    ]


def _plural(kind: str) -> str:
    return {CALIBRATION: "calibration searches", QUERIES: "labelled queries"}[kind]
