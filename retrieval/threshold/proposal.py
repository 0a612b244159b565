"""Proposals: the operating point that follows from a gallery as it is now, before it is written (`anchor`)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np

from index.database import POINT
from index.gallery import Gallery
from index.location import AnyGallery
from index.maintenance import FOLDS, require_folds, with_moves
from index.search.leave_one_out import (
    DRAWS,
    OWN,
    WINDOWS,
    Draws,
    FoldVectors,
    KeptDraws,
    Probes,
    Windows,
    groups_by_item,
    make_draws,
)
from index.snapshot import group_key
from retrieval.bundle.bundle import Bundle
from retrieval.bundle.fitted import Fitted, content_hash
from retrieval.bundle.operating_point import CERTIFIED, OperatingPoint
from retrieval.catalogue.photos import Photo
from retrieval.errors import CalibrationError, DataError, ImageRefused
from retrieval.indexing.worker import CONTENT
from retrieval.inspect.duplicates import is_copy

from .anchor import anchor, evidence_at
from .error_rates import LABELLED, PROBE, REFERENCE, UNKNOWN, GalleryRates, Shift
from .fold_draws import fold_draws
from .gallery_points import carried_point, pack_points, served_point, stored_point
from .labelled_queries import QUERIES, by_source, embed_queries, gallery_shift, pack_queries, read_queries

SAME = 1e-3  # plain distance at which two photos are the same one, embedded twice


@dataclass(frozen=True)
class Proposal:
    """The draws of a gallery and the operating point that follows from them, before it is written."""

    bundle: Bundle
    draws: KeptDraws
    served: OperatingPoint  # the one that serves now: the gallery's or else the bundle's
    before: OperatingPoint | None  # the one that the gallery has for the bundle
    point: OperatingPoint | None  # None if there are too few draws
    why_not: str = ""  # why there is no point
    is_new: bool = True  # whether the draws were made now
    stored: bytes | None = None  # the points that the gallery kept when it was measured
    action: str = "calibrate"  # for the gallery's list of changes
    labelled: Probes | None = None  # labelled queries to keep
    refused: Sequence[tuple[str, str]] = ()  # photo_id and reason, of labelled photos
    made_of: tuple[int, ...] = ()  # hashes of what the gallery kept to make draws with

    @property
    def after(self) -> OperatingPoint:
        """The new operating point; raise CalibrationError if there is none."""
        if self.point is None:
            raise CalibrationError(self.why_not)
        return self.point

    @property
    def rates(self) -> GalleryRates | None:
        """The rates of the point, None if there is no point or there are too few draws."""
        return None if self.point is None else GalleryRates.of(self.draws, self.point)

    @property
    def sets_threshold(self) -> bool:
        """Return whether the threshold or its status is new, and not just what is told of it."""
        before, point = self.before, self.point
        return point is not None and (
            before is None or (point.threshold, point.status) != (before.threshold, before.status)
        )

    @property
    def is_news(self) -> bool:
        """Return whether there is anything to keep."""
        return self.point is not None and (self.is_new or self.point != self.before)

    def summary(self) -> str:
        """Return a sentence on a threshold that was set or tightened, "" if none was."""
        if self.point is None or not self.sets_threshold:
            return ""
        if self.before is None:
            return f"The gallery got its first threshold, {self.point.threshold:.4f}."
        rates, old, new = GalleryRates.of(self.draws, self.before), self.before.threshold, self.point.threshold
        certified = self.before.status == CERTIFIED
        rate = None if rates is None else rates.fpir_upper(old) if certified else rates.expected(old)
        found = "" if rate is None else f" of {'up to ' if certified else ''}{rate:.1%}"
        if new == old:
            return f"The threshold {old:.4f} is no longer certified: it is {self.point.status} for the items left."
        return (
            f"The threshold was tightened from {old:.4f} to {new:.4f}, because its "
            f"FPIR{found} no longer kept the target of {self.before.target_fpir:.1%}."
        )

    def write(self, gallery: AnyGallery, *, actor: str | None = None) -> None:
        """Keep the draws, the point and any new labelled queries as one change, in the log by `actor`.

        If another point was set in the meantime, the draws are kept and the point is left alone. If labelled queries or
        windows were kept in the meantime, nothing is: whoever did it has made, or will make, draws with them.
        """
        if not self.is_news:
            return
        gallery.lock()
        if self.made_of != _made_of(gallery):
            return
        contents: dict[str, bytes | None] = {DRAWS: self.draws.pack()}
        action = "measure the threshold"
        if self.point != self.before and gallery.kept(POINT) == self.stored:
            contents[POINT] = pack_points(self.stored, self.bundle, self.point)
            action = self.action if self.sets_threshold else action
        if self.labelled is not None:
            contents[QUERIES] = pack_queries(self.labelled, self.bundle.features_key)
        gallery.keep(contents, action, actor=actor)


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
    stored = gallery.kept(POINT)
    before = stored_point(stored, bundle)
    made_of = _made_of(gallery)
    labelled, refused = (None, []) if photos is None else _embedded(bundle, gallery, photos)
    draws = gallery_draws(bundle, gallery, labelled=labelled)
    target = (before or bundle.operating_point).target_fpir if target_fpir is None else target_fpir
    point, why_not = _point(gallery, draws, target, certify=certify)
    served = served_point(stored, bundle, gallery)
    return Proposal(
        *(bundle, draws, served, before, point, why_not),
        stored=stored,
        labelled=labelled,
        refused=refused,
        made_of=made_of,
    )


def _embedded(bundle: Bundle, gallery: AnyGallery, photos: Sequence[Photo]) -> tuple[Probes, list[tuple[str, str]]]:
    """Return the labelled queries of photos, and the refused ones with reasons: also those that the model has seen."""
    seen = {photo.photo_id for photo in photos if bundle.fitted is not None and _is_fitted(photo, bundle.fitted)}
    if len(seen) == len(photos):
        raise DataError(
            "the model was fitted on all of the labelled photos", remedy="Label photos that it was not fitted on"
        )
    queries, refused = embed_queries(bundle, gallery, [photo for photo in photos if photo.photo_id not in seen])
    refused += [(photo_id, "the model was fitted on this photo") for photo_id in sorted(seen)]
    gone = _gone(queries, gallery)
    told = "the gallery has no item {}: use an item id of the gallery, or leave it empty if the item is not there"
    return queries, refused + [
        (photo_id, told.format(item)) for photo_id, item in zip(queries.ids, queries.items, strict=True) if item in gone
    ]


def _is_fitted(photo: Photo, fitted: Fitted) -> bool:
    """Return whether a model was fitted on a photo, whatever its item is. What cannot be read is refused later."""
    try:
        return fitted.contains("", content_hash(photo.read(), photo.bbox))
    except ImageRefused:
        return False


def measure(bundle: Bundle, gallery: AnyGallery, *, cap: float = math.inf, tighten: bool = True) -> Proposal:
    """Measure the promise of a bundle's operating point in a gallery, and propose a stricter one if it is broken.

    Without `tighten`, a threshold stays as it is, and its evidence tells what it does.

    Draws of the newest version that the gallery keeps are reused. A gallery without a point gets one, if it has enough
    items, of at most the threshold `cap`: that of another bundle with the same draws and target if it keeps its
    promise, else a new one. Nothing is written: see `Proposal.write`.
    """
    made_of, stored, known = _made_of(gallery), gallery.kept(POINT), KeptDraws.read(gallery)
    is_new = known is None or known.is_old or known.model != bundle.draws_id or known.changed(gallery) > 0
    draws = gallery_draws(bundle, gallery) if known is None or is_new else known
    before, why_not, action = stored_point(stored, bundle), "", "tighten the threshold"
    point = before
    if before is None:
        action, carried = "calibrate", carried_point(stored, bundle)
        rates = None if carried is None else GalleryRates.of(draws, carried)
        if carried is not None and rates is not None and rates.keeps_target(carried) and carried.threshold <= cap:
            point = carried
        else:
            point, why_not = _point(gallery, draws, bundle.operating_point.target_fpir, cap=cap)
    else:
        stricter = _stricter(gallery, draws, before) if tighten else None
        is_old = is_new or before.evidence.get("gallery_version") != draws.version
        point = _told_anew(gallery, draws, stricter or before) if stricter or is_old else before
    served = served_point(stored, bundle, gallery)
    return Proposal(
        *(bundle, draws, served, before, point, why_not),
        is_new=is_new,
        stored=stored,
        action=action,
        made_of=made_of,
    )


def _made_of(gallery: AnyGallery) -> tuple[int, ...]:
    return tuple(hash(gallery.kept(name)) for name in (QUERIES, WINDOWS, FOLDS))


def remeasure(bundle: Bundle, gallery: AnyGallery, *, tighten: bool = True) -> Proposal:
    """Measure as `measure` does, and keep the result in the gallery as one change."""
    found = measure(bundle, gallery, tighten=tighten)
    found.write(gallery)
    return found


def changed_share(bundle: Bundle, gallery: AnyGallery) -> float:
    """Return the share of a gallery's photos that changed since its draws were made.

    It is 1 without draws, and 0 if the draws belong to another bundle, which measures the gallery itself.
    """
    known = KeptDraws.read(gallery)
    if known is None or known.is_old:
        return 1.0
    return min(1.0, known.changed(gallery) / max(1, known.photos)) if known.model == bundle.draws_id else 0.0


def _point(
    gallery: AnyGallery,
    draws: KeptDraws,
    target_fpir: float,
    *,
    shift: Shift | None = None,
    cap: float = math.inf,
    certify: bool = False,
) -> tuple[OperatingPoint | None, str]:
    """Return the operating point that follows from draws, or why there is none; measure a shift that is not given."""
    try:
        point = anchor(
            draws.sources,
            target_fpir,
            gallery_items=gallery.items,
            shift=shift or gallery_shift(_by_serving_model(draws)),
            cap=cap,
            certify=certify,
            fitted=draws.fitted,
        )
    except CalibrationError as error:
        return None, str(error)
    evidence = {**point.evidence, "gallery_version": draws.version}
    return replace(point, evidence=evidence), ""


def _by_serving_model(draws: KeptDraws) -> dict[str, Draws]:
    """Return draws by source without the own ones by fold models, which the others cannot be compared with."""
    own = draws.sources.get(OWN, Draws.none())
    return {**draws.sources, OWN: own.where(~np.isin(own.items, list(draws.fitted)))}


def _stricter(gallery: AnyGallery, draws: KeptDraws, before: OperatingPoint) -> OperatingPoint | None:
    """Return a stricter operating point for one that misses its target, None if it is not needed or there is none.

    A certified point becomes an estimated one, maybe of the same threshold, if the items left cannot certify the
    target. If the draws support no FPIR as low as the target, the new point has the smallest FPIR that they support.
    """
    rates = GalleryRates.of(draws, before)
    if rates is None or rates.keeps_target(before):
        return None
    again = partial(_point, gallery, draws, shift=Shift.of(before), cap=before.threshold)
    new = again(before.target_fpir, certify=True)[0] if before.status == CERTIFIED else None
    new = new or again(max(before.target_fpir, rates.drawn.smallest_target))[0]
    new = None if new is None else replace(new, target_fpir=before.target_fpir)
    return None if new is None or (new.threshold, new.status) == (before.threshold, before.status) else new


def _told_anew(gallery: AnyGallery, draws: KeptDraws, point: OperatingPoint) -> OperatingPoint:
    """Return a point with the evidence of draws, or as it is if they are of too few items to tell anything."""
    if GalleryRates.of(draws, point) is None:
        return point
    shift, target = Shift.of(point), point.target_fpir
    evidence = evidence_at(
        draws.sources, point.threshold, target, gallery_items=gallery.items, shift=shift, fitted=draws.fitted
    )
    return replace(point, evidence={**evidence, "gallery_version": draws.version})


def gallery_draws(bundle: Bundle, gallery: AnyGallery, *, labelled: Probes | None = None) -> KeptDraws:
    """Return the draws of the newest version, with the given labelled queries or those that the gallery keeps."""
    queries = read_queries(gallery, bundle.features_key) if labelled is None else labelled
    probes = {**_calibration_photos(bundle), **_usable(queries, gallery)} if gallery.items else {}
    fitted, windows = bundle.fitted, Windows.read(gallery)
    is_fitted = (lambda *_: True) if fitted is None else fitted.contains  # without a list, any item may be fitted
    some = fitted is None or len(fitted) > 0
    draws = make_draws(
        gallery,
        model=bundle.draws_id,
        item_distance=bundle.item_distance,
        verifier=bundle.verifier,
        probes=probes,
        is_fitted=is_fitted if some else None,  # without it, not every photo is looked at
        content_key=CONTENT,
        is_copy=partial(is_copy, gallery.thumbnail),
        windows=None if windows is None else with_moves(gallery, windows),
    )
    by_folds = _fold_draws(bundle, gallery, draws.fitted)
    sources = {kind: Draws.joined([draws.sources[kind], some]) for kind, some in by_folds.items()}
    draws = replace(draws, sources={**draws.sources, **sources})
    asked = dict.fromkeys(probes[LABELLED].items) if LABELLED in probes else ()
    return replace(
        draws,
        sources=_without_copies(draws.sources),
        fitted=draws.fitted | {item for item in asked if is_fitted(item, None)},
    )


def _gone(queries: Probes, gallery: AnyGallery) -> set[str]:
    return {item for item in set(queries.items) if item and not gallery.photos(item)}


def _usable(queries: Probes | None, gallery: AnyGallery) -> dict[str, Probes]:
    """Return labelled queries by source, without those for items that are gone: they may have another id now."""
    if queries is None:
        return {}
    gone = _gone(queries, gallery)
    rows = [row for row, item in enumerate(queries.items) if item not in gone]
    return by_source(queries.where(rows))


def _without_copies(sources: Mapping[str, Draws]) -> dict[str, Draws]:
    """Return draws by source, without those with photos from elsewhere that the gallery has, too.

    Labelled photos may have been added since they were labelled. Where it has a calibration photo under another item,
    the whole item has another id now.
    """
    here = {name: draws.plain <= SAME for name, draws in sources.items()}
    renamed = {item for name in (PROBE, REFERENCE) if name in sources for item in sources[name].items[here[name]]}
    found = dict(sources)
    for name, draws in sources.items():
        if name in (PROBE, REFERENCE):
            found[name] = draws.where(~np.isin(draws.items, list(renamed)))
        elif name in (LABELLED, UNKNOWN):
            found[name] = draws.where(~(here[name] | (draws.own_plain <= SAME)))
    return found


def _fold_draws(bundle: Bundle, gallery: AnyGallery, fitted: Collection[str]) -> Mapping[str, Draws]:
    """Return the draws of fitted items by fold models, {} without these or their vectors.

    Raises GalleryCorrupt if the vectors are damaged or were lost.
    """
    known = bundle.fitted
    if known is None or not bundle.folds_key or not isinstance(gallery, Gallery):
        return {}
    require_folds(gallery.path)
    folds = FoldVectors.read(gallery, bundle.folds_key)
    if folds is None:
        return {}
    moved = {
        item
        for _, item, content in gallery.values(CONTENT)
        if content and (known.seen_by_all(content) or known.fold_of(content) not in (None, known.fold_of(item)))
    }  # items with photos of another fold or of several, such as merged ones: every model was fitted on some of them
    named = groups_by_item(gallery)
    folds_of = defaultdict[str, set[int]](set)  # of the items of a group, or of an item without one
    for item, group in named.items():
        for name in {item, group_key(item, group)}:
            if (fold := known.fold_of(name)) is not None:
                folds_of[group or f" {item}"].add(fold)
    fold_of = {item: folds_of[named.get(item, "") or f" {item}"] for item in fitted if item not in moved}
    return fold_draws(
        gallery,
        with_moves(gallery, folds),
        {item: next(iter(several)) for item, several in fold_of.items() if len(several) == 1},
        item_distance=bundle.item_distance,
        content_key=CONTENT,
        is_copy=partial(is_copy, gallery.thumbnail),
    )


def _calibration_photos(bundle: Bundle) -> dict[str, Probes]:
    """Return the calibration photos of a bundle: queries and reference, with the local features if it verifies."""
    calibration, stored = bundle.calibration, bundle.calibration_features
    if calibration is None:
        return {}
    items = [str(label) for label in calibration.scores.labels]
    known = dict(zip(calibration.gallery.items, calibration.gallery.groups, strict=True))
    groups = [known.get(item, "") for item in items]
    queries = Probes(calibration.vectors, calibration.photo_ids.tolist(), items, groups=groups)
    found = {PROBE: queries, REFERENCE: calibration.gallery}
    if bundle.verifier is None:
        return found
    return {name: replace(each, features=[stored[photo] for photo in each.ids]) for name, each in found.items()}
